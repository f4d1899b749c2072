import pytest
from run_folders import make_run

from drl_cli.sweeps.ranking import print_jobs
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
