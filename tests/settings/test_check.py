import os
import re
import sys

import pytest

from drl_cli.algos.off_policy.sac import Config as SacConfig
from drl_cli.errors import UsageError
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import for_hydra, read_command
from drl_cli.settings.compose import compose
from drl_cli.settings.description import keys_of

KEYS = keys_of(SacConfig)
GROUPS = sorted({key.group for key in KEYS.values()} - {""})
LEAVES = sorted(key for key in KEYS if key not in GROUPS)


def problems_of(*args):
    """Return the error lines of a command line."""
    try:
        check_command(read_command(args))
    except UsageError as error:
        return error.problems
    return []


@pytest.mark.parametrize("key", LEAVES)
def test_a_mistyped_key_names_the_nearest(key):
    (problem,) = problems_of(f"{key}x=1")
    assert re.search(rf"Did you mean .*\b{re.escape(key)}\b", problem), problem


@pytest.mark.parametrize("key", ["algo.lr.x", "algo.lr.kwargs", "network.hidden.0", "seed.x", "env.id.kwargs.x"])
def test_nothing_is_below_a_value(key):
    (problem,) = problems_of(f"{key}=1")
    assert problem.startswith(f"{key}: ")
    assert "has no option" in problem


@pytest.mark.parametrize(
    ("arg", "says"),
    [
        ("algo.lr=0", "algo.lr: must be > 0, got 0"),
        ("algo.lr=nan", "algo.lr: must be a number"),
        ("hydra.verbose=true", "hydra.verbose: this setting of the config system has no effect; say DRL_DEBUG=1"),
        ("algo.n_step=1.5", "algo.n_step: must be a whole number, got 1.5"),
        ("total_env_steps=-1e6", "total_env_steps: must be >= 1"),
        ("dry_run=maybe", "dry_run: must be true or false, got 'maybe'"),
        ("orchestrator.limiter=off", "orchestrator.limiter: false is not one of ratio, none"),
        ("network.hidden=[256,0]", "network.hidden[1]: must be >= 1, got 0"),
        ("env.kwargs=5", "env.kwargs: must be a mapping"),
        ("env.id=5", "env.id: must be text, got 5"),
        ("stop.return=[200]", "stop.return: must be a number, got [200]"),
    ],
)
def test_a_wrong_value_names_its_key_and_what_it_must_be(arg, says):
    (problem,) = problems_of(arg)
    assert problem.startswith(says)


@pytest.mark.parametrize(
    "arg",
    ["total_env_steps=1e6", "replay.capacity=2.5e5", "seed=0", "algo.lr=1", "worker.num=null", "stop.return=-200",
     "+env.kwargs.gravity=-5", "env=Pendulum-v1", "env=drl_cli.envs.probes:Counter-v0", "tuned=none", "algo.gamma=1",
     "hydra.searchpath=[pkg://hydra.conf]", "network.hidden=[64,64]", "algo.lr=${algo.alpha_lr}"],
)  # fmt: skip
def test_a_right_argument_passes(arg):
    assert problems_of(arg) == []


def test_a_sweep_checks_keys_and_choices_and_leaves_lists_of_values():
    lists = ("seed=0,1", "algo.lr=3e-4,1e-3", "env=Pendulum-v1,LunarLanderContinuous", "mode=sync,async")
    assert problems_of("-m", *lists) == []
    (problem,) = problems_of("-m", "algo.lrr=3e-4,1e-3")
    assert "algo.lr?" in problem
    (problem,) = problems_of("-m", "mode=sync,asink")
    assert "'asink'" in problem


def test_no_module_of_the_user_is_imported_to_see_whether_it_is_there(tmp_path, monkeypatch):
    (tmp_path / "module_with_effect.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert problems_of("env=module_with_effect:Env-v0", "algo=sac") == []  # without algo, its action space is needed
    assert "module_with_effect" not in sys.modules
    assert os.listdir(tmp_path) == ["module_with_effect.py"]


def test_ids_that_gymnasium_does_not_have_wait_for_envpool():
    assert problems_of("env=Pong-v5", "env.backend=envpool") == []
    (problem,) = problems_of("env=Pong-v5", "env.backend=gymnasium")
    assert problem.startswith("no environment 'Pong-v5'.")
    (problem,) = problems_of("env.backend=envpol")
    assert problem == "env.backend: 'envpol' is not one of gymnasium, envpool, ale. Did you mean envpool?"


def test_keys_of_mappings_that_take_any_need_no_plus():
    config = compose(["env=Pendulum-v1", "env.kwargs.g=5.0", "optimizer=sgd", "optimizer.kwargs.momentum=0.5"])
    assert config.env.kwargs == {"g": 5.0}
    assert config.optimizer.kwargs == {"momentum": 0.5}
    assert for_hydra(["+env.kwargs.g=1", "resume=12"]) == ["++env.kwargs.g=1", "++resume='12'"]
