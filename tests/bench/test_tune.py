"""Which settings are tried, and which is taken."""

from graphs import make_config

from drl_cli.bench.end_to_end import Pace
from drl_cli.bench.tune import Setting, advice, choose, promising, settings, thread_counts


def test_thread_counts_are_powers_of_two_and_the_number_of_cores():
    assert [thread_counts(cores) for cores in (1, 2, 3, 6, 16)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4, 6],
        [1, 2, 4, 8, 16],
    ]


def test_settings_are_all_combinations_up_to_the_cores():
    found = settings(2, [1, 2])
    assert len(found) == len(set(found)) == 2 * 2 * 3
    assert {(one.workers, one.threads, one.envs) for one in found} >= {(1, 1, 8), (2, 2, 32)}
    assert max(one.workers for one in found) == 2


def test_the_fastest_are_tried_and_of_those_about_as_fast_the_smallest():
    predicted = {
        Setting(2, 1, 8): 1000.0,
        Setting(1, 1, 16): 950.0,  # within 10% of the best
        Setting(1, 2, 8): 930.0,
        Setting(1, 1, 8): 500.0,
        Setting(1, 1, 32): 600.0,
    }
    order = [Setting(1, 1, 16), Setting(1, 2, 8), Setting(2, 1, 8), Setting(1, 1, 32), Setting(1, 1, 8)]
    assert promising(predicted, 5) == order
    assert promising(predicted, 2) == order[:2]


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


def test_advice_names_the_bottleneck_and_the_ratio_that_balances():
    said, ratio = advice(pace(0.5, 0.0), 0.25)
    assert said.startswith("the trainer is the bottleneck: workers wait 50%")
    assert ratio.startswith("orchestrator.sample_insert_ratio=0.12 ")
    assert "it is 0.25" in ratio
    said, ratio = advice(pace(0.0, 0.75), 0.25)
    assert said.startswith("the workers are the bottleneck")
    assert ratio.startswith("orchestrator.sample_insert_ratio=1 ")


def test_no_ratio_is_proposed_when_both_are_busy_or_there_is_none():
    (said,) = advice(pace(0.05, 0.09), 0.25)
    assert said.startswith("both sides are busy")
    (said,) = advice(pace(0.5, 0.0), None)
    assert said.startswith("the trainer is the bottleneck")
