"""An environment with much in its info that can render; recorders and an evaluator of a user."""

import threading

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from drl_cli.runtime.roles.evaluator import Evaluator


class Telling(gymnasium.Env):
    """Episodes of 4 steps. The info has `cost` (the step's number), and in episode 2 `lap_time`.

    `success` is True for an even seed and `level` is an argument; `return_mean` and `mean` are names of metrics, too.
    Frames are 300 pixels wide and become brighter with each step; `draws` chooses invalid frames instead.
    """

    observation_space, action_space = Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, level=0, draws="picture", render_mode=None, width=2):
        self.level, self.draws, self.render_mode, self.episode, self.is_even = level, draws, render_mode, 0, False
        self.is_closed = False
        self.observation_space = Box(-1, 1, (width,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.episode, self.count = self.episode + 1, 0
        self.is_even = self.is_even if seed is None else seed % 2 == 0
        return np.zeros(self.observation_space.shape, np.float32), {"success": True, "only_at_reset": 1}

    def step(self, action):
        self.count += 1
        info = {
            "success": self.is_even,
            "cost": np.float32(self.count),
            "level": self.level,
            "return_mean": 9,
            "mean": 7,
        }
        info |= {"lap_time": 2.5} if self.episode == 2 else {}
        return np.zeros(self.observation_space.shape, np.float32), 1.0, self.count == 4, False, info

    def render(self):
        if self.draws == "nothing":
            return None
        if self.draws == "fails":
            raise RuntimeError("no display")
        noise = np.random.default_rng(self.count).integers(0, 255, (100, 300, 3))
        return (noise if self.draws == "noise" else np.full((100, 300, 3), 50 * self.count)).astype(np.uint8)

    def close(self):
        self.is_closed = True


gymnasium.register("Telling-v0", Telling)


class Own:
    """A recorder that writes everything it gets to a file in the run's folder."""

    def __init__(self, run):
        self.path = run.folder / "own.txt"
        self.write(f"{run.name} {run.project} {run.hparams['seed']}")

    def write(self, line):
        with self.path.open("a") as file:
            file.write(f"{line}\n")

    def record(self, scalars, env_steps):
        self.write(f"{env_steps} {' '.join(scalars)}")

    def video(self, tag, path, env_steps):
        self.write(f"{tag} {path.name}")

    def close(self, status):
        self.write(status)


class Failing(Own):
    """A recorder that fails at every report."""

    def record(self, scalars, env_steps):
        raise RuntimeError("the server is gone")


class Hanging(Own):
    """A recorder that blocks until it is released."""

    released = threading.Event()

    def record(self, scalars, env_steps):
        self.released.wait(60.0)


class Unmade:
    """A recorder whose constructor fails."""

    def __init__(self, run):
        raise OSError("no such server")

    def record(self, scalars, env_steps):
        pass

    def close(self, status):
        pass


class Generous(Evaluator):
    """An evaluator that adds 1,000 to every return."""

    def evaluate(self, params, watch=lambda: None):
        score = super().evaluate(params, watch)
        score.returns[:] += 1000.0
        return score


class Lacking:
    def __init__(self, run):
        pass

    def record(self, scalars, env_steps):
        pass


def without_arguments():
    pass


NUMBER = 3
