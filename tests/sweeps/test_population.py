"""drl-train -m hpo=pbt: what is wrong is said before the first member; one that was killed ends as one that was not."""

import csv
import json
import signal

import pytest
from hpos import hpo
from processes import SMALL

from drl_cli.errors import UsageError
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.settings.space import space
from drl_cli.sweeps import launcher
from drl_cli.sweeps import pbt as cli_population
from drl_cli.sweeps.multirun import run_sweep
from drl_cli.sweeps.pbt import close, write_turns
from drl_cli.sweeps.population import Population
from drl_cli.sweeps.sweep import Sweep

LR = "algo.lr=tag(log,interval(1e-4,3e-3))"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "hpo: nothing to change"),
        (["algo.lrr=interval(1,2)"], "algo.lrr: sac has no option 'lrr'"),
        (["algo.lr=interval(-1,1)"], "algo.lr: must be > 0, got -1"),
        (["algo.lr=interval(1,0)"], "an interval goes from a number to a higher one"),
        (["trainer.batch_size=interval(8,64)"], "trainer.batch_size: must be a whole number"),
        (["seed=range(0,3)", LR], "seed: every member has its own"),
        (["total_env_steps=choice(1000,2000)", LR], "total_env_steps: every member has its own"),
        (["network.hidden=choice([64],[32])"], "network.hidden: can't change while a member trains"),
        (["algo=choice(sac,ppo)"], "algo: can't change while a member trains"),
        (["env.kwargs.g=interval(1,10)"], "env.kwargs.g: can't change while a member trains"),
        (["worker.num=range(1,4)"], "worker.num: changes nothing that is learned"),
        (["checkpoint.replay=choice(on,off)"], "checkpoint.replay: changes nothing that is learned"),
        ([LR, "stop.return=-200"], "stop.return: a population's members train for as long as each other"),
        ([LR, "stop.wall_s=9"], "stop.wall_s: a population's members"),
        ([LR, "hpo.members=1"], "hpo.members: must be >= 2"),
        ([LR, "hpo.rounds=0"], "hpo.rounds: must be >= 1"),
        ([LR, "hpo.rounds=5000", "total_env_steps=4000"], "hpo.rounds=5000: more than total_env_steps=4000"),
        ([LR, "hpo.quantile=0.6"], "hpo.quantile: must be > 0 and <= 0.5"),
        ([LR, "hpo.resample=2"], "hpo.resample: must be >= 0 and <= 1"),
        ([LR, "hpo.trials=3"], "hpo.trials: is of a search, not of hpo=pbt"),
        ([LR, "hpo.pruner=median"], "hpo.pruner: is of a search, not of hpo=pbt"),
        ([LR, "hpo.sampler=tpe"], "hpo.sampler: say hpo=tpe"),
        ([LR, "hpo.member=3"], "Did you mean hpo.members"),
    ],
)
def test_a_wrong_population_is_answered_before_the_first_member(args, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "subprocess", None)  # no job is started

    def train():
        command = read_command(["-m", "hpo=pbt", "env=Pendulum-v1", *args])
        check_command(command)
        run_sweep(command)

    with pytest.raises(UsageError) as raised:
        train()
    assert raised.value.exit_code == 2
    assert says in "\n".join(raised.value.problems)
    assert list(tmp_path.iterdir()) == []


def test_all_checks_without_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    args = ["-m", "hpo=pbt", "env=Pendulum-v1", "total_env_steps=1e4", "hpo.rounds=3", LR, "dry_run=true"]
    assert run_sweep(read_command(args)) == 0
    said = "8 members, 3 rounds of 3,334 env steps over algo.lr; all checks passed at 3 points\n"
    assert capsys.readouterr().out == said
    assert list(tmp_path.iterdir()) == []


def test_a_population_begins_with_what_was_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = []
    monkeypatch.setattr(cli_population, "train", lambda sweep, population, configs: begun.append(population) or 0)
    args = ["seed=5", "total_env_steps=10000", "hpo.rounds=4", "hpo.members=3", "mode=single", LR]
    assert run_sweep(read_command(["-m", "hpo=pbt", "env=Pendulum-v1", *args])) == 0
    (population,) = begun
    assert (population.seed, population.round_steps, len(population.turns)) == (5, 2500, 3)
    assert population.fixed == ["env=Pendulum-v1", "mode=single"]
    assert list(population.space) == ["algo.lr"]
    assert Population.open(population.folder).rounds == population.rounds


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A population of which no member has been started, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "subprocess", None)  # no job is started
    sweep = Sweep(tmp_path, [])
    sweep.make_folder("outputs")
    fixed, domains = space(["env=Pendulum-v1", LR])
    population = Population(sweep.folder, domains, fixed, hpo("pbt", members=2, rounds=4), seed=0, round_steps=100)
    population.save()
    return population


def test_what_is_left_can_be_checked_without_a_run(begun, capsys):
    for args, count in (([], 4), (["hpo.rounds=6"], 6)):
        assert run_sweep(read_command(["-m", "resume=latest", "dry_run=true", *args])) == 0
        assert capsys.readouterr().out == f"1 of {count} rounds begun; all checks passed\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["algo.lr=1,2"], "a population goes on with its own keys, and hpo.rounds: leave algo.lr=1,2 out"),
        (["hpo.members=4"], "hpo.members: can't change any more; hpo.rounds can"),
        (["hpo.rounds=x"], "hpo.rounds: "),
    ],
)
def test_a_wrong_resume_is_answered_before_the_first_member(begun, args, says):
    with pytest.raises(UsageError) as raised:
        run_sweep(read_command(["-m", "resume=latest", *args]))
    assert says in "\n".join(raised.value.problems)


def test_a_damaged_population_is_said_to_be(begun):
    (begun.folder / "population.json").write_text('{"rounds": [1]}')
    with pytest.raises(UsageError, match="can't be read") as raised:
        run_sweep(read_command(["-m", "resume=latest"]))
    assert raised.value.exit_code == 8


def test_the_end_says_how_the_best_came_about(begun, capsys):
    for score, turn in zip((1, 2), begun.turns, strict=True):
        turn.values, turn.score, turn.state, turn.env_steps = {"algo.lr": score / 1000}, score, "done", 100
    begun.next_round([True, True])
    for score, turn in zip((5, None), begun.turns, strict=True):
        turn.score, turn.state, turn.env_steps = score, "done" if score else "failed", 200
    begun.turns[0].values = {"algo.lr": 0.0024}
    sweep = Sweep.open(begun.folder)
    sweep.add([["seed=0"], ["seed=1"]])
    write_turns(begun)
    assert close(sweep, begun) == 0
    said = capsys.readouterr()
    assert "0 to        100 env steps  member 2  2.0  algo.lr=0.002" in said.out
    assert "100 to        200 env steps  member 1  5.0  algo.lr=0.0024" in said.out
    assert said.err == "warning: failed in the last round: member 2\n"
    assert (begun.folder / "schedule.csv").read_text().split() == ["from_env_steps,algo.lr", "0,0.002", "100,0.0024"]
    assert (begun.folder / "best_overrides.yaml").read_text() == "# @package _global_\nalgo:\n  lr: 0.0024\n"
    with (begun.folder / "population.csv").open() as file:
        rows = [
            (row["round"], row["member"], row["source"], row["state"], row["score"]) for row in csv.DictReader(file)
        ]
    assert rows == [("1", "1", "", "done", "1"), ("1", "2", "", "done", "2"),
                    ("2", "1", "2", "done", "5"), ("2", "2", "", "failed", "")]  # fmt: skip


JOB = (*SMALL, "mode=single", "debug.in_process=true", "seed=3", "total_env_steps=800", LR)
PBT = ("-m", "hpo=pbt", "hpo.members=2", "hpo.rounds=2", *JOB)


def turns(cwd):
    (file,) = cwd.glob("outputs/multirun/*/population.json")
    return json.loads(file.read_text())["rounds"]


def outcome(cwd):
    """The turns of a population that is done, and each member's last model."""
    runs = sorted(path.parent for path in cwd.glob("outputs/*/*/*/run.json"))
    models = [(run / "checkpoints/last/model.safetensors").read_bytes() for run in runs]
    return turns(cwd), sorted(models)


def has_begun_to_train(cwd):
    return any(cwd.glob("outputs/*/*/*/checkpoints/last"))


def is_in_the_second_round(cwd):
    return len(turns(cwd)) == 2


def trains_in_the_second_round(cwd):
    return any("resumed" in json.loads(file.read_text()) for file in cwd.glob("outputs/*/*/*/run.json"))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_population_that_was_killed_again_and_again_ends_as_one_that_was_not(start, drl, tmp_path_factory):
    quiet, here = tmp_path_factory.mktemp("quiet"), tmp_path_factory.mktemp("here")
    done = drl("train", *PBT, cwd=quiet)
    assert done.returncode == 0, done.stderr
    assert [turn["source"] is not None for turn in turns(quiet)[1]].count(True) == 1
    args = PBT
    for moment in (has_begun_to_train, is_in_the_second_round, trains_in_the_second_round):
        population = start(*args, cwd=here)
        population.until(lambda moment=moment: moment(here))
        population.process.send_signal(signal.SIGKILL)
        population.kill_all()
        args = ("-m", "resume=latest")
    again = drl("train", *args, cwd=here)
    assert again.returncode == 0, again.stderr
    assert outcome(here) == outcome(quiet)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_member_that_diverges_goes_on_from_another(drl, tmp_path):
    done = drl("train", *PBT, "algo.gamma=choice(0.9,0.99)", "env.reward_scale=1e38", cwd=tmp_path)
    assert (done.returncode, "no member was done" in done.stderr) == (10, True)
    assert {turn["state"] for turn in turns(tmp_path)[0]} == {"failed"}
