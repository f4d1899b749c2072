import csv

import pytest
from run_folders import make_run

from drl_cli.sweeps.jobs import line
from drl_cli.sweeps.results import print_jobs, print_next
from drl_cli.sweeps.sweep import Sweep


@pytest.fixture
def tables(tmp_path, capsys):
    """Print the tables of a sweep over these values of seed and lr. A job's return is `returns[seed, lr]`."""

    def make(returns):
        sweep = Sweep(tmp_path, [])
        sweep.add([[f"seed={seed}", f"algo.lr={lr}"] for seed, lr in returns])
        for job, ((seed, lr), values) in zip(sweep.jobs, returns.items(), strict=True):
            summary = {} if values is None else {"best_return": values[0], "final_return": values[1], "env_steps": 9}
            job.run = make_run(tmp_path, f"r{job.number}", summary=summary, seed=seed, algo__lr=lr)
        print_jobs(sweep)
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return make


def test_a_sweep_over_seeds_ends_with_means_and_spreads(tables):
    returns = {(0, 0.1): (1.0, 0.0), (1, 0.1): (3.0, 2.0), (0, 0.2): (7.0, 7.0), (1, 0.2): (8.0, 1.0), (2, 0.2): None}
    lines = tables(returns)
    assert lines[6] == "rank best mean ± std final mean ± std seeds algo.lr"
    assert lines[7:] == ["1 7.5 ± 0.7 4.0 ± 4.2 2 0.2", "2 2.0 ± 1.4 1.0 ± 1.4 2 0.1"]


def test_jobs_of_one_seed_have_no_means(tables):
    assert len(tables({(0, 0.1): (1.0, 0.0), (0, 0.2): (3.0, 2.0)})) == 3


def test_a_group_of_one_seed_has_no_spread(tables):
    lines = tables({(0, 0.1): (1.0, 0.0), (1, 0.1): (2.0, 0.0), (0, 0.2): (7.0, 3.0)})
    assert lines[5] == "1 7.0 ± - 3.0 ± - 1 0.2"


def test_a_sweep_over_seeds_only_has_one_mean(tables):
    lines = tables({(0, 0.1): (1.0, 0.0), (1, 0.1): (2.0, 1.0)})
    assert lines[3:] == ["rank best mean ± std final mean ± std seeds", "1 1.5 ± 0.7 0.5 ± 0.7 2"]


def test_a_sweep_without_an_evaluation_has_no_means(tables):
    assert len(tables({(0, 0.1): None, (1, 0.1): None})) == 3


def test_jobs_of_an_offline_sweep_count_updates(tmp_path, capsys):
    sweep = Sweep(tmp_path, [])
    sweep.add([["seed=0"], ["seed=1"]])
    sweep.jobs[0].run = make_run(tmp_path, "r1", summary={"best_return": 1.0, "opt_steps": 2000}, mode="offline")
    print_jobs(sweep)
    _, done, _ = (row.split("  ") for row in capsys.readouterr().out.splitlines())
    assert "2,000 updates" in done
    assert "2,000 updates" in line(sweep.jobs[0], 2)
    sweep.save()
    first = next(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert (first["env_steps"], first["opt_steps"]) == ("", "2000")


@pytest.fixture
def recommended(tmp_path, capsys, monkeypatch):
    """Return what is printed after a sweep with these words and best returns of its jobs, without the last line."""

    def run(jobs):
        monkeypatch.chdir(tmp_path)
        sweep = Sweep(tmp_path, [])
        sweep.add([words.split() for words in jobs])
        for job, value in zip(sweep.jobs, jobs.values(), strict=True):
            summary = {} if value is None else {"best_return": value, "final_return": value}
            job.run = make_run(tmp_path, f"r{job.number}", summary=summary)
            (job.run / "checkpoints" / "best").mkdir(parents=True)
        print_next(sweep)
        *lines, compare = capsys.readouterr().out.splitlines()
        assert compare.split() == ["drl-compare", "."]
        return lines

    return run


def test_the_best_group_is_recommended_and_not_the_luckiest_seed(recommended):
    lucky = {"algo=ppo seed=0": 500.0, "algo=ppo seed=1": 9.0, "algo=dqn seed=0": 300.0, "algo=dqn seed=1": 310.0}
    group, command = recommended(lucky)
    assert group == "best group: algo=dqn (mean of the best returns 305.0, 2 seeds); drl-eval takes its best seed"
    assert command == "next: drl-eval run=Pole/dqn-single/r4 episodes=100"


def test_the_jobs_of_one_group_need_no_name_of_the_group(recommended):
    assert recommended({"seed=0": 5.0, "seed=1": 9.0, "seed=2": None}) == [
        "next: drl-eval run=Pole/dqn-single/r2 episodes=100"
    ]


def test_groups_of_one_seed_are_in_the_table_already(recommended):
    assert recommended({"algo=dqn": 5.0, "algo=ppo": 1.0}) == ["next: drl-eval run=Pole/dqn-single/r1 episodes=100"]


def test_each_environment_has_a_best_run(recommended):
    lines = recommended({"env=A lr=1": 500.0, "env=A lr=2": 400.0, "env=B lr=1": -2.0, "env=B lr=2": -1.0})
    assert [line.split()[-2] for line in lines] == [f"run=Pole/dqn-single/r{number}" for number in (1, 4)]
