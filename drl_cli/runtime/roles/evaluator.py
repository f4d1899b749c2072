"""Evaluator plays several episodes at once with the greedy policy of a parameter version. Camera films one episode."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from drl_cli.config.config import Config
from drl_cli.convert.program import Program
from drl_cli.envs.faults import frames_per_second
from drl_cli.envs.make import Env
from drl_cli.envs.stepping.step import numbers
from drl_cli.metrics.tensorboard import Film
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.types import Array, EnvSpec, PreviousStep, leaves
from drl_cli.utils.machine import headless
from drl_cli.utils.outside import import_object


@dataclass(frozen=True)
class Score:
    """Undiscounted, unscaled returns `[episodes]` and lengths `[episodes]` of evaluation episodes.

    `cut` counts the episodes that reached manage.max_episode_steps. `infos` has, for each episode, the numbers that the
    environment reported at the end of the episode.
    """

    returns: Array
    lengths: Array
    cut: int
    infos: tuple[Mapping[str, float], ...] = ()

    def __add__(self, other: "Score") -> "Score":
        returns, lengths = (self.returns, other.returns), (self.lengths, other.lengths)
        infos = self.infos + other.infos
        return Score(np.concatenate(returns), np.concatenate(lengths), self.cut + other.cut, infos)

    def info(self) -> dict[str, float]:
        """Return the mean of each number in `infos`, over the episodes that have this number."""
        values: dict[str, list[float]] = defaultdict(list)
        for info in self.infos:
            for name, value in info.items():
                values[name].append(value)
        return {name: float(np.mean(series)) for name, series in values.items()}

    def standard_error(self) -> float:
        return float(self.returns.std() / np.sqrt(len(self.returns)))

    def statistics(self) -> dict[str, float]:
        names = ("mean", "std", "min", "max", "median")
        returns = {name: float(getattr(np, name)(self.returns)) for name in names}
        return {**returns, "episodes": len(self.returns), "length_mean": float(self.lengths.mean())}


class Scorer(Protocol):
    """The interface of Evaluator and of the user's own class in `manage.evaluator`.

    The constructor takes a Config, an EnvSpec and a list with one seed per episode.
    """

    def evaluate(self, params: Array) -> Score:
        """Return the score of a parameter vector, which the policy from `make_policy(config, spec, 0)` can load."""

    def close(self) -> None:
        """Close the environments."""


def make_evaluator(config: Config, spec: EnvSpec, seeds: list[int], program: Program | None = None) -> Scorer:
    """Create the evaluator that `manage.evaluator` names, or an Evaluator if this key is null."""
    if config.manage.evaluator is None:
        return Evaluator(config, spec, seeds, program=program)
    scorer: Scorer = import_object(config.manage.evaluator)(config, spec, seeds)
    return scorer


class Evaluator:
    """Plays one episode per seed. Episode i always starts from `seeds[i]`, so equal weights give equal scores.

    With `exploration` values, the policy explores as in a worker. Without them, the policy is greedy.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        seeds: list[int],
        exploration: Mapping[str, float] | None = None,
        program: Program | None = None,
    ) -> None:
        self.spec, self.seeds, self.max_steps = spec, seeds, config.manage.max_episode_steps
        self.policy = make_policy(config, spec, 0 if exploration is None else seeds[0], program)
        self.explores = exploration is not None
        if exploration is not None:
            self.policy.explore(exploration)
        self.envs = [Env(config.env.for_evaluation(config.manage.env_kwargs), spec) for _ in seeds]

    def evaluate(self, params: Array, watch: Callable[[], None] = lambda: None) -> Score:
        """Play one episode per seed. `watch` is called after the resets and after each step of running episodes."""
        self.policy.load(params)
        first = [env.reset(seed) for env, seed in zip(self.envs, self.seeds, strict=True)]
        columns = leaves(self.spec.obs)
        parts = {p: np.stack([obs[p] for obs in first]).astype(column.dtype) for p, column in columns.items()}
        obs = parts.get("", parts)
        returns, lengths = np.zeros(len(self.envs)), np.zeros(len(self.envs), np.int64)
        running = np.arange(len(self.envs))
        last, rewards = PreviousStep.none(self.spec, len(self.envs)), np.zeros(len(self.envs), np.float32)
        infos: list[Mapping[str, float]] = [{} for _ in self.envs]
        watch()
        for _ in range(self.max_steps):
            chosen = self.policy.act(obs, last)["action"] if self.explores else self.policy.greedy(obs, last)
            actions = self.envs[0].to_env(chosen)
            continues = np.ones(len(running), np.bool_)
            for k, i in enumerate(running):
                raw, reward, terminated, truncated, info = self.envs[i].raw.step(actions[i])
                for path, part in self.envs[i].read(raw, info).items():
                    parts[path][i] = part
                rewards[i] = reward
                returns[i] += reward
                lengths[i] += 1
                if terminated or truncated:
                    continues[k], infos[i] = False, numbers(info)
            watch()
            running = running[continues]
            last = PreviousStep.of(chosen, rewards, ())
            if len(running) == 0:
                break
        return Score(returns, lengths, len(running), tuple(infos))

    def close(self) -> None:
        for env in self.envs:
            env.close()


class Camera:
    """Films episodes in a separate environment, which renders and starts from the first seed of the evaluations."""

    def __init__(self, config: Config, spec: EnvSpec, seed: int, folder: Path, program: Program | None = None) -> None:
        os.environ.update(headless())
        rendering = {**config.manage.env_kwargs, "render_mode": "rgb_array"}
        config = replace(config, manage=replace(config.manage, env_kwargs=rendering))
        self.evaluator, self.folder = Evaluator(config, spec, [seed], program=program), folder
        self.env = self.evaluator.envs[0].raw

    def film(self, params: Array, position: int) -> Path:
        """Write an animated GIF and return its path. Raise ValueError if the environment does not render."""
        film = Film(frames_per_second(self.env))
        self.evaluator.evaluate(params, watch=lambda: film.step(self.env.render))
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"eval_{position:09d}.gif"
        path.write_bytes(film.gif())
        return path

    def close(self) -> None:
        self.evaluator.close()
