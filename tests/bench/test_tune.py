import pytest
from graphs import make_config

from drl_cli.bench import tune
from drl_cli.bench.end_to_end import Pace
from drl_cli.bench.figures import Rate
from drl_cli.bench.tune import Setting, advice, bound, choose, promising, thread_counts


def test_thread_counts_are_powers_of_two_and_the_number_of_cores():
    assert [thread_counts(cores) for cores in (1, 3, 6, 16)] == [[1], [1, 2, 3], [1, 2, 4, 6], [1, 2, 4, 8, 16]]


def test_the_fastest_are_tried_and_of_those_about_as_fast_the_smallest(monkeypatch):
    predicted = {
        Setting(2, 1, 8): 1000.0,
        Setting(1, 1, 16): 950.0,  # within 10% of the best
        Setting(1, 2, 8): 930.0,
        Setting(1, 1, 8): 500.0,
        Setting(1, 1, 32): 600.0,
    }
    order = [Setting(1, 1, 16), Setting(1, 2, 8), Setting(2, 1, 8), Setting(1, 1, 32), Setting(1, 1, 8)]
    for tried in (5, 2):
        monkeypatch.setattr(tune, "TRIED", tried)
        assert promising(predicted) == order[:tried]


def test_the_smallest_of_the_fastest_is_chosen():
    measured = {Setting(2, 1, 8): 1000.0, Setting(1, 2, 16): 980.0, Setting(1, 1, 8): 960.0}
    assert choose(measured) == Setting(1, 2, 16)
    assert choose({**measured, Setting(1, 1, 8): 975.0}) == Setting(1, 1, 8)
    assert choose({**measured, Setting(8, 1, 8): 1100.0}) == Setting(8, 1, 8)


def test_a_setting_as_keys_and_in_a_config():
    setting, config = Setting(3, 2, 8), make_config("mode=single")
    assert setting.keys == ["worker.num=3", "worker.envs=8", "trainer.threads=2"]
    other = setting.of(config)
    assert (other.mode, other.num_workers, other.worker.envs, other.trainer.threads) == ("async", 3, 8, 2)
    assert (other.orchestrator, other.algo) == (config.orchestrator, config.algo)  # what is learned stays


def pace(worker_wait, trainer_wait):
    return Pace(1000.0, 250.0, worker_wait, trainer_wait, 1.0)


@pytest.mark.parametrize(
    ("waits", "says", "balanced"),
    [
        ((0.5, 0.0), "the trainer is the bottleneck: workers wait 50%", "0.12"),
        ((0.0, 0.75), "the workers are the bottleneck", "1"),
        ((0.75, 0.75), "the workers are the bottleneck", "0.25"),
        ((0.0, 1.0), "the workers are the bottleneck", "25"),
    ],
)
def test_advice_names_the_bottleneck_and_the_ratio_that_balances(waits, says, balanced):
    line, ratio = advice(pace(*waits), 0.2)
    assert line.startswith(says)
    assert ratio.startswith(f"orchestrator.sample_insert_ratio={balanced} ")
    assert "it is 0.2" in ratio


def test_no_ratio_is_proposed_when_both_are_busy_or_there_is_none():
    (said,) = advice(pace(0.05, 0.09), 0.25)
    assert said.startswith("both sides are busy")
    (said,) = advice(pace(0.5, 0.0), None)
    assert said.startswith("the trainer is the bottleneck")


FREE = 1e12
"""Rate per second of processor time of a process that only sleeps."""


@pytest.mark.parametrize(
    ("mode", "workers", "cores", "worker", "trainer", "expected"),
    [
        ("async", 1, 4, Rate(1000, 1000), Rate(3000, 3000), (1000, "workers")),
        ("async", 3, 4, Rate(1000, 1000), Rate(2000, 2000), (2000, "trainer")),
        ("async", 8, 4, Rate(1000, 1000), Rate(6000, 6000), (4 / (1 / 1000 + 1 / 6000), "processors")),
        ("async", 8, 1, Rate(1000, FREE), Rate(9000, FREE), (8000, "workers")),  # sleeping ones use no processor
        ("single", 1, 2, Rate(1000, 1000), Rate(3000, 3000), (750, "workers")),
        ("sync", 4, 2, Rate(1000, 1000), Rate(500, 500), (400, "trainer")),  # 2000 and 500
    ],
)
def test_the_lowest_limit_is_the_bound_and_times_add_up_without_async(mode, workers, cores, worker, trainer, expected):
    rate, whose = bound(mode, workers, cores, worker, trainer)
    assert (rate, whose) == (pytest.approx(expected[0]), expected[1])
