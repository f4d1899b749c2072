"""The rounds of a population: what its members are told, what is copied, and that no round is lost or repeated."""

import json

import pytest
from hpos import hpo

from drl_cli.settings.space import Interval
from drl_cli.sweeps.population import Population
from drl_cli.sweeps.rounds import MOST_RESTARTS, Rounds
from drl_cli.sweeps.sweep import Sweep

SPACE = {"algo.lr": Interval(1e-4, 1e-2, is_log=True)}


@pytest.fixture
def rounds(tmp_path):
    """Of four members, in a folder of their own."""
    sweep = Sweep(tmp_path, ["--config-dir", "x"])
    sweep.make_folder(str(tmp_path))
    population = Population(
        sweep.folder, SPACE, ["env=A"], hpo("pbt", members=4, evaluations=2), seed=7, round_steps=100
    )
    population.save()
    return Rounds(sweep, population)


def reopen(rounds):
    """As a new process finds it."""
    return Rounds(Sweep.open(rounds.sweep.folder), Population.open(rounds.population.folder))


def play(rounds, number, returns, exit_code=0, env_steps=None):
    """A member's run to the end of the round, or to these steps: evaluations, a checkpoint, a summary."""
    job = rounds.sweep.jobs[number]
    run = rounds.sweep.folder.parent / f"run{number}"
    steps = rounds.population.goal + 4 if env_steps is None else env_steps
    folder = run / "checkpoints" / f"step_{steps}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text(f"of {number} at {steps}")
    (run / "checkpoints" / "last").unlink(missing_ok=True)
    (run / "checkpoints" / "last").symlink_to(folder.name)
    (run / "config.yaml").write_text("")
    scores = [f"{value},1,{steps - i}" for i, value in enumerate(reversed(returns))][::-1]
    file = run / "eval.csv"
    head = file.read_text() if file.exists() else "mean,wall_s,env_steps\n"
    file.write_text(head + "".join(f"{line}\n" for line in scores))
    rounds.sweep.file(job).write_text(json.dumps({"run": str(run)}))
    status = {0: "done", 5: "diverged"}.get(exit_code, "running")
    (run / "run.json").write_text(json.dumps({"status": status}))
    (run / "summary.json").unlink(missing_ok=True)
    if exit_code in (0, 5):
        (run / "summary.json").write_text(json.dumps({"exit_code": exit_code, "env_steps": steps}))
    job.run, job.exit_code = run, exit_code


def last(rounds, number):
    return (rounds.sweep.jobs[number].run / "checkpoints" / "last" / "weights").read_text()


def play_all(rounds):
    for number, value in enumerate((4, 1, 2, 3)):
        play(rounds, number, [value])
    rounds.end()


def test_the_first_round_begins_the_members_runs(rounds):
    jobs = rounds.begin()
    lrs = [turn.values["algo.lr"] for turn in rounds.population.turns]
    assert [job.arguments(rounds.sweep.flags) for job in jobs] == [
        ["--config-dir", "x", "env=A", f"algo.lr={lr:.6g}", f"seed={7 + i}", "total_env_steps=100"]
        for i, lr in enumerate(lrs)
    ]
    assert [job.status for job in jobs] == ["waiting"] * 4


def test_in_the_next_round_they_go_on_the_worst_from_a_copy_of_the_best(rounds):
    rounds.begin()
    play_all(rounds)
    rounds.population.next_round([True] * 4)
    jobs = rounds.begin()
    assert [last(rounds, i) for i in range(4)] == ["of 0 at 104", "of 0 at 104", "of 2 at 104", "of 3 at 104"]
    for job, turn in zip(jobs, rounds.population.turns, strict=True):
        assert job.arguments([]) == [
            f"resume='{job.run}'", "confirm=true", f"algo.lr={turn.values['algo.lr']:.6g}", "total_env_steps=200"
        ]  # fmt: skip
        assert job.status == "waiting"
    assert rounds.population.turns[1].values != rounds.population.rounds[0][1].values
    assert (
        f"algo.lr={rounds.population.turns[1].values['algo.lr']:.6g}"
        in Sweep.open(rounds.sweep.folder).jobs[1].overrides
    )


def test_the_score_is_of_this_rounds_last_evaluations(rounds):
    rounds.begin()
    play(rounds, 0, [90, 1, 2])
    play(rounds, 1, [7])
    play(rounds, 2, [float("nan")])
    play(rounds, 3, [])
    rounds.end()
    assert [turn.score for turn in rounds.population.turns] == [1.5, 7, None, None]
    assert [turn.state for turn in rounds.population.turns] == ["done", "done", "failed", "failed"]
    rounds.population.next_round([True] * 4)
    rounds.begin()
    play(rounds, 0, [10])
    rounds.end()
    assert rounds.population.turns[0].score == 10
    assert [turn.env_steps for turn in rounds.population.turns] == [204, 104, 104, 104]


def test_what_had_ended_while_nobody_looked_is_not_run_again(rounds):
    rounds.begin()
    play(rounds, 0, [1])
    play(rounds, 1, [1], exit_code=None, env_steps=50)
    again = reopen(rounds)
    assert [job.number for job in again.begin()] == [2, 3, 4]
    assert [job.status for job in again.sweep.jobs] == ["done", "killed", "waiting", "waiting"]


def test_members_that_were_done_with_the_last_round_are_not_with_the_next(rounds):
    rounds.begin()
    play_all(rounds)
    rounds.population.next_round([True] * 4)
    rounds.begin()
    play(rounds, 3, [8])
    again = reopen(rounds)
    assert [job.number for job in again.begin()] == [1, 2, 3]


@pytest.mark.parametrize("copied", [False, True])
def test_a_population_that_was_killed_while_it_copied_copies_again(rounds, copied):
    rounds.begin()
    play_all(rounds)
    rounds.population.next_round([True] * 4)
    if copied:
        rounds.population.is_ready = False
        rounds.begin()
        rounds.population.is_ready = False
        rounds.population.save()
    again = reopen(rounds)
    assert [job.number for job in again.begin()] == [1, 2, 3, 4]
    assert [last(again, i) for i in range(4)] == ["of 0 at 104", "of 0 at 104", "of 2 at 104", "of 3 at 104"]
    assert Population.open(again.population.folder).is_ready


def test_copies_are_not_made_twice(rounds):
    rounds.begin()
    play_all(rounds)
    rounds.population.next_round([True] * 4)
    rounds.begin()
    play(rounds, 1, [9], exit_code=None, env_steps=150)
    again = reopen(rounds)
    again.begin()
    assert last(again, 1) == "of 1 at 150"


def test_who_failed_goes_on_as_the_worst_do(rounds):
    rounds.begin()
    play(rounds, 0, [4])
    play(rounds, 1, [1], exit_code=5, env_steps=60)
    play(rounds, 2, [2])
    play(rounds, 3, [3])
    rounds.end()
    assert [turn.state for turn in rounds.population.turns] == ["done", "failed", "done", "done"]
    rounds.population.next_round([job.has_begun for job in rounds.sweep.jobs])
    rounds.begin()
    assert last(rounds, 1) == "of 0 at 104"
    assert [job.number for job in reopen(rounds).begin()] == [1, 2, 3, 4]
    assert [job.status for job in reopen(rounds).sweep.jobs][1] == "waiting"


def test_who_was_killed_goes_on_at_once_but_not_for_ever(rounds):
    rounds.begin()
    for number in range(4):
        play(rounds, number, [1])
    for code in (-9, 75):
        rounds.begin()
        job = rounds.sweep.jobs[2]
        job.exit_code = code
        for _ in range(MOST_RESTARTS):  # of each round
            assert rounds.again() == [job]
        assert rounds.again() == []
    rounds.end()
    assert [turn.state for turn in rounds.population.turns] == ["done", "done", "failed", "done"]


def test_who_runs_is_not_started_again(rounds):
    rounds.begin()
    job = rounds.sweep.jobs[0]
    job.exit_code, job.is_running = -9, True
    assert rounds.again() == []
