import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import drl_cli
from drl_cli.algos.off_policy.sac import Config as SacConfig
from drl_cli.errors import UsageError
from drl_cli.settings.build import keys_of
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import for_hydra, read_command
from drl_cli.settings.compose import compose
from drl_cli.settings.conf import conf_dir
from drl_cli.settings.options import parse
from drl_cli.utils.ranges import Count

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
        ("algo.lr=0", "algo.lr: must be > 0, got 0"), ("algo.lr=nan", "algo.lr: must be a number"),
        ("hydra.verbose=true", "hydra.verbose: this setting of the config system has no effect; say DRL_DEBUG=1"),
        ("algo.n_step=1.5", "algo.n_step: must be a whole number, got 1.5"),
        ("total_env_steps=-1e6", "total_env_steps: must be >= 1"),
        ("dry_run=maybe", "dry_run: must be true or false, got 'maybe'"),
        ("orchestrator.limiter=off", "orchestrator.limiter: false is not one of ratio, none"),
        ("network.hidden=[256,0]", "network.hidden[1]: must be >= 1, got 0"),
        ("env.kwargs=5", "env.kwargs: must be a mapping"), ("env.id=5", "env.id: must be text, got 5"),
        ("stop.return=[200]", "stop.return: must be a number, got [200]"),
    ],
)  # fmt: skip
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


def test_other_words_for_the_length_of_an_offline_run_name_its_updates():
    epoch = "; one epoch has (transitions in the dataset) / trainer.batch_size updates"
    for word, more in (("epochs", epoch), ("algo.n_epochs", epoch), ("timesteps", ""), ("total_steps", "")):
        (line,) = problems_of("mode=offline", "algo=bc", f"{word}=10")
        assert line == f"{word}: mode=offline counts gradient updates; say total_updates=N{more}"
    assert "total_updates" not in problems_of("algo=sac", "epochs=10")[0]
    assert "has no option 'epoch'" in problems_of("mode=offline", "algo=bc", "algo.epoch=10")[0]


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


@pytest.mark.slow
def test_keys_of_mappings_that_take_any_need_no_plus():
    config = compose(["env=Pendulum-v1", "env.kwargs.g=5.0", "optimizer=sgd", "optimizer.kwargs.momentum=0.5"])
    assert (config.env.kwargs, config.optimizer.kwargs) == ({"g": 5.0}, {"momentum": 0.5})
    assert for_hydra(["+env.kwargs.g=1", "resume=12"]) == ["++env.kwargs.g=1", "++resume='12'"]


SCRIPT = """
import sys
from drl_cli.cli.complete import completions
from drl_cli.cli.train import main
from drl_cli.settings.key_help import answer

print(*completions("drl-train worker.pat"), *completions("drl-train worker.patience=n"))
print(*answer(["worker.patience"]), *answer(["worker.patience", "format=markdown"]), sep="\\n")
for args in (["--help", "worker"], ["worker.patience=0"], ["worker.patienc=1"], ["patience=1"],
             ["explain=true", "env=Pendulum-v1", "worker.patience=5"]):
    sys.argv = ["drl-train", *args]
    try:
        main()
    except SystemExit as end:
        print("exit", end.code)
"""


@pytest.mark.slow
def test_a_new_key_appears_in_help_completion_explain_the_reference_page_and_its_errors(tmp_path):
    shutil.copytree(Path(drl_cli.__file__).parent, tmp_path / "drl_cli", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(conf_dir(), tmp_path / "conf")
    for file, before, line in (
        ("drl_cli/config/sections.py", "    step_timeout_s: Positive\n", "    patience: Count | None\n"),
        ("conf/worker/default.yaml", "step_timeout_s: ", "patience: 3  # how often a worker waits\n"),
    ):
        text = (tmp_path / file).read_text()
        assert text.count(before) == 1
        (tmp_path / file).write_text(text.replace(before, line + before))
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, env=env, capture_output=True, text=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["worker.patience=", "worker.patience=null"], done.stderr
    assert (
        rows.count(["worker.patience", "int", ">=", "1", "or", "null", "3", "how", "often", "a", "worker", "waits"])
        == 2
    )  # drl-list and --help
    assert "| `worker.patience` | `int >= 1 or null` | `3` | how often a worker waits |" in done.stdout
    assert ["worker.patience", "5", "command", "line", "was", "3", "(default,", "conf/worker/default.yaml)"] in rows
    assert done.stderr.splitlines() == [
        "error: worker.patience: must be >= 1, got 0",
        "error: worker.patienc: worker has no option 'patienc'. Did you mean worker.patience?",
        "error: patience: no such option at the top level. Did you mean worker.patience?",
    ]


@dataclass(frozen=True)
class Options:
    run: str
    episodes: Count = field(default=20, metadata={"help": "how many"})
    min_return: float | None = None
    fast: bool = False


def option_problems_of(*args, positional=None):
    with pytest.raises(UsageError) as caught:
        parse(args, Options, positional)
    assert caught.value.exit_code == 2
    return caught.value.problems


def test_values_are_typed_and_the_rest_keeps_its_default():
    assert parse(["run=a=b", "episodes=1e2", "fast=true"], Options) == Options("a=b", 100, None, True)
    assert parse(["run=1", "min_return=-2e2"], Options) == Options("1", 20, -200.0, False)


def test_a_bare_word_is_the_positional_option():
    assert parse(["latest", "episodes=3"], Options, "run") == Options("latest", 3)


def test_all_problems_at_once_with_the_nearest_name():
    problems = option_problems_of("episode=3", "episodes=0", "min_return=high", "fast=1")
    assert len(problems) == 5
    assert problems[0].startswith("episode: no such option. Did you mean episodes?")
    assert "options: run, episodes, min_return, fast" in problems[0]
    assert problems[1:4] == [
        "episodes: must be >= 1, got 0",
        "min_return: must be a number, got 'high'",
        "fast: must be true or false, got 1",
    ]
    assert problems[4].startswith("run: is missing")


def test_a_key_that_is_given_twice_is_a_warning(capsys):
    assert parse(["run=a", "episodes=2", "run=b", "c"], Options, "run").run == "c"
    assert capsys.readouterr().err == "warning: run is given 3 times; run=c counts\n"
    parse(["run=a", "episodes=2"], Options)
    assert capsys.readouterr().err == ""


def test_a_bare_word_without_a_positional_option_is_an_error():
    assert option_problems_of("run=x", "latest")[0].startswith("latest: no such option.")
    assert option_problems_of("run=x", "name=y")[0].startswith("name: no such option.")


@pytest.mark.parametrize("text", ["[1", "{", "'", "a: b: c"])
def test_text_that_is_no_yaml_is_an_error_of_the_user(text):
    (problem,) = option_problems_of("run=x", f"episodes={text}")
    assert problem.startswith("episodes: ")


@dataclass(frozen=True)
class Lists:
    runs: tuple[str, ...] = field(default=(), metadata={"help": "which"})
    png: str | None = "x.png"


@pytest.mark.parametrize(
    ("args", "runs"),
    [
        *[(["runs=[*a*,b/c*]"], ("*a*", "b/c*")), (["runs=['a b', \"c\"]"], ("a b", "c")), (["runs=a"], ("a",))],
        *[(["runs=a,b"], ("a", "b")), (["runs=[[ab]*,c]"], ("[ab]*", "c"))],
        *[(["a", "b*", "[c,d]"], ("a", "b*", "c", "d")), (["runs=[]"], ()), ([], ())],
    ],
)
def test_a_list_of_texts_takes_globs_and_bare_words(args, runs):
    assert parse(args, Lists, "runs").runs == runs


def test_null_is_no_text_where_there_may_be_none():
    assert parse(["png=null"], Lists).png is None
    assert (parse(["png=null.png"], Lists).png, parse(["run=null"], Options).run) == ("null.png", "null")
