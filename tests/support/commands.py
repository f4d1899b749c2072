"""Fixtures for tests of the commands: run a command as a user does, and one small run that many tests read."""

import importlib
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from words import newest

from drl_cli.settings.conf import conf_dir

TINY_RUN = (
    *("debug.in_process=true", "network.hidden=[16,16]", "worker.num=1", "worker.envs=2", "worker.block_rows=16"),
    *("orchestrator.min_inserts=32", "trainer.batch_size=8", "replay.capacity=2000", "manage.eval_period=60"),
    *("manage.eval_episodes=2", "checkpoint.period=60", "env.max_episode_steps=20", "total_env_steps=160"),
)

NOTES = "it's small, for tests (160 steps): fast"
"""The notes of the small run."""

USER_ENVS = '''
import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Tiny(gymnasium.Env):
    """An environment of a user, which fails in a chosen way."""

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
    """An environment with observations of text."""

    observation_space = gymnasium.spaces.Text(5)


class Free(Tiny):
    """An environment without bounds of actions."""

    action_space = Box(-np.inf, np.inf, (1,), np.float32)


class Twice(gymnasium.ObservationWrapper):
    """A wrapper of a user."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = Box(-2, 2, (6,), np.float32)

    def observation(self, obs):
        return np.concatenate([obs, 2 * obs])


class Broken(gymnasium.Wrapper):
    """A wrapper that raises."""

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
    """Run a command (`train`, `eval`, ...) in another process, from the folder `cwd`."""

    def run(command, *args, cwd, **env):
        return subprocess.run(
            [sys.executable, "-m", f"drl_cli.cli.{command}", *newest(args)],
            cwd=cwd,
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run


@pytest.fixture
def drl_here(monkeypatch, capsys):
    """Run a command in this process, from the current folder. The result has the attributes of `drl`'s result."""

    def run(command, *args):
        module = importlib.import_module(f"drl_cli.cli.{command}")
        with monkeypatch.context() as here:
            here.setattr(sys, "argv", [f"drl-{command}", *map(str, args)])
            here.setattr(sys, "path", [*sys.path])
            here.setattr(sys, "stdout", sys.stdout)
            code = 0
            try:
                module.main()
            except SystemExit as end:
                code = end.code
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    return run


@pytest.fixture
def listed(drl_here):
    """The lines that `drl-list ...` prints."""

    def run(*words):
        done = drl_here("list", *words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


@pytest.fixture(scope="session")
def composed():
    """The plain mapping that Hydra makes of a drl-train command line."""
    from composing import compose_plain

    return compose_plain


@pytest.fixture
def train_here(tmp_path, monkeypatch, composed, user_folder):
    """Train in this process with overrides of a tiny run. Return the summary and the run's folder."""
    from drl_cli.cli.train import train

    monkeypatch.syspath_prepend(str(user_folder))

    def run(*overrides):
        summary = train(composed(*TINY_RUN, f"output_dir={tmp_path}", *overrides))
        return summary, next(tmp_path.glob(f"*/*/{summary['run_id']}"))

    return run


@pytest.fixture(scope="session")
def user_folder(tmp_path_factory):
    """The folder of a user: `user_envs.py` has an environment, `user_algo.py` an algorithm."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "user_envs.py").write_text(USER_ENVS)
    (folder / "user_algo.py").write_text(
        "from drl_cli.algos.off_policy.sac import ACTIONS, Algorithm, Config, Policy\n"
    )
    shutil.copy(conf_dir() / "algo" / "sac.yaml", folder / "user_algo.yaml")
    return folder


@pytest.fixture(autouse=True)
def forget(tmp_path_factory):
    """Unload the modules that a test wrote and imported, and their environments.

    Otherwise the answers of a later test would name them.
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
    """One run of drl-train: `done` is its process, `args` the command line, `cwd` where, `folder` the run's folder."""
    cwd = tmp_path_factory.mktemp("small")
    args = ["env=Pendulum-v1", "seed=3", "name=small", "tags=[a,wide net]", f"notes={NOTES}", *tiny]
    done = drl("train", *args, cwd=cwd)
    assert done.returncode == 0, done.stderr
    (folder,) = cwd.glob("outputs/*/*/*")
    return SimpleNamespace(done=done, args=args, cwd=cwd, folder=folder)


@pytest.fixture
def copied(small_run, tmp_path, monkeypatch):
    """A copy of the small run below tmp_path, without evaluations of other tests. The test runs in tmp_path."""
    folder = tmp_path / "outputs" / "Pendulum-v1" / "sac-async" / small_run.folder.name
    shutil.copytree(small_run.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("eval*.json"))
    monkeypatch.chdir(tmp_path)
    return folder
