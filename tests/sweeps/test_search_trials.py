"""A search: its trials and their jobs, what they are told, and that nothing is lost when it is killed."""

import json

import pytest

pytest.importorskip("optuna")

from hpos import hpo

from drl_cli.settings.space import Choice, Interval, corners, typed
from drl_cli.sweeps import launcher
from drl_cli.sweeps.search import Search
from drl_cli.sweeps.study import Study
from drl_cli.sweeps.sweep import Sweep

SPACE = {"algo.lr": Interval(1e-4, 1e-2, is_log=True), "network.hidden": Choice(("[64]", "[32,32]"))}
PERIOD = 100
HPO = {"sampler": "tpe", "trials": 4, "evaluations": 2, "fresh_seeds": 2}


@pytest.fixture
def make(tmp_path):
    """A search in a folder of its own."""

    def make_it(space=SPACE, seed=0, **own):
        sweep = Sweep(tmp_path, [])
        sweep.make_folder(str(tmp_path))
        study = Study(sweep.folder, space, ["env=A"], hpo(**HPO | own), seed)
        study.save()
        return Search(sweep, study, PERIOD)

    return make_it


def reopen(search):
    """As a new process finds it."""
    return Search(Sweep.open(search.sweep.folder), Study.open(search.study.folder), PERIOD)


def play(search, job, returns, exit_code=0):
    """A job that has run: the returns of its evaluations (None: left out), how it ended (None: it has not)."""
    run = search.sweep.folder / f"run{job.number}"
    run.mkdir(exist_ok=True)
    (run / "eval.csv").write_text(
        "".join(
            ["mean,wall_s,env_steps\n", *(f"{v},1,{100 * i + 7}\n" for i, v in enumerate(returns, 1) if v is not None)]
        )
    )
    search.sweep.file(job).write_text(json.dumps({"run": str(run)}))
    if exit_code is not None:
        (run / "summary.json").write_text(json.dumps({"exit_code": exit_code}))
    job.run, job.exit_code = run, exit_code
    search.sweep.save()
    if exit_code is not None:
        search.ended(job)


def test_every_end_of_a_space_comes_up():
    assert corners(SPACE) == [
        ["algo.lr=0.0001", "network.hidden=[64]"],
        ["algo.lr=0.01", "network.hidden=[64]"],
        ["algo.lr=0.00388146", "network.hidden=[64]"],
        ["algo.lr=0.0001", "network.hidden=[32,32]"],
    ]
    assert corners({"a": Interval(2, 8, is_int=True)}) == [["a=2"], ["a=8"]]


def test_values_as_they_are_typed():
    assert typed({"a": 0.000123456789, "b": 3, "c": "[1,2]", "d": 1e-7}) == [
        "a=0.000123457", "b=3", "c=[1,2]", "d=1e-07"
    ]  # fmt: skip


def test_a_trial_is_a_job_for_each_seed(make):
    search = make(seeds=3, seed=5)
    jobs = search.more()
    (trial,) = search.study.trials
    assert [job.overrides for job in jobs] == [["env=A", *typed(trial.values), f"seed={seed}"] for seed in (5, 6, 7)]
    assert trial.jobs == [1, 2, 3]
    assert 1e-4 <= trial.values["algo.lr"] <= 1e-2
    assert trial.values["network.hidden"] in ("[64]", "[32,32]")


def test_there_are_as_many_trials_as_were_asked_for(make):
    search = make(trials=3)
    for i in range(3):
        (job,) = search.more()
        play(search, job, [i, i])
    assert search.more() == []
    assert [trial.objective for trial in search.study.trials] == [0, 1, 2]


def test_the_objective_is_the_mean_of_the_last_evaluations_over_the_seeds(make):
    search = make(seeds=2, evaluations=2)
    first, second = search.more()
    (trial,) = search.study.trials
    play(search, first, [9, 1, 2])
    assert trial.state == "running"
    play(search, second, [99, 5, 6])
    assert (trial.state, trial.objective, trial.curve) == ("done", 3.5, {1: 54, 2: 3, 3: 4})


def test_the_best_is_not_the_luckiest_moment(make):
    search = make()
    for returns in ([100, 1, 1], [2, 2, 2], [0, 0, 0]):
        play(search, search.more()[0], returns)
    assert search.study.best is search.study.trials[1]


@pytest.mark.parametrize("code", [4, 5, 1])
def test_a_trial_that_failed_or_diverged_is_recorded_and_the_search_goes_on(make, code):
    search = make()
    play(search, search.more()[0], [50], code)
    assert search.study.trials[0].state == "failed"
    assert search.study.best is None
    play(search, search.more()[0], [1])
    assert search.study.best is search.study.trials[1]
    assert [trial.state for trial in reopen(search).study.trials] == ["failed", "done"]


@pytest.mark.parametrize("code", [130, 75, -9])
def test_a_trial_that_was_interrupted_goes_on(make, code):
    search = make()
    (job,) = search.more()
    play(search, job, [1], code)
    assert search.study.trials[0].state == "running"
    again = reopen(search)
    assert [job.number for job in again.left()] == [1]
    assert again.study.trials[0].values == search.study.trials[0].values


def test_a_search_that_was_killed_has_its_trials_and_makes_no_more_than_asked_for(make):
    search = make(trials=4)
    jobs = [search.more()[0] for _ in range(3)]
    play(search, jobs[0], [1, 2])
    play(search, jobs[1], [3], None)
    again = reopen(search)
    assert [job.number for job in again.left()] == [2, 3]
    for job in again.left():
        play(again, job, [7, 7])
    assert len(again.more()) == 1
    assert again.more() == []
    assert [trial.objective for trial in again.study.trials] == [1.5, 7, 7, None]


def test_a_trial_that_ended_while_nobody_looked_is_told(make):
    search = make()
    (job,) = search.more()
    play(search, job, [3], None)
    (job.run / "summary.json").write_text('{"exit_code": 0}')
    again = reopen(search)
    assert again.left() == []
    assert again.study.trials[0].objective == 3


def test_a_trial_that_was_proposed_and_has_no_jobs_yet_gets_them(make):
    search = make()
    search.study.propose()
    search.study.save()
    again = reopen(search)
    (job,) = again.left()
    assert job.overrides == ["env=A", *typed(search.study.trials[0].values), "seed=0"]


def test_values_that_were_tried_are_not_run_again(make):
    search = make({"a": Choice(("1", "2"))}, trials=6)
    count = 0
    while jobs := search.more():
        count += 1
        play(search, jobs[0], [int(jobs[0].overrides[1][-1])])
    assert count == 2
    assert len(search.study.trials) == 6
    assert {(trial.values["a"], trial.objective) for trial in search.study.trials} == {("1", 1), ("2", 2)}


def test_who_is_behind_at_the_same_evaluation_is_pruned(make):
    search = make(trials=8, pruner="median")
    stopped = []
    search.stop = stopped.append
    for _ in range(5):
        play(search, search.more()[0], [1, 2, 3, 4])
    good, bad = search.more()[0], search.more()[0]
    for job, returns in ((good, [1, 2, 3, 5]), (bad, [1, 2, 1, 0])):
        play(search, job, returns, None)
        job.is_running = True
    search.look()
    assert stopped == [bad]
    assert [trial.state for trial in search.study.trials[5:]] == ["running", "pruned"]
    assert [job.number for job in reopen(search).left()] == [good.number]


def test_evaluations_that_a_run_left_out_are_compared_with_none(make):
    search = make(trials=8, pruner="median")
    search.stop = lambda job: pytest.fail("stopped")
    for _ in range(5):
        play(search, search.more()[0], [1, 2, 3, 4])
    late = search.more()[0]
    play(search, late, [None, None, 3.5], None)
    late.is_running = True
    search.look()
    assert search.study.trials[5].curve == {3: 3.5}
    assert reopen(search).study.trials[4].curve == {1: 1, 2: 2, 3: 3, 4: 4}


def test_a_trial_is_pruned_where_nobody_watches_the_table(make, monkeypatch):
    monkeypatch.setattr(launcher, "POLL_S", 0)
    search = make(trials=6, pruner="median")
    for _ in range(5):
        play(search, search.more()[0], [1, 2, 3, 4])
    bad = search.more()[0]

    class Process:
        """Writes its run's folder when it is looked at, and ends when it is told to."""

        returncode, polls = None, 0

        def has_begun(self):
            return True

        def poll(self):
            play(search, bad, [1, 2, 1], None)
            bad.run, self.polls = None, self.polls + 1  # nobody has told it
            return 0 if self.polls > 9 else self.returncode

        def send_signal(self, number):
            self.returncode = 75

    process = Process()
    running = launcher.Launcher(search.sweep, [set()], lambda *_: process)
    running.tick.append(search.look)
    search.stop = running.stop
    monkeypatch.setattr("drl_cli.sweeps.search.LOOK_S", 0)
    running.run([bad])
    assert (search.study.trials[5].state, bad.status) == ("pruned", "interrupted")


def test_nothing_is_pruned_unless_that_is_said(make):
    search = make(trials=8)
    search.stop = lambda job: pytest.fail("stopped")
    for _ in range(5):
        play(search, search.more()[0], [1, 2, 3, 4])
    (bad,) = search.more()
    play(search, bad, [-9, -9, -9, -9], None)
    bad.is_running = True
    search.look()


def test_the_best_and_the_defaults_run_on_seeds_that_no_trial_had(make):
    search = make(seeds=2, seed=3)
    for job in search.more():
        play(search, job, [1])
    best = search.study.best
    assert [job.overrides for job in search.fresh(best)] == [
        ["env=A", *typed(best.values), f"seed={seed}"] for seed in (1003, 1004)
    ]
    assert [job.overrides for job in search.fresh(None)] == [["env=A", "seed=1003"], ["env=A", "seed=1004"]]


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "cma"])
def test_every_sampler_proposes_in_the_space_and_again_after_a_restart(make, sampler):
    if sampler in ("gp", "cma"):
        pytest.importorskip("scipy" if sampler == "gp" else "cmaes")
    space = {"a": Interval(-1, 1), "b": Interval(1, 100, is_log=True, is_int=True)}
    search = make(space, sampler=sampler, trials=6)
    for i in range(5):
        if i == 3:
            search = reopen(search)
        (job,) = search.more()
        values = search.study.trials[-1].values
        assert -1 <= values["a"] <= 1
        assert values["b"] in range(1, 101)
        play(search, job, [-(values["a"] ** 2)])


@pytest.mark.parametrize(
    ("sampler", "pruner", "made"),
    [
        ("random", "none", ("RandomSampler", "NopPruner")),
        ("tpe", "median", ("TPESampler", "MedianPruner")),
        ("gp", "halving", ("GPSampler", "SuccessiveHalvingPruner")),
        ("cma", "none", ("CmaEsSampler", "NopPruner")),
    ],
)
def test_who_proposes_and_who_prunes_are_those_that_were_named(make, monkeypatch, sampler, pruner, made):
    import optuna

    if sampler in ("gp", "cma"):
        pytest.importorskip("scipy" if sampler == "gp" else "cmaes")
    asked, create_study = [], optuna.create_study

    def create(**options):
        asked.append((type(options["sampler"]).__name__, type(options["pruner"]).__name__))
        return create_study(**options)

    monkeypatch.setattr(optuna, "create_study", create)
    make(sampler=sampler, pruner=pruner).more()
    assert asked == [made]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_what_is_proposed_follows_from_the_seed(make, sampler):
    def proposed(seed):
        search = make(seed=seed, sampler=sampler)
        search.more()
        return search.study.trials[0].values

    assert proposed(3) == proposed(3) != proposed(4)


@pytest.mark.parametrize(("keys", "trials"), [("ab", 7), ("a", 9)])
def test_little_can_be_said_of_few_trials_and_nothing_of_one_key(make, keys, trials):
    search = make({key: Interval(0, 1) for key in keys}, trials=trials, sampler="random")
    while jobs := search.more():
        play(search, jobs[0], [search.study.trials[-1].values["a"] * 10])
    assert search.study.importances() == {}


def test_what_matters_is_told_apart_from_what_does_not(make):
    search = make({"a": Interval(0, 1), "b": Interval(0, 1)}, trials=24, sampler="random")
    assert search.study.importances() == {}
    while jobs := search.more():
        play(search, jobs[0], [search.study.trials[-1].values["a"] * 10])
    found = search.study.importances()
    assert found["a"] > found["b"]


def test_no_search_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="is no search"):
        Study.open(tmp_path)
