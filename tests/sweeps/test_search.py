"""drl-train -m hpo=...: what is wrong is said before the first trial; a search that was killed goes on."""

import csv
import json
import signal

import pytest

pytest.importorskip("optuna")

from hpos import hpo

from drl_cli.errors import UsageError
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.settings.space import Choice, Interval, space
from drl_cli.sweeps import launcher
from drl_cli.sweeps.hpo import write_best
from drl_cli.sweeps.multirun import run_sweep
from drl_cli.sweeps.study import Study
from drl_cli.sweeps.sweep import Sweep

LR = "algo.lr=tag(log,interval(1e-4,3e-3))"


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("x=interval(0,1)", Interval(0, 1)),
        (LR, Interval(1e-4, 3e-3, is_log=True)),
        ("x=int(interval(1,8))", Interval(1, 8, is_int=True)),
        ("x=int(tag(log,interval(1,8)))", Interval(1, 8, is_log=True, is_int=True)),
        ("x=range(1,9,2)", Interval(1, 7, is_int=True, step=2)),
        ("x=choice([64,64],[256])", Choice(("[64,64]", "[256]"))),
        ("x=a:B-v0,b", Choice(("a:B-v0", "b"))),
    ],
)
def test_what_a_search_may_choose_from(text, domain):
    key = text.partition("=")[0]
    assert space(["seed=3", text]) == (["seed=3"], {key: domain})


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "hpo: nothing to search"),
        (["algo.lrr=interval(1,2)"], "algo.lrr: sac has no option 'lrr'"),
        (["algo.lr=interval(-1,1)"], "algo.lr: must be > 0, got -1"),
        (["algo.gamma=interval(0.9,2)"], "algo.gamma: "),
        (["algo.lr=interval(1,0)"], "an interval goes from a number to a higher one"),
        (["algo.lr=tag(log,interval(0,1))"], "begins above 0"),
        (["algo.lr=tag(exp,interval(1,2))"], "no tag 'exp'"),
        (["algo.lr=tag(log,choice(1,2))"], "tag(log, ...) is for an interval"),
        (["algo.lr=interval(1,"], "can't be read; a search takes"),
        (["trainer.batch_size=interval(8,64)"], "trainer.batch_size: must be a whole number"),
        (["network.hidden=choice([64],x)"], "network.hidden: must be a list"),
        (["seed=range(0,3)", LR], "hpo.seeds=3"),
        ([LR, "hpo.trials=0"], "hpo.trials: must be >= 1"),
        ([LR, "hpo.trial=3"], "Did you mean hpo.trials"),
        ([LR, "hpo.pruner=mean"], "hpo.pruner: 'mean' is not one of none, median, halving"),
        (["hpo=cma", "network.hidden=choice([64],[32])"], "hpo=cma searches numbers"),
        ([LR, "hpo.members=4"], "hpo.members: is of hpo=pbt, not of a search"),
        ([LR, "hpo.sampler=gp"], "hpo.sampler: say hpo=gp"),
        (["hpo=tpee", LR], "no hpo option 'tpee'. Did you mean tpe?"),
    ],
)
def test_a_wrong_search_is_answered_before_the_first_trial(args, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "subprocess", None)  # no job is started
    named = [] if any(arg.startswith("hpo=") for arg in args) else ["hpo=tpe"]

    def search():
        command = read_command(["-m", *named, "env=Pendulum-v1", *args])
        check_command(command)
        run_sweep(command)

    with pytest.raises(UsageError) as raised:
        search()
    assert raised.value.exit_code == 2
    assert says in "\n".join(raised.value.problems)
    assert list(tmp_path.iterdir()) == []


def test_a_search_needs_many_runs(drl, tmp_path):
    done = drl("train", "hpo=tpe", "algo.lr=1e-3", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: hpo searches over many runs: say -m, and what to search: drl-train -m hpo=tpe ...\n"


def test_all_checks_at_the_ends_of_the_space(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    args = ["-m", "hpo=tpe", "env=Pendulum-v1", LR, "network.hidden=choice([64],[32],[16])", "dry_run=true"]
    assert run_sweep(read_command(args)) == 0
    assert capsys.readouterr().out == "32 trials over algo.lr, network.hidden; all checks passed at 5 points\n"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A search of which no trial has begun, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "subprocess", None)  # no job is started
    sweep = Sweep(tmp_path, [])
    sweep.make_folder("outputs")
    fixed, domains = space(["env=Pendulum-v1", LR])
    Study(sweep.folder, domains, fixed, hpo("tpe", trials=4), 0).save()
    return sweep.folder


def test_what_is_left_of_a_search_can_be_checked_without_a_run(begun, capsys):
    for args, count in (([], 4), (["hpo.trials=1e2"], 100)):
        assert run_sweep(read_command(["-m", "resume=latest", "dry_run=true", *args])) == 0
        assert capsys.readouterr().out == f"0 of {count} trials begun; all checks passed\n"


def test_a_damaged_study_is_said_to_be(begun):
    (begun / "study.json").write_text('{"trials": []}')
    with pytest.raises(UsageError, match="can't be read") as raised:
        run_sweep(read_command(["-m", "resume=latest"]))
    assert raised.value.exit_code == 8


def test_the_seed_may_be_typed_as_any_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seeds = []
    monkeypatch.setattr("drl_cli.sweeps.hpo.search", lambda sweep, study, configs: seeds.append(study.seed) or 0)
    assert run_sweep(read_command(["-m", "hpo=tpe", "env=Pendulum-v1", "seed=1e3", LR])) == 0
    assert seeds == [1000]


def test_a_search_that_can_not_begin_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late_mod.py").write_text(
        "import gymnasium\ndef make(**_):\n    open('late.txt')\ngymnasium.register('Late-v0', make)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="no trial can run as long as that file is missing"):
        run_sweep(read_command(["-m", "hpo=tpe", "env=late_mod:Late-v0", LR]))
    assert "late.txt" in capsys.readouterr().err


def test_the_best_values_are_a_tuned_set(tmp_path, composed):
    write_best(tmp_path / "best.yaml", ["algo.lr=0.002", "network.hidden=[8,8]", "env.kwargs.g=9", "network=mlp"])
    text = (tmp_path / "best.yaml").read_text()
    assert text.splitlines()[:2] == ["# @package _global_", "# and on the command line: network=mlp"]
    assert "lr: 0.002" in text
    assert "kwargs:\n    g: 9" in text


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_search_that_was_killed_goes_on_and_ends_with_the_best_beside_the_defaults(start, drl, tiny, tmp_path):
    args = ("-m", "hpo=tpe", "hpo.trials=4", "hpo.fresh_seeds=1", "env=Pendulum-v1", "mode=single", *tiny, LR)
    search = start(*args)
    (study,) = (tmp_path / "outputs" / "multirun",)

    def trials():
        return [trial for file in study.glob("*/study.json") for trial in json.loads(file.read_text())["trials"]]

    search.until(lambda: sum(trial["state"] == "done" for trial in trials()) >= 1)
    search.process.send_signal(signal.SIGKILL)
    search.kill_all()
    before = [trial["values"] for trial in trials()]
    again = drl("train", "-m", "resume=latest", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(trials()) == 4
    assert [trial["values"] for trial in trials()][: len(before)] == before
    assert {trial["state"] for trial in trials()} == {"done"}
    assert len(list(tmp_path.glob("outputs/*/*/*/run.json"))) == 6
    assert "best on 1 fresh seeds: -" in again.stdout
    assert "defaults on 1 fresh seeds: -" in again.stdout
    (folder,) = study.iterdir()
    with (folder / "trials.csv").open() as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["done"] * 4
    assert (folder / "best_overrides.yaml").read_text().startswith("# @package _global_\nalgo:\n  lr: 0.00")
    more = drl("train", "-m", "resume=latest", "hpo.trials=5", cwd=tmp_path)
    assert (more.returncode, len(trials())) == (0, 5)
    wrong = drl("train", "-m", "resume=latest", "algo.lr=1,2", cwd=tmp_path)
    assert (wrong.returncode, "leave algo.lr=1,2 out" in wrong.stderr) == (2, True)
