import csv
import json
import shlex
import signal

import pytest

pytest.importorskip("optuna")

from hpos import hpo

from drl_cli.errors import UsageError
from drl_cli.settings.space import Choice, Interval, typed
from drl_cli.sweeps import launcher
from drl_cli.sweeps.results import finish_search, verdict
from drl_cli.sweeps.study import Study, Trials
from drl_cli.sweeps.sweep import Sweep

LR = "algo.lr=tag(log,interval(1e-4,3e-3))"
SPACE = {"algo.lr": Interval(1e-4, 1e-2, is_log=True), "network.hidden": Choice(("[64]", "[32,32]"))}
UNIT = {"a": Interval(0, 1), "b": Interval(0, 1)}
PERIOD = 100


@pytest.fixture
def make(tmp_path):
    """Make the trials of a search in a new folder."""

    def make_it(space=SPACE, seed=0, **options):
        sweep = Sweep(tmp_path, [])
        sweep.make_folder(str(tmp_path))
        config = hpo(**{"sampler": "tpe", "trials": 4, "evaluations": 2, "fresh_seeds": 2} | options)
        study = Study(sweep.folder, space, ["env=A"], config, seed)
        study.save()
        return Trials(sweep, study, PERIOD)

    return make_it


def reopen(trials):
    """Open the search again, as a new process does."""
    return Trials(Sweep.open(trials.sweep.folder), Study.open(trials.study.folder), PERIOD)


def play(trials, job, returns, exit_code=0):
    """Write the run of a job with these returns (None: a skipped evaluation); without an exit code it still runs."""
    run = trials.sweep.folder / f"run{job.number}"
    run.mkdir(exist_ok=True)
    lines = [f"{value},1,{100 * i + 7}\n" for i, value in enumerate(returns, 1) if value is not None]
    (run / "eval.csv").write_text("".join(["mean,wall_s,env_steps\n", *lines]))
    trials.sweep.file(job).write_text(json.dumps({"run": str(run)}))
    if exit_code is not None:
        (run / "summary.json").write_text(json.dumps({"exit_code": exit_code}))
    job.run, job.exit_code, job.is_running = run, exit_code, exit_code is None
    trials.sweep.save()
    trials.changed(job)


def play_five(trials):
    for _ in range(5):
        play(trials, trials.next_jobs()[0], [1, 2, 3, 4])


def test_a_trial_is_a_job_for_each_seed_and_its_objective_the_mean_of_the_last_evaluations(make):
    trials = make(seeds=2, seed=5, evaluations=2)
    first, second = trials.next_jobs()
    (trial,) = trials.study.trials
    assert [job.overrides for job in (first, second)] == [
        ["env=A", *typed(trial.values), f"seed={seed}"] for seed in (5, 6)
    ]
    assert trial.jobs == [1, 2]
    play(trials, first, [9, 1, 2])
    assert trial.state == "running"
    play(trials, second, [99, 5, 6])
    assert (trial.state, trial.objective, trial.curve) == ("done", 3.5, {1: 54, 2: 3, 3: 4})


def test_the_best_trial_is_not_the_one_with_the_luckiest_evaluation(make):
    trials = make(trials=3)
    for returns in ([100, 1, 1], [2, 2, 2], [0, 0, 0]):
        play(trials, trials.next_jobs()[0], returns)
    assert trials.next_jobs() == []
    assert trials.study.best is trials.study.trials[1]


@pytest.mark.parametrize("code", [4, 5, 1])
def test_the_search_goes_on_after_a_failed_trial(make, code):
    trials = make()
    play(trials, trials.next_jobs()[0], [50], code)
    assert trials.study.best is None
    play(trials, trials.next_jobs()[0], [1])
    assert trials.study.best is trials.study.trials[1]
    assert [trial.state for trial in reopen(trials).study.trials] == ["failed", "done"]


def test_a_killed_search_resumes_its_trials_and_makes_no_more_than_asked_for(make):
    trials = make(trials=5)
    jobs = [trials.next_jobs()[0] for _ in range(4)]
    play(trials, jobs[0], [1, 2])
    play(trials, jobs[1], [3], 130)
    play(trials, jobs[2], [3], None)
    play(trials, jobs[3], [5], None)
    (jobs[3].run / "summary.json").write_text('{"exit_code": 0}')  # it ended after the search
    again = reopen(trials)
    assert [trial.values for trial in again.study.trials] == [trial.values for trial in trials.study.trials]
    unfinished = again.unfinished_jobs()
    assert [job.number for job in unfinished] == [2, 3]
    for job in unfinished:
        play(again, job, [7, 7])
    assert (len(again.next_jobs()), again.next_jobs()) == (1, [])
    assert [trial.objective for trial in again.study.trials] == [1.5, 7, 7, 5, None]


def test_a_proposed_trial_without_jobs_gets_them(make):
    trials = make()
    trials.study.propose()
    trials.study.save()
    (job,) = reopen(trials).unfinished_jobs()
    assert job.overrides == ["env=A", *typed(trials.study.trials[0].values), "seed=0"]


def test_values_that_were_tried_are_not_run_again(make):
    trials = make({"a": Choice(("1", "2"))}, trials=6)
    count = 0
    while jobs := trials.next_jobs():
        count += 1
        play(trials, jobs[0], [int(jobs[0].overrides[1][-1])])
    assert count == 2
    assert {(trial.values["a"], trial.objective) for trial in trials.study.trials} == {("1", 1), ("2", 2)}
    assert len(trials.study.trials) == 6


def test_a_trial_that_is_behind_at_the_same_evaluation_is_pruned(make):
    trials = make(trials=8, pruner="median")
    play_five(trials)
    good, bad, late = (trials.next_jobs()[0] for _ in range(3))
    for job, returns in ((good, [1, 2, 3, 5]), (bad, [1, 2, 1, 0]), (late, [None, None, 3.5])):
        play(trials, job, returns, None)
    assert trials.tick() == [bad]
    assert [trial.state for trial in trials.study.trials[5:]] == ["running", "pruned", "running"]
    assert trials.study.trials[7].curve == {3: 3.5}
    again = reopen(trials)
    assert [job.number for job in again.unfinished_jobs()] == [good.number, late.number]
    assert again.study.trials[4].curve == {1: 1, 2: 2, 3: 3, 4: 4}


def test_the_launcher_stops_a_pruned_trial(make, monkeypatch):
    monkeypatch.setattr(launcher, "POLL_S", 0)
    monkeypatch.setattr("drl_cli.sweeps.study.LOOK_S", 0)
    trials = make(trials=6, pruner="median")
    play_five(trials)
    (bad,) = trials.next_jobs()

    class Process:
        """Writes its run's folder when it is polled, and ends when it gets a signal."""

        returncode, polls = None, 0

        def has_begun(self):
            return True

        def poll(self):
            play(trials, bad, [1, 2, 1], None)
            bad.run, self.polls = None, self.polls + 1  # the launcher must find it
            return 0 if self.polls > 9 else self.returncode

        def send_signal(self, number):
            self.returncode = 75

    process = Process()
    launcher.Launcher(trials.sweep, [launcher.Slot()], lambda *_: process, tick=trials.tick).run([bad])
    assert (trials.study.trials[5].state, bad.status) == ("pruned", "interrupted")


def test_the_best_and_default_values_run_on_fresh_seeds(make):
    trials = make(seeds=2, seed=3)
    for job in trials.next_jobs():
        play(trials, job, [1])
    best = trials.study.best
    for trial, values in ((best, typed(best.values)), (None, [])):
        assert [job.overrides for job in trials.fresh_jobs(trial)] == [
            ["env=A", *values, f"seed={seed}"] for seed in (1003, 1004)
        ]


def test_the_end_ranks_the_trials_and_names_the_next_commands(make, capsys):
    trials = make(fresh_seeds=0, trials=3, seeds=2, seed=3)
    for returns, code in (([1, 2], 0), ([7, 8], 0), ([3], 4)):
        for i, job in enumerate(trials.next_jobs()):
            play(trials, job, [value + i for value in returns], code)
    assert finish_search(trials) == 0
    head, *rows = capsys.readouterr().out.splitlines()[1:5]
    assert head.split() == ["rank", "objective", *SPACE, "seed", "steps", "status", "trial", "job"]
    ends = [["3,4", "-", "done", "1", "3,4"], ["3,4", "-", "done", "0", "1,2"], ["3,4", "-", "failed", "2", "5,6"]]
    assert [row.split()[-5:] for row in rows] == ends
    assert [row.split()[:2] for row in rows] == [["1", "8.0"], ["2", "2.0"], ["3", "-"]]


def played(trials, best, defaults):
    """Play one trial for each of three returns, then the jobs on fresh seeds with these returns."""
    for value in (1, 9, 5):
        play(trials, trials.next_jobs()[0], [value])
    for trial, returns in ((trials.study.best, best), (None, defaults)):
        for job, value in zip(trials.fresh_jobs(trial), returns, strict=True):
            play(trials, job, [99 if value is None else value], 4 if value is None else 0)
    for job in trials.sweep.jobs:
        (job.run / "checkpoints" / "best").mkdir(parents=True)


def next_commands(trials, capsys):
    assert finish_search(trials) == 0
    *lines, text = capsys.readouterr().out.partition("next: ")
    return lines[0].splitlines(), [line.strip() for line in text.splitlines()]


def test_the_next_commands_are_those_of_the_winner(make, capsys):
    trials = make(trials=3)
    trials.study.fixed = ["env=Pendulum-v1", "algo=sac"]
    played(trials, [8, 10], [1, 2])
    lines, (train, evaluate, file) = next_commands(trials, capsys)
    values = [*typed(trials.study.best.values)]
    assert "verdict: the best values are better than the defaults by 7.5 on fresh seeds" in lines
    assert shlex.split(train) == ["drl-train", "env=Pendulum-v1", "algo=sac", *values]
    assert evaluate == f"drl-eval run={trials.fresh_jobs(trials.study.best)[1].run} episodes=100"
    words = [f"--config-dir {trials.sweep.folder}", "env=Pendulum-v1", "algo=sac", "experiment=best"]
    assert file == " ".join(["drl-train", *words])


def test_the_values_of_a_worse_search_are_not_recommended(make, capsys):
    trials = make(trials=3)
    played(trials, [1, 2], [8, 4])
    lines, commands = next_commands(trials, capsys)
    assert "verdict: the defaults are better on fresh seeds: keep them" in lines
    assert commands == ["drl-train env=A", f"drl-eval run={trials.fresh_jobs(None)[0].run} episodes=100"]


@pytest.mark.parametrize(
    ("best", "defaults", "is_better", "text"),
    [
        ([5, 6], [1, 2], True, "the best values are better than the defaults by 4.0 on fresh seeds"),
        (
            [5, 6],
            [4, 6],
            True,
            "by 0.5 on fresh seeds, but within the noise of 2 seeds; -m resume=latest hpo.fresh_seed",
        ),
        ([5], [1], True, "by 4.0 on fresh seeds, but within the noise of 2 seeds"),
        ([1, 2], [5, 6], False, "the defaults are better on fresh seeds: keep them"),
        ([5, 6], [6, 5], False, "the defaults are as good on fresh seeds: keep them"),
        ([9], [1, 2], False, "the best values did not finish on 1 of 2 fresh seeds: keep the defaults"),
        ([-9], [], True, "the defaults did not finish on 2 of 2 fresh seeds: use the best values"),
        ([], [], True, "unknown: the best values were not compared with the defaults"),
    ],
)
def test_the_verdict_compares_the_scores_on_fresh_seeds(best, defaults, is_better, text):
    found = verdict(best, defaults, 2)
    assert found[0] is is_better
    assert text in found[1]
    assert ("noise" in found[1]) == ("noise" in text)


@pytest.mark.slow
def test_the_file_of_the_best_values_works_as_printed(make, capsys, drl_here):
    trials = make({"algo.gamma": Choice(("0.7",)), "network": Choice(("gru",))}, fresh_seeds=0, trials=1)
    trials.study.fixed = ["env=CartPole-v1", "algo=dqn"]
    play(trials, trials.next_jobs()[0], [9])
    _, (train, file) = next_commands(trials, capsys)
    values = []
    for command in (train, file):
        done = drl_here("train", *shlex.split(command)[1:], "explain=true")
        assert (done.returncode, done.stderr) == (0, "")
        rows = [line.split() for line in done.stdout.splitlines() if line]
        values.append({row[0]: row[1] for row in rows if not row[0].startswith("experiment")})
    assert values[0] == values[1]
    assert (values[1]["algo.gamma"], values[1]["network="], values[1]["tuned="]) == ("0.7", "gru", "dqn-CartPole-v1")


def test_a_search_without_a_good_trial_goes_on_with_more_trials(make, capsys):
    trials = make(fresh_seeds=0, trials=2)
    for _ in range(2):
        play(trials, trials.next_jobs()[0], [1], exit_code=4)
    assert finish_search(trials) == 10
    folder = trials.sweep.folder
    assert capsys.readouterr().err == f"error: no trial was done\nnext: drl-train -m resume={folder} hpo.trials=4\n"


@pytest.mark.parametrize(
    ("sampler", "pruner", "classes"),
    [
        ("random", "none", ("RandomSampler", "NopPruner")),
        ("tpe", "median", ("TPESampler", "MedianPruner")),
        ("gp", "halving", ("GPSampler", "SuccessiveHalvingPruner")),
        ("cma", "none", ("CmaEsSampler", "NopPruner")),
    ],
)
def test_every_sampler_proposes_values_of_the_space_also_after_a_restart(make, monkeypatch, sampler, pruner, classes):
    import optuna

    if sampler in ("gp", "cma"):
        pytest.importorskip("torch" if sampler == "gp" else "cmaes")
        pytest.importorskip("scipy")
    asked, create_study = [], optuna.create_study

    def create(**options):
        asked.append((type(options["sampler"]).__name__, type(options["pruner"]).__name__))
        return create_study(**options)

    monkeypatch.setattr(optuna, "create_study", create)
    trials = make(
        {"a": Interval(-1, 1), "b": Interval(1, 100, is_log=True, is_int=True)}, sampler=sampler, pruner=pruner
    )
    for i in range(4):
        trials = reopen(trials) if i == 2 else trials
        (job,) = trials.next_jobs()
        values = trials.study.trials[-1].values
        assert -1 <= values["a"] <= 1
        assert values["b"] in range(1, 101)
        play(trials, job, [-(values["a"] ** 2)])
    assert asked == [classes] * 2


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_proposals_follow_from_the_seed(make, sampler):
    def proposed(seed):
        trials = make(seed=seed, sampler=sampler)
        trials.next_jobs()
        return trials.study.trials[0].values

    assert proposed(3) == proposed(3) != proposed(4)


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "count", "is_known"), [("ab", 7, False), ("a", 9, False), ("ab", 24, True)])
def test_importances_need_trials_and_two_keys(make, keys, count, is_known):
    trials = make({key: UNIT[key] for key in keys}, trials=count, sampler="random")
    while jobs := trials.next_jobs():
        play(trials, jobs[0], [trials.study.trials[-1].values["a"] * 10])
    shares = trials.study.importances()
    assert shares["a"] > shares["b"] if is_known else shares == {}


@pytest.mark.slow
def test_a_search_whose_environment_lacks_a_file_can_not_begin(multirun, tmp_path, monkeypatch, capsys):
    (tmp_path / "late_mod.py").write_text(
        "import gymnasium\ndef make(**_):\n    open('late.txt')\ngymnasium.register('Late-v0', make)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="no trial can run without that file"):
        multirun("hpo=tpe", "env=late_mod:Late-v0", LR)
    assert "late.txt" in capsys.readouterr().err


@pytest.mark.slow
def test_a_resumed_search_can_be_checked_with_more_trials(multirun, make, capsys):
    trials = make({"algo.lr": SPACE["algo.lr"]})
    trials.study.fixed = ["env=Pendulum-v1"]
    trials.study.save()
    for key in ("seeds=2", "pruner=median", "evaluations=1"):
        with pytest.raises(UsageError, match="can't change any more"):
            multirun(f"resume={trials.study.folder}", "dry_run=true", f"hpo.{key}")
    for args, count in (([], 4), (["hpo.trials=1e2"], 100)):
        assert multirun(f"resume={trials.study.folder}", "dry_run=true", *args) == 0
        assert capsys.readouterr().out == f"0 of {count} trials begun; all checks passed\n"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_killed_search_is_resumed_and_ends_with_the_best_and_default_values(start, drl, tiny, tmp_path):
    args = ("-m", "hpo=tpe", "hpo.trials=4", "hpo.fresh_seeds=1", "env=Pendulum-v1", "mode=single", *tiny, LR)
    search = start(*args)
    folder = tmp_path / "outputs" / "multirun"

    def trials():
        return [trial for file in folder.glob("*/study.json") for trial in json.loads(file.read_text())["trials"]]

    search.until(lambda: sum(trial["state"] == "done" for trial in trials()) >= 1)
    search.process.send_signal(signal.SIGKILL)
    search.kill_all()
    before = [trial["values"] for trial in trials()]
    again = drl("train", "-m", "resume=latest", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert [trial["values"] for trial in trials()][: len(before)] == before
    assert [trial["state"] for trial in trials()] == ["done"] * 4
    assert len(list(tmp_path.glob("outputs/*/*/*/run.json"))) == 6
    assert "best on 1 fresh seeds: -" in again.stdout
    assert "defaults on 1 fresh seeds: -" in again.stdout
    (folder,) = folder.iterdir()
    with (folder / "trials.csv").open() as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["done"] * 4
    assert (folder / "experiment" / "best.yaml").read_text().startswith("# @package _global_\nalgo:\n  lr: 0.00")
    assert "\nverdict: " in again.stdout
    wrong = drl("train", "-m", "resume=latest", "algo.lr=1,2", cwd=tmp_path)
    assert (wrong.returncode, "leave algo.lr=1,2 out" in wrong.stderr) == (2, True)
