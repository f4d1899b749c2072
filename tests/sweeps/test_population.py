import csv
import json
import signal

import pytest
from hpos import hpo
from processes import SMALL
from sweep_files import record, weights

from drl_cli.errors import UsageError
from drl_cli.settings.space import Choice, Interval, space
from drl_cli.sweeps import population as population_module
from drl_cli.sweeps.population import MAX_RESTARTS, Population, Rounds, finish_population, write_turns
from drl_cli.sweeps.sweep import Sweep

LR = "algo.lr=tag(log,interval(1e-4,3e-3))"
SPACE = {"algo.lr": Interval(1e-4, 1e-2, is_log=True), "algo.n_step": Choice(("1", "3", "5"))}
EIGHT = [5, 1, 8, 3, 7, 2, 6, 4]


@pytest.fixture
def make(tmp_path):
    """Make a population whose members have these scores after the first round."""

    def make_it(scores=(), seed=0, resample=0.0):
        config = hpo("pbt", members=max(2, len(scores)), resample=resample)
        population = Population(tmp_path, SPACE, ["env=A"], config, seed, round_steps=100)
        for i, (turn, score) in enumerate(zip(population.turns, scores, strict=False)):
            turn.state, turn.score, turn.env_steps = ("done" if score is not None else "failed"), score, 104 + i
        return population

    return make_it


def test_the_worst_members_copy_the_best_and_change_the_copied_values(make):
    sources = set()
    for seed in range(8):
        population = make(EIGHT, seed)
        before = [turn.values for turn in population.turns]
        population.next_round([True] * 8)
        assert (population.goal, population.is_ready) == (200, False)
        assert [turn.source is not None for turn in population.turns] == [score <= 2 for score in EIGHT]
        for member, turn in enumerate(population.turns):
            source = member if turn.source is None else turn.source
            assert turn.start == 104 + source
            lr, copied = turn.values["algo.lr"], before[source]["algo.lr"]
            factors = (1,) if turn.source is None else (0.8, 1.2)
            assert lr in (1e-4, 1e-2) or any(lr / copied == pytest.approx(factor) for factor in factors)
            sources.add(turn.source)
    assert sources == {None, 2, 4}


def test_a_copied_value_is_drawn_again_with_the_probability_resample(make):
    population = make(EIGHT, resample=1.0)
    before = [turn.values["algo.lr"] for turn in population.turns]
    population.next_round([True] * 8)
    ratios = [turn.values["algo.lr"] / before[turn.source] for turn in population.turns if turn.source is not None]
    assert all(abs(ratio - 0.8) > 1e-6 and abs(ratio - 1.2) > 1e-6 for ratio in ratios)


def test_draws_follow_from_the_seed_and_the_round(make):
    def history(seed):
        population = make([5, 1, 8, 3], seed)
        population.next_round([True] * 4)
        return population.rounds

    assert history(3) == history(3) != history(4)
    population = make([1, 9], resample=1.0)
    for _ in range(2):
        population.next_round([True] * 2)
        for turn, score in zip(population.turns, (1, 9), strict=True):
            turn.state, turn.score = "done", score
    assert population.rounds[1][0].values != population.rounds[2][0].values
    first, second = make(seed=3), make(seed=4)
    assert first.turns[0].values != first.turns[1].values != second.turns[0].values


@pytest.mark.parametrize(
    ("scores", "can_copy", "sources"),
    [
        ([5, None, None, 9], [True, True, False, True], [3, 3, None, None]),
        ([None, 2, None], [True] * 3, [1, None, 1]),
        ([500, 500, 500, 500], [True] * 4, [None] * 4),
        ([1, 2], [True] * 2, [1, None]),
    ],
    ids=["failed", "one-done", "equal", "two"],
)
def test_who_copies_whom(make, scores, can_copy, sources):
    population = make(scores)
    before = [turn.values for turn in population.turns]
    population.next_round(can_copy)
    assert [turn.source for turn in population.turns] == sources
    for turn, values in zip(population.turns, before, strict=True):
        assert turn.source is not None or turn.values == values


def test_the_lineage_follows_the_weights(make):
    population = make([1, 2, 3])
    population.next_round([True] * 3)  # member 0 copies member 2
    for turn, score in zip(population.turns, (9, 5, 1), strict=True):
        turn.score = score
    population.next_round([True] * 3)  # member 2 copies member 0
    assert [[member for member, _ in population.lineage(i)] for i in (1, 2)] == [[1, 1, 1], [2, 0, 2]]
    first, second, third = population.rounds
    assert [turn for _, turn in population.lineage(0)] == [first[2], second[0], third[0]]


def test_the_record_is_complete(make):
    population = make([1, None, 3])
    population.next_round([True] * 3)
    assert Population.open(population.folder) == population
    (population.folder / "population.json").unlink()
    with pytest.raises(UsageError, match=r"population\.json is missing or damaged"):
        Population.open(population.folder)


@pytest.fixture
def rounds(tmp_path):
    """The rounds of four members in a new folder."""
    sweep = Sweep(tmp_path, ["--config-dir", "x"])
    sweep.make_folder(str(tmp_path))
    config = hpo("pbt", members=4, evaluations=2)
    population = Population(sweep.folder, {"algo.lr": SPACE["algo.lr"]}, ["env=A"], config, 7, round_steps=100)
    population.save()
    return Rounds(sweep, population)


def reopen(rounds):
    """Open the population again, as a new process does."""
    return Rounds(Sweep.open(rounds.sweep.folder), Population.open(rounds.population.folder))


def play(rounds, number, returns, exit_code=0, env_steps=None):
    """Write a member's run up to the end of the round, or to `env_steps`: evaluations, a checkpoint, a summary."""
    job, run = rounds.sweep.jobs[number], rounds.sweep.folder.parent / f"run{number}"
    steps = rounds.population.goal + 4 if env_steps is None else env_steps
    folder = run / "checkpoints" / f"step_{steps}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text(f"of {number} at {steps}")
    (run / "checkpoints" / "last").unlink(missing_ok=True)
    (run / "checkpoints" / "last").symlink_to(folder.name)
    (run / "config.yaml").write_text("")
    file = run / "eval.csv"
    head = file.read_text() if file.exists() else "mean,wall_s,env_steps\n"
    first = steps - len(returns) + 1
    file.write_text(head + "".join(f"{value},1,{first + i}\n" for i, value in enumerate(returns)))
    rounds.sweep.file(job).write_text(json.dumps({"run": str(run)}))
    (run / "run.json").write_text(json.dumps({"status": {0: "done", 5: "diverged"}.get(exit_code, "running")}))
    (run / "summary.json").unlink(missing_ok=True)
    if exit_code in (0, 5):
        (run / "summary.json").write_text(json.dumps({"exit_code": exit_code, "env_steps": steps}))
    job.run, job.exit_code = run, exit_code


def play_first_round(rounds):
    rounds.begin()
    for number, value in enumerate((4, 1, 2, 3)):
        play(rounds, number, [value])
    rounds.end()
    rounds.population.next_round([True] * 4)


def last(rounds, number):
    return (rounds.sweep.jobs[number].run / "checkpoints" / "last" / "weights").read_text()


COPIED = ["of 0 at 104", "of 0 at 104", "of 2 at 104", "of 3 at 104"]


def test_the_first_round_starts_the_members_runs(rounds):
    jobs = rounds.begin()
    assert [job.arguments(rounds.sweep.flags) for job in jobs] == [
        ["--config-dir", "x", "env=A", f"algo.lr={turn.values['algo.lr']:.6g}", f"seed={7 + i}", "total_env_steps=100"]
        for i, turn in enumerate(rounds.population.turns)
    ]
    assert [job.status for job in jobs] == ["waiting"] * 4


def test_the_next_round_resumes_the_runs_the_worst_from_a_copy_of_the_best(rounds):
    play_first_round(rounds)
    jobs = rounds.begin()
    assert [last(rounds, i) for i in range(4)] == COPIED
    for job, turn in zip(jobs, rounds.population.turns, strict=True):
        lr = f"algo.lr={turn.values['algo.lr']:.6g}"
        assert job.arguments([]) == [f"resume={job.run}", "confirm=true", lr, "total_env_steps=200"]
        assert job.status == "waiting"
        assert lr in Sweep.open(rounds.sweep.folder).jobs[job.number - 1].overrides
    assert rounds.population.turns[1].values != rounds.population.rounds[0][1].values
    play(rounds, 3, [8])
    assert [job.number for job in reopen(rounds).begin()] == [1, 2, 3]


def test_the_score_is_the_mean_of_the_rounds_last_evaluations(rounds):
    rounds.begin()
    for number, returns in enumerate(([90, 1, 2], [7], [float("nan")], [])):
        play(rounds, number, returns)
    rounds.end()
    assert [turn.score for turn in rounds.population.turns] == [1.5, 7, None, None]
    assert [turn.state for turn in rounds.population.turns] == ["done", "done", "failed", "failed"]
    rounds.population.next_round([True] * 4)
    rounds.begin()
    play(rounds, 0, [10])
    rounds.end()
    assert rounds.population.turns[0].score == 10
    assert [turn.env_steps for turn in rounds.population.turns] == [204, 104, 104, 104]


def test_a_run_that_ended_after_the_sweep_was_killed_is_not_run_again(rounds):
    rounds.begin()
    play(rounds, 0, [1])
    play(rounds, 1, [1], exit_code=None, env_steps=50)
    again = reopen(rounds)
    assert [job.number for job in again.begin()] == [2, 3, 4]
    assert [job.status for job in again.sweep.jobs] == ["done", "killed", "waiting", "waiting"]


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_population_that_was_killed_while_it_copied_copies_again(rounds, is_copied):
    play_first_round(rounds)
    if is_copied:
        rounds.begin()
        rounds.population.is_ready = False
        rounds.population.save()
    again = reopen(rounds)
    assert ([job.number for job in again.begin()], [last(again, i) for i in range(4)]) == ([1, 2, 3, 4], COPIED)
    assert Population.open(again.population.folder).is_ready


def test_copies_are_not_made_twice(rounds):
    play_first_round(rounds)
    rounds.begin()
    play(rounds, 1, [9], exit_code=None, env_steps=150)
    again = reopen(rounds)
    again.begin()
    assert last(again, 1) == "of 1 at 150"


def test_a_failed_member_copies_one_of_the_best(rounds):
    rounds.begin()
    for number, (value, exit_code) in enumerate(((4, 0), (1, 5), (2, 0), (3, 0))):
        play(rounds, number, [value], exit_code)
    rounds.end()
    assert [turn.state for turn in rounds.population.turns] == ["done", "failed", "done", "done"]
    rounds.population.next_round([job.has_begun for job in rounds.sweep.jobs])
    rounds.begin()
    assert last(rounds, 1) == "of 0 at 104"
    again = reopen(rounds)
    assert ([job.number for job in again.begin()], again.sweep.jobs[1].status) == ([1, 2, 3, 4], "waiting")


def test_a_killed_member_is_restarted_a_few_times_in_each_round(rounds):
    rounds.begin()
    for number in range(4):
        play(rounds, number, [1])
    job = rounds.sweep.jobs[2]
    for code in (-9, 75):
        rounds.begin()
        job.exit_code, job.is_running = code, True
        assert rounds.killed_jobs() == []
        job.is_running = False
        for _ in range(MAX_RESTARTS):
            assert rounds.killed_jobs() == [job]
        assert rounds.killed_jobs() == []
    rounds.end()
    assert [turn.state for turn in rounds.population.turns] == ["done", "done", "failed", "done"]


@pytest.mark.slow
def test_a_population_begins_as_typed(multirun, monkeypatch):
    begun = []
    monkeypatch.setattr(population_module, "train", lambda sweep, population, configs: begun.append(population) or 0)
    args = ("seed=5", "total_env_steps=10000", "hpo.rounds=4", "hpo.members=3", "mode=single", LR)
    assert multirun("hpo=pbt", "env=Pendulum-v1", *args) == 0
    (population,) = begun
    assert (population.seed, population.round_steps, len(population.turns)) == (5, 2500, 3)
    assert (population.fixed, list(population.space)) == (["env=Pendulum-v1", "mode=single"], ["algo.lr"])
    assert Population.open(population.folder) == population


@pytest.fixture
def begun(multirun, tmp_path):
    """A population of which no member has been started, in the current folder."""
    sweep = Sweep(tmp_path, [])
    sweep.make_folder("outputs")
    fixed, domains = space(["env=Pendulum-v1", LR])
    population = Population(sweep.folder, domains, fixed, hpo("pbt", members=2, rounds=4), 0, round_steps=100)
    population.save()
    return population


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("algo.lr=1,2",), "a population goes on with its own keys, and hpo.rounds: leave algo.lr=1,2 out"),
        (("hpo.members=4",), "hpo.members: can't change any more; hpo.rounds can"),
        (("hpo.rounds=x",), "hpo.rounds: "),
        (("dry_run=true",), "1 of 4 rounds begun; all checks passed\n"),
        (("dry_run=true", "hpo.rounds=6"), "1 of 6 rounds begun; all checks passed\n"),
    ],
)
def test_a_resumed_population_is_checked_first(begun, multirun, capsys, args, text):
    if "dry_run=true" in args:
        assert (multirun("resume=latest", *args), capsys.readouterr().out) == (0, text)
        return
    with pytest.raises(UsageError) as raised:
        multirun("resume=latest", *args)
    assert text in "\n".join(raised.value.problems)


def test_the_end_shows_how_the_best_came_about(begun, capsys):
    for score, turn in zip((1, 2), begun.turns, strict=True):
        turn.values, turn.score, turn.state, turn.env_steps = {"algo.lr": score / 1000}, score, "done", 100
    begun.next_round([True, True])
    for score, turn in zip((5, None), begun.turns, strict=True):
        turn.score, turn.state, turn.env_steps = score, "done" if score else "failed", 200
    begun.turns[0].values = {"algo.lr": 0.0024}
    sweep = Sweep.open(begun.folder)
    sweep.add([["seed=0"], ["seed=1"]])
    write_turns(begun)
    assert finish_population(sweep, begun) == 0
    printed = capsys.readouterr()
    table = [line.split() for line in printed.out.splitlines()[:3]]
    assert table == [
        ["rank", "score", "algo.lr", "seed", "steps", "member"],
        ["1", "5.0", "0.0024", str(begun.seed), "200", "1"],
        ["2", "-", "0.002", str(begun.seed + 1), "200", "2"],
    ]
    assert "0 to        100 env steps  member 2  2.0  algo.lr=0.002" in printed.out
    assert "100 to        200 env steps  member 1  5.0  algo.lr=0.0024" in printed.out
    assert printed.err == "warning: failed in the last round: member 2\n"
    assert (begun.folder / "schedule.csv").read_text().split() == ["from_env_steps,algo.lr", "0,0.002", "100,0.0024"]
    assert (begun.folder / "experiment" / "best.yaml").read_text() == "# @package _global_\nalgo:\n  lr: 0.0024\n"
    with (begun.folder / "population.csv").open() as file:
        rows = [[row[name] for name in ("round", "member", "source", "state", "score")] for row in csv.DictReader(file)]
    assert rows == [["1", "1", "", "done", "1"], ["1", "2", "", "done", "2"],
                    ["2", "1", "2", "done", "5"], ["2", "2", "", "failed", ""]]  # fmt: skip


JOB = (*SMALL, "mode=single", "debug.in_process=true", "seed=3", "total_env_steps=800", LR)
PBT = ("-m", "hpo=pbt", "hpo.members=2", "hpo.rounds=2", *JOB)


def turns(cwd):
    return record(cwd, "population")["rounds"]


MOMENTS = (
    lambda cwd: any(cwd.glob("outputs/*/*/*/checkpoints/last")),
    lambda cwd: len(turns(cwd)) == 2,
    lambda cwd: any("resumed" in json.loads(file.read_text()) for file in cwd.glob("outputs/*/*/*/run.json")),
)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_population_that_is_killed_twice_ends_with_the_same_weights(start, drl, tmp_path_factory):
    quiet, here = tmp_path_factory.mktemp("quiet"), tmp_path_factory.mktemp("here")
    done = drl("train", *PBT, cwd=quiet)
    assert done.returncode == 0, done.stderr
    assert [turn["source"] is not None for turn in turns(quiet)[1]].count(True) == 1
    args = PBT
    for moment in MOMENTS[::2]:
        population = start(*args, cwd=here)
        population.until(lambda moment=moment: moment(here))
        population.process.send_signal(signal.SIGKILL)
        population.kill_all()
        args = ("-m", "resume=latest")
    again = drl("train", *args, cwd=here)
    assert again.returncode == 0, again.stderr
    assert (turns(here), weights(here)) == (turns(quiet), weights(quiet))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_population_of_diverging_members_ends_with_exit_code_10(drl, tmp_path):
    done = drl("train", *PBT, "algo.gamma=choice(0.9,0.99)", "env.reward_scale=1e38", cwd=tmp_path)
    assert (done.returncode, "no member was done" in done.stderr) == (10, True)
    assert {turn["state"] for turn in turns(tmp_path)[0]} == {"failed"}
