"""A config that passes dry_run=true does not fail in the first 200 environment steps and the first update."""

import dataclasses
import re

import pytest
from choices import some
from interpreted import without_compiler

from drl_cli.errors import USER_CODE, UsageError
from drl_cli.preflight.algorithm import LARGE_BATCH, try_update
from drl_cli.preflight.preflight import preflight
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.settings.build import build
from drl_cli.settings.fill import fill

ENVS = """
import ctypes
import os
import sys
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Good(gymnasium.Env):
    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)
    made = 0

    def __init__(self):
        type(self).made += 1
        self.number = self.made
        self.steps = self.resets = 0

    def obs(self):
        return np.full(3, 0.1 + self.steps % 2 / 2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        return self.obs(), {}

    def step(self, action):
        self.steps += 1
        return self.obs(), 1.0, False, self.steps % 50 == 0, {}


def changed(**members):
    return type("Changed", (Good,), members)


def fails(self, kind, text, is_due):
    if is_due:
        raise kind(text)


NoneReset = changed(reset=lambda self, *, seed=None, options=None: None)
NoneStep = changed(step=lambda self, action: None)
TooLarge = changed(obs=lambda self: Good.obs(self) + np.array([0, 0, 3.15], np.float32))
Endless = changed(step=lambda self, action: (*Good.step(self, action)[:2], False, False, {}))
OldReset = changed(reset=lambda self, *, seed=None, options=None: self.obs())
NoSeed = changed(reset=lambda self: (self.obs(), {}))
OldStep = changed(step=lambda self, action: (self.obs(), 0.0, False, {}))
InfoThird = changed(step=lambda self, action: (self.obs(), 0.0, False, {}, False))
NoReward = changed(step=lambda self, action: (self.obs(), None, False, False, {}))
ArrayReward = changed(step=lambda self, action: (self.obs(), np.zeros(1), False, False, {}))
SharesOfBytes = changed(observation_space=Box(0, 255, (3,), np.uint8), obs=lambda self: np.full(3, 0.5, np.float32))
PARTS = Dict({"arm": Box(-1, 1, (2,), np.float32), "goal": Box(-1, 1, (1,), np.float32)})
NoPart = changed(observation_space=PARTS, obs=lambda self: {"arm": np.zeros(2, np.float32)})
Outside = changed(observation_space=Discrete(3), obs=lambda self: 3)
Exits = changed(step=lambda self, action: fails(self, SystemExit, 3, True))
SecondReset = changed(
    reset=lambda self, **options: fails(self, RuntimeError, "only once", self.resets) or Good.reset(self, **options)
)
SixthStep = changed(
    step=lambda self, action: fails(self, RuntimeError, "worn out", self.steps == 5) or Good.step(self, action)
)
Lists = changed(obs=lambda self: Good.obs(self).tolist())
Doubles = changed(obs=lambda self: Good.obs(self).astype(np.float64))
Once = changed(  # environment 1 is only asked for its spaces
    step=lambda self, action: fails(self, RuntimeError, "a hiccup", self.number == 2 and self.steps == 3)
    or Good.step(self, action)
)
Hangs = changed(step=lambda self, action: time.sleep(60))
HangsAtFirst = changed(__init__=lambda self: ctypes.PyDLL(None).sleep(60))  # Python can't interrupt this call
HangsAtReset = changed(reset=lambda self, **options: time.sleep(60))
Aborts = changed(step=lambda self, action: os.abort())
AbortsAtFirst = changed(__init__=lambda self: os.abort())
AbortsLate = changed(step=lambda self, action: os.abort() if self.steps == 59 else Good.step(self, action))
Faults = changed(reset=lambda self, **options: ctypes.string_at(0))
Ends = changed(step=lambda self, action: os._exit(3))
EndsAtFirst = changed(__init__=lambda self: os._exit(0))
LeavesAtFirst = changed(__init__=lambda self: sys.exit(3))


class OnlyOne(Good):
    alive = 0

    def __init__(self):
        super().__init__()
        fails(self, RuntimeError, "the port is in use", type(self).alive)
        type(self).alive += 1

    def close(self):
        type(self).alive -= 1
"""

BROKEN = {
    "NoneReset": "reset gave None; Gymnasium's gives observation, info: return obs, {}",
    "NoneStep": "step gave None; Gymnasium's gives observation, reward, terminated, truncated, info",
    "OldReset": "reset gave an observation alone (ndarray); Gymnasium's gives observation, info",
    "NoSeed": "; write def reset(self, *, seed=None, options=None)",
    "OldStep": "step gave too few values; Gymnasium's gives observation, reward, terminated, truncated, info",
    "InfoThird": "step gave {} as truncated, which must be true or false",
    "NoReward": "step gave None as reward, which must be a number",
    "ArrayReward": "step gave array([0.]) as reward, which must be a number; write reward.item()",
    "SharesOfBytes": "observation of float32 has values that uint8, its space's type, does not have",
    "NoPart": "observation has no 'goal'",
    "Outside": "observation is outside its space",
    "Exits": "step raised SystemExit: 3",
    "SecondReset": "reset raised RuntimeError: only once",
    "SixthStep": "step raised RuntimeError: worn out (dry_envs.py:41), at step 6 of a trial with random actions",
    "OnlyOne": "its constructor raised RuntimeError: the port is in use",
    "Hangs": "step hung for more than 0.5 s (worker.step_timeout_s) (dry_envs.py:",
    "HangsAtFirst": "its constructor hung for more than 0.5 s (worker.step_timeout_s) (dry_envs.py:",
    "HangsAtReset": "reset hung for more than 0.5 s (worker.step_timeout_s) (dry_envs.py:",
    "Aborts": "step ended the process by SIGABRT (Aborted) (dry_envs.py:",
    "AbortsAtFirst": "its constructor ended the process by SIGABRT (Aborted) (dry_envs.py:",
    "AbortsLate": "), at step 60 of a trial with random actions",
    "Faults": "reset ended the process by SIGSEGV (Segmentation fault) (dry_envs.py:",
    "Ends": "step ended the process with exit code 3",
    "EndsAtFirst": "its constructor ended the process with exit code 0",
    "LeavesAtFirst": " raised SystemExit: 3 (dry_envs.py:",
}
ODD = {
    "Lists": "observations are lists, not arrays",
    "TooLarge": "observation[2] is 3.25, outside its Box [-1, 1]",
    "Doubles": "observations are float64 and the space says float32; they are cast",
    "Once": "a hiccup (dry_envs.py:41), in a trial; in a run, the environment would be rebuilt",
}

REFUSED = {
    ("trainer.batch_size=301",): "trainer.batch_size=301 is above total_env_steps=300",
    ("orchestrator.sample_insert_ratio=1e-3",): "is below 1 at total_env_steps=300: no update would ever be made",
    ("network=cnn",): "network.torso=cnn",
    ("network=lstm",): "say replay=sequences",
    ("+optimizer.kwargs.rho=1",): "optimizer.kwargs.rho: adam has no such option",
    ("network=dry_nets:Raises",): "dry_nets raised ValueError: no such layer",
}
PASSED = [
    pytest.param(("orchestrator.min_inserts=299", "orchestrator.sample_insert_ratio=1"), marks=pytest.mark.exhaustive),
    pytest.param(("algo=ppo", "trainer.batch_size=64", "algo.minibatch_size=48"), marks=pytest.mark.exhaustive),
    ("replay=prioritized", "algo.n_step=5", "env.normalize_obs=true"),
]
ALGOS = """from my_algo import *


class {kind}({kind}):
    def {method}(self, *args):
        print(args[0].lost)
"""
BROKEN_METHODS = {"update": "Algorithm", "act": "Policy", "greedy": "Policy", "explore": "Policy"}
NETS = """
import torch
from drl_cli.networks.torsos import *


class Raises(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        raise ValueError("no such layer")
"""
STEPS = "total_env_steps=300"


@pytest.fixture
def check(composed, tiny, tmp_path, monkeypatch, capsys):
    """Run the checks of a dry run and return its warnings."""
    (tmp_path / "dry_envs.py").write_text(ENVS)
    (tmp_path / "dry_nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "dry_envs", raising=False)  # its classes count

    def check_it(*overrides):
        from drl_cli.errors import users_errors

        args = ("tuned=none", *tiny, STEPS, f"output_dir={tmp_path}", "dry_run=true", *overrides)
        config = fill(build(composed(*args)))
        with users_errors(config.outside_modules):
            try_update(config, preflight(config))
        return capsys.readouterr().err

    return check_it


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_environment_is_refused(check, name):
    timeout = ("worker.step_timeout_s=0.5",) if "Hangs" in name else ()
    with pytest.raises(UsageError) as refused:
        check(f"env=dry_envs:{name}", *timeout)
    assert refused.value.exit_code == USER_CODE
    (problem,) = refused.value.problems
    assert problem.startswith(f"dry_envs:{name}")
    assert BROKEN[name] in problem
    has_no_traceback = "ended the process" in problem or "hung" in problem
    assert (refused.value.__cause__ is None) == has_no_traceback


@pytest.mark.slow
@pytest.mark.parametrize("name", some(ODD, "Lists", "Once"))
def test_an_odd_environment_gives_one_warning_and_runs(check, train_here, name):
    printed = check(f"env=dry_envs:{name}")
    assert printed.count("warning: ") == printed.count(ODD[name]) == 1
    summary, _ = train_here(f"env=dry_envs:{name}", "tuned=none", STEPS)
    assert (summary["status"], summary["env_steps"] >= 200) == ("done", True)
    assert summary["opt_steps"] > 0


@pytest.mark.slow
def test_episodes_that_may_never_end_give_a_warning(check):
    note = (
        "warning: dry_envs:Endless: no episode ended in 200 steps; "
        "if episodes never end, say env.max_episode_steps=1000 manage.max_episode_steps=1000, "
        "so that training sees the start again, and evaluations end\n"
    )
    assert check("env=dry_envs:Endless", "env.max_episode_steps=null", "tuned=sac-mujoco") == note
    assert check("env=dry_envs:Endless", "env.max_episode_steps=null") == ""  # without tuned values, episodes are cut
    assert check("env=dry_envs:Endless", "env.max_episode_steps=50") == ""


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_a_config_that_would_fail_is_refused(check, overrides):
    with pytest.raises(UsageError) as refused:
        check("env=Pendulum-v1", *overrides)
    assert REFUSED[overrides] in "\n".join(refused.value.problems)


@pytest.mark.parametrize("method", BROKEN_METHODS)
def test_a_bug_in_the_users_algorithm_is_found_with_its_line(check, tmp_path, monkeypatch, method):
    module = f"dry_{method}"
    monkeypatch.syspath_prepend("tests/support/outside")
    (tmp_path / f"{module}.py").write_text(ALGOS.format(kind=BROKEN_METHODS[method], method=method))
    with pytest.raises(UsageError) as refused:
        check("env=CartPole-v1", f"algo={module}")
    assert refused.value.exit_code == USER_CODE
    (problem,) = refused.value.problems
    assert re.search(rf"{module}\b.* raised AttributeError: .* 'lost' \({module}\.py:6\)$", problem)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", PASSED, ids=" ".join)
def test_a_config_that_passes_makes_an_update(check, train_here, overrides):
    assert check("env=Pendulum-v1", *overrides) == ""
    summary, _ = train_here("env=Pendulum-v1", "tuned=none", STEPS, *overrides)
    assert (summary["status"], summary["env_steps"] >= 200) == ("done", True)
    assert summary["opt_steps"] > 0


def test_a_run_is_tried_before_its_folder_is_made(train_here, tmp_path, check):
    with pytest.raises(UsageError, match="dry_envs:OldStep: step gave too few values"):
        train_here("env=dry_envs:OldStep")
    assert not list(tmp_path.glob("dry_envs*/*"))


def test_a_slow_first_update_does_not_count(check, monkeypatch):
    train, left = Trainer.train, [3.0]

    def slow_at_first(self, header, columns):
        report, priority = train(self, header, columns)
        return dataclasses.replace(report, seconds=left.pop() if left else report.seconds), priority

    monkeypatch.setattr(Trainer, "train", slow_at_first)
    assert check("env=Pendulum-v1") == ""
    assert not left


def test_a_dry_run_compiles_nothing(check, monkeypatch):
    compilation = without_compiler(monkeypatch)
    words = ("env=Pendulum-v1", "mode=single", "trainer.compile=true", "trainer.batch_size=8")
    check(*words)
    assert compilation.made == 0


def test_a_slow_update_gives_a_warning_with_its_time(check, monkeypatch, composed):
    monkeypatch.setattr("drl_cli.preflight.algorithm.SLOW_S", 0.0)
    assert check("env=Pendulum-v1", "trainer.batch_size=100").startswith(
        "warning: one update of trainer.batch_size=100 takes about "
    )
    large = ("env=Pendulum-v1", f"trainer.batch_size={LARGE_BATCH + 1}", "replay.capacity=1e5", "total_env_steps=1e5")
    asked = []
    monkeypatch.setattr("drl_cli.preflight.algorithm.update_seconds", lambda config, spec: asked.append(config) or 1.0)
    for size in (LARGE_BATCH + 1, LARGE_BATCH):
        config = fill(build(composed("tuned=none", *large, f"trainer.batch_size={size}")))
        try_update(config, preflight(config))
    assert len(asked) == 1  # only an update above LARGE_BATCH is timed before every run
