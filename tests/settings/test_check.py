"""What drl-train answers to a wrong command line, before Hydra, torch and Ray."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from drl_cli.algos.sac import Config as SacConfig
from drl_cli.errors import UsageError
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import for_hydra, read_command
from drl_cli.settings.compose import compose
from drl_cli.settings.conf import groups, options
from drl_cli.settings.description import keys_of

KEYS = keys_of(SacConfig)
GROUPS = sorted({key.group for key in KEYS.values()} - {""})
LEAVES = sorted(key for key in KEYS if key not in GROUPS)

ERRORS = [
    ("algo=sca", r"unknown algorithm 'sca'\. Did you mean 'sac'\? +available: .*sac"),
    ("algo.lrr=1e-3", r"algo\.lrr: sac has no option 'lrr'\. Did you mean algo\.lr\?"),
    ("lr=1e-3", r"lr: no such option at the top level\. Did you mean algo\.lr\?"),
    ("env=LunarLaner", r"no environment 'LunarLaner'\. Did you mean LunarLander, LunarLanderContinuous\?"),
    ("env=Pendulum-v2", r"no environment 'Pendulum-v2'\. Did you mean .*Pendulum-v1"),
    ("env=no_such_module:Env-v0", r"no environment 'no_such_module:Env-v0': .*no_such_module"),
    ("mode=asink", r"no mode option 'asink'\. Did you mean async\? +available: async, single, sync"),
    ("tuned=sac-Pendulum", r"no set of tuned values 'sac-Pendulum'\. Did you mean sac-Pendulum-v1\?"),
    ("network.torso=cnnn", r"network\.torso: must be auto, mlp, cnn, resnet, multi, or a class of yours .*, got cnnn"),
    ("network.dropout=1", r"network\.dropout: must be >= 0 and < 1, got 1"),
    ("worker=big", r"no worker option 'big'\. +available: default"),
    ("replay.alpha=0.5", r"replay\.alpha: only replay=prioritized and replay=sequences have this option"),
    ("replay=prioritised", r"no replay option 'prioritised'\. Did you mean prioritized\?"),
    ("+algo.foo=1", r"algo\.foo: sac has no option 'foo'"),
    ("seed", r".*seed.*"),
    ("=3", r"'=3' is not of the form key=value"),
    ("algo.lr=[1", r".*\[1.*"),
    ("~algo.lr", r"algo\.lr: is missing"),
    ("algo.name=sca", r"unknown algorithm 'sca'\. Did you mean 'sac'\?"),
]

SPACE_ERROR = (
    r"SAC needs a continuous \(Box\) action space; CartPole-v1 has Discrete\(2\)\. "
    r"For this: algo=c51 or algo=dqn or algo=iqn or algo=ppo or algo=qr_dqn or algo=sac_discrete$"
)


def problems_of(*args):
    """Error lines of a command line; none where it is right."""
    try:
        check_command(read_command(args))
    except UsageError as error:
        return error.problems
    return []


def assert_one_error(done, code, pattern):
    lines = done.stderr.splitlines()
    assert done.returncode == code, done.stderr
    assert len(lines) == 1, lines
    assert re.match(f"error: {pattern}", lines[0]), lines[0]
    assert done.stdout == ""


@pytest.mark.parametrize(("arg", "pattern"), ERRORS, ids=[arg for arg, _ in ERRORS])
def test_error_of_one_line_with_exit_code_2(drl, tmp_path, arg, pattern):
    assert_one_error(drl("train", arg, cwd=tmp_path), 2, pattern)
    assert list(tmp_path.iterdir()) == []


def test_discrete_actions_are_refused_with_what_the_space_is(drl, tmp_path):
    assert_one_error(drl("train", "env=CartPole-v1", cwd=tmp_path), 2, SPACE_ERROR)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("mujoco") is not None, reason="mujoco is installed here")
def test_a_missing_extra_is_named_with_its_pip_command(drl, tmp_path):
    assert_one_error(drl("train", "env=Ant-v5", cwd=tmp_path), 3, r"Ant-v5 needs MuJoCo:  pip install '.+\[mujoco\]'")


def test_all_problems_of_a_command_line_at_once(drl, tmp_path):
    args = ["algo.lrr=1", "seed=-1", "mode=asink", "worker.num=many", "sed=1", "env=LunarLaner", "tuned=best", "=1"]
    done = drl("train", *args, cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == len(args)
    assert all(line.startswith("error: ") for line in lines)
    wanted = ["algo.lrr", "seed: must be >= 0, got -1", "asink", "worker.num", "sed:", "LunarLaner", "best", "'=1'"]
    assert all(any(part in line for line in lines) for part in wanted), lines


def test_an_unknown_algorithm_hides_no_other_problem():
    problems = problems_of("algo=sca", "worker.num=many", "trainer.batch_sizes=3")
    assert len(problems) == 3, problems


def test_config_errors_import_neither_torch_nor_ray(drl, tmp_path):
    """In one process, so that an import shows at the command that made it."""
    args = ["--help", "replay.capacity=1", "env=CartPole-v1", *[arg for arg, _ in ERRORS]]
    commands = [[arg] for arg in sorted(args, key=lambda arg: arg.startswith("env"))]
    script = f"""
import sys
from drl_cli.cli.train import main
for args in {commands!r}:
    sys.argv = ["drl-train", *args]
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, (args, end.code)
    late = {{"torch", "ray"}} if args[0].startswith("env") else {{"torch", "ray", "gymnasium"}}
    assert not late & set(sys.modules), (args, late & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arg", ["--help", "algo.lrr=1"])
def test_an_answer_imports_little(tmp_path, arg):
    """What it imports is what it takes: 300 modules are a quarter of a second here, Hydra alone would be as much."""
    script = f"""
import sys
from drl_cli.cli.train import main
sys.argv = ["drl-train", {arg!r}]
try:
    main()
finally:
    heavy = {{"torch", "ray", "gymnasium", "hydra", "omegaconf"}} & set(sys.modules)
    print("modules", len(sys.modules), *heavy)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    word, num_modules, *heavy = done.stdout.splitlines()[-1].split()
    assert (word, heavy) == ("modules", [])
    assert int(num_modules) < 420


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("sign", ["", "+", "++", "~"])
def test_an_unknown_key_is_an_error_in_every_group(group, sign):
    (problem,) = problems_of(f"{sign}{group}.nosuchkey=1")
    assert problem.startswith(f"{group}.nosuchkey: ")
    assert "has no option 'nosuchkey'" in problem


@pytest.mark.parametrize("key", LEAVES)
def test_a_mistyped_key_names_the_nearest(key):
    (problem,) = problems_of(f"{key}x=1")
    assert re.search(rf"Did you mean .*\b{re.escape(key)}\b", problem), problem


def test_a_key_without_its_group_names_the_full_one():
    for key in ("batch_size", "capacity", "eval_period", "sample_insert_ratio", "hidden"):
        (problem,) = problems_of(f"{key}=1")
        assert problem.startswith(f"{key}: no such option at the top level.")
        assert re.search(rf"\.{key}(=\[1\])?\?", problem)


@pytest.mark.parametrize("key", ["algo.lr.x", "algo.lr.kwargs", "network.hidden.0", "seed.x", "env.id.kwargs.x"])
def test_nothing_is_below_a_value(key):
    (problem,) = problems_of(f"{key}=1")
    assert problem.startswith(f"{key}: ")
    assert "has no option" in problem


@pytest.mark.parametrize("group", sorted(set(groups()) - {"env"}))
def test_an_unknown_choice_of_a_group_lists_what_there_is(group):
    (problem,) = problems_of(f"{group}=nosuchchoice")
    assert "'nosuchchoice'" in problem
    assert all(name in problem for name in options(group))


@pytest.mark.parametrize(
    ("arg", "says"),
    [
        ("algo.lr=fast", "algo.lr: must be a number, got 'fast'"),
        ("algo.lr=0", "algo.lr: must be > 0, got 0"),
        ("algo.lr=nan", "algo.lr: must be a number"),
        ("algo.lr=.inf", "algo.lr: must be a number"),
        ("algo.lr=true", "algo.lr: must be a number"),
        ("algo.lr=null", "algo.lr: must be a number"),
        ("algo.lr=3e-4,1e-3", "algo.lr=3e-4,1e-3: several values are a sweep, which needs -m"),
        ("network.hidden=64,64", "network.hidden: a list needs brackets: network.hidden=[64,64]"),
        ("hydra.verbose=true", "hydra.verbose: this setting of the config system has no effect; say DRL_DEBUG=1"),
        ("algo.gamma=1.01", "algo.gamma: must be >= 0 and <= 1, got 1.01"),
        ("algo.n_step=0", "algo.n_step: must be >= 1, got 0"),
        ("algo.n_step=1.5", "algo.n_step: must be a whole number, got 1.5"),
        ("total_env_steps=-1e6", "total_env_steps: must be >= 1"),
        ("total_env_steps=null", "total_env_steps: must be a whole number"),
        ("seed=1.5", "seed: must be a whole number, got 1.5"),
        ("dry_run=maybe", "dry_run: must be true or false, got 'maybe'"),
        ("dry_run=1", "dry_run: must be true or false, got 1"),
        ("device=gpu", "device: 'gpu' is not one of auto, cpu, cuda"),
        ("orchestrator.limiter=off", "orchestrator.limiter: False is not one of ratio, none"),
        ("orchestrator.gather_window_s=-1", "orchestrator.gather_window_s: must be >= 0, got -1"),
        ("ray.object_store_mb=1", "ray.object_store_mb: must be >= 80, got 1"),
        ("network.hidden=256", "network.hidden: must be a list, got 256"),
        ("network.hidden=[256,0]", "network.hidden[1]: must be >= 1, got 0"),
        ("network.activation=gelu", "network.activation: 'gelu' is not one of relu, tanh, elu"),
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
    assert problems_of("env=module_with_effect:Env-v0") == []
    assert "module_with_effect" not in sys.modules
    assert os.listdir(tmp_path) == ["module_with_effect.py"]


def test_a_mistyped_environment_is_compared_with_all_there_are():
    (problem,) = problems_of("env=MountainCarContinous-v0")
    assert "Did you mean MountainCarContinuous-v0" in problem
    (problem,) = problems_of("env=LunarLaner")
    assert problem.endswith("Did you mean LunarLander, LunarLanderContinuous?")


@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "sequences"])
def test_shards_can_be_set_where_a_table_may_have_several(sampler):
    assert problems_of(f"replay={sampler}", "replay.shards=3") == []


def test_without_envpool_the_extra_is_named(drl, tmp_path):
    (tmp_path / "envpool.py").write_text("raise ModuleNotFoundError(\"No module named 'envpool'\", name='envpool')")
    pattern = r"env\.backend=envpool needs EnvPool:  pip install 'drl-cli\[envpool\]'$"
    for env in ("LunarLanderContinuous", "Pong-v5"):  # the second one has no other backend
        assert_one_error(drl("train", f"env={env}", "env.backend=envpool", cwd=tmp_path), 3, pattern)
    assert not (tmp_path / "outputs").exists()


def test_ids_that_gymnasium_does_not_have_wait_for_envpool():
    assert problems_of("env=Pong-v5", "env.backend=envpool") == []
    (problem,) = problems_of("env=Pong-v5", "env.backend=gymnasium")
    assert problem.startswith("no environment 'Pong-v5'.")
    (problem,) = problems_of("env.backend=envpol")
    assert problem == "env.backend: 'envpol' is not one of gymnasium, envpool"


def test_keys_of_mappings_that_take_any_need_no_plus():
    config = compose(["env=Pendulum-v1", "env.kwargs.g=5.0", "optimizer=sgd", "optimizer.kwargs.momentum=0.5"])
    assert config.env.kwargs == {"g": 5.0}
    assert config.optimizer.kwargs == {"momentum": 0.5}
    assert for_hydra(["+env.kwargs.g=1", "resume=12"]) == ["++env.kwargs.g=1", "++resume='12'"]
