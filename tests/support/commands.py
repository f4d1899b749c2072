"""Fixtures for tests of the commands: run one as a user does, and one small run that many tests read."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from drl_cli.settings.conf import conf_dir

TINY_RUN = (
    "debug.in_process=true",
    "network.hidden=[16,16]",
    "worker.num=1",
    "worker.envs=2",
    "worker.block_rows=16",
    "orchestrator.min_inserts=32",
    "trainer.batch_size=8",
    "replay.capacity=2000",
    "manage.eval_period=60",
    "manage.eval_episodes=2",
    "checkpoint.period=60",
    "env.max_episode_steps=20",
    "total_env_steps=160",
)

USER_ENVS = '''
import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Tiny(gymnasium.Env):
    """An environment of a user, which fails in the way it is told to."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, fail="never"):
        if fail == "init":
            raise RuntimeError("no room")
        self.fail, self.count = fail, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fail == "reset":
            raise RuntimeError("stuck at the start")
        self.count = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        self.count += 1
        if self.fail == "step":
            raise RuntimeError("the arm fell off")
        reward = 1e30 if self.fail == "reward" else float(action[0])
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), reward, self.count >= 10, False, {}


class Words(Tiny):
    """One that speaks."""

    observation_space = gymnasium.spaces.Text(5)


class Free(Tiny):
    """One that takes any action."""

    action_space = Box(-np.inf, np.inf, (1,), np.float32)


class Twice(gymnasium.ObservationWrapper):
    """A wrapper of a user."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = Box(-2, 2, (6,), np.float32)

    def observation(self, obs):
        return np.concatenate([obs, 2 * obs])


class Broken(gymnasium.Wrapper):
    """Another one."""

    def __init__(self, env):
        raise RuntimeError("does not fit")


for name in ("Tiny-v0", "space/Tiny-v0"):
    gymnasium.register(name, Tiny)
gymnasium.register("Words-v0", Words)
gymnasium.register("Free-v0", Free)
'''


@pytest.fixture(scope="session")
def tiny():
    """Overrides of a run of 160 steps without Ray."""
    return TINY_RUN


@pytest.fixture(scope="session")
def drl():
    """Run a command (`train`, `eval`, ...) in a process of its own, from the folder `cwd`."""

    def run(command, *args, cwd, **env):
        return subprocess.run(
            [sys.executable, "-m", f"drl_cli.cli.{command}", *map(str, args)],
            cwd=cwd,
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run


@pytest.fixture(scope="session")
def composed():
    """The plain mapping that Hydra makes of a drl-train command line."""
    from composing import compose_plain

    return compose_plain


@pytest.fixture
def train_here(tmp_path, monkeypatch, composed, user_folder):
    """drl-train after the command line, in this process; gives its summary and the run's folder."""
    from drl_cli.cli.train import train

    monkeypatch.syspath_prepend(str(user_folder))
    monkeypatch.setattr(sys, "argv", ["drl-train"])

    def run(*overrides):
        summary = train(composed(*TINY_RUN, f"output_dir={tmp_path}", *overrides))
        return summary, next(tmp_path.glob(f"*/*/{summary['run_id']}"))

    return run


@pytest.fixture(scope="session")
def user_folder(tmp_path_factory):
    """Where a user works: `user_envs.py` has an environment, `user_algo.py` an algorithm."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "user_envs.py").write_text(USER_ENVS)
    (folder / "user_algo.py").write_text("from drl_cli.algos.sac import ACTIONS, Algorithm, Config, Policy\n")
    shutil.copy(conf_dir() / "algo" / "sac.yaml", folder / "user_algo.yaml")
    return folder


@pytest.fixture(autouse=True)
def forget(tmp_path_factory):
    """What a test imported from the modules that tests write is forgotten after it, with the environments of these.

    Else the answers of a later test would name them, too.
    """
    before, written = set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    new = {
        name
        for name in set(sys.modules) - before
        if str(getattr(sys.modules[name], "__file__", "")).startswith(written)
    }
    if not new:
        return
    from gymnasium.envs.registration import registry

    for name in new:
        del sys.modules[name]
    for spec in list(registry.values()):
        if getattr(spec.entry_point, "__module__", str(spec.entry_point).partition(":")[0]) in new:
            del registry[spec.id]


@pytest.fixture(scope="session")
def small_run(tmp_path_factory, drl, tiny):
    """One real drl-train: `done` is the process, `args` its command line, `cwd` where, `folder` the run's folder."""
    cwd = tmp_path_factory.mktemp("small")
    args = ["env=Pendulum-v1", "seed=3", *tiny]
    done = drl("train", *args, cwd=cwd)
    assert done.returncode == 0, done.stderr
    (folder,) = cwd.glob("outputs/*/*/*")
    return SimpleNamespace(done=done, args=args, cwd=cwd, folder=folder)


@pytest.fixture
def listed(monkeypatch, capsys):
    """The lines that `drl-list ...` prints."""
    from drl_cli.cli.list import main

    def ask(*args):
        monkeypatch.setattr(sys, "argv", ["drl-list", *args])
        main()
        return capsys.readouterr().out.splitlines()

    return ask
