import tempfile

import pytest
from graphs import make_config

from drl_cli.bench.pace import HEAD, Pace, Setting, advice, choose, measure, overridden, pace, tune
from drl_cli.errors import RunError

SMALL = (
    "env=Pendulum-v1", "debug.in_process=true", "network.hidden=[16,16]", "worker.num=1", "worker.envs=2",
    "worker.block_rows=16", "trainer.batch_size=8", "replay.capacity=2000", "orchestrator.min_inserts=32",
)  # fmt: skip


def report(*values):
    names = ("perf/wall_s", "env_steps", "perf/opt_steps", "perf/worker_wait_s", "perf/trainer_wait_s")
    return dict(zip(names, values, strict=True))


def test_the_pace_lies_between_the_first_and_the_last_report():
    reports = [report(10, 1000, 50, 2, 1), report(11, 1200, 100, 2.5, 1), report(14, 2400, 250, 4, 3)]
    found = pace(reports, make_config("worker.num=2"), 3.5)
    assert (found.env_steps_per_s, found.opt_steps_per_s, found.ratio) == (350, 50, pytest.approx(1 / 7))
    assert (found.worker_wait, found.trainer_wait) == (0.25, 0.5)  # 2 s of two workers, 2 of 4 s
    assert (found.rounds, found.start_up_s) == ((200, 400), 3.5)
    assert str(found).split() == ["350", "200", "-", "400", "50", "0.143", "25%", "50%", "3.5"]
    assert len(str(found)) == len(HEAD)


def test_an_override_replaces_older_values_of_its_key():
    command = ["worker.num=3", "++worker.envs=4", "env=X", "worker.num_x=1", "mode=single"]
    changed = overridden(command, "worker.num=1", "worker.envs=8", "mode=async")
    assert changed == ["env=X", "worker.num_x=1", "worker.num=1", "worker.envs=8", "mode=async"]


def test_a_run_that_ends_too_early_is_an_error_with_its_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RunError, match="environment") as caught:
        measure([*SMALL, "env=Pendulum-v7"], make_config(*SMALL), 0.3)
    assert (caught.value.exit_code, list(tmp_path.iterdir())) == (2, [])


def test_one_number_after_another_is_measured_with_the_best_of_those_before():
    rates, asked = {(1, 2, 8): 500, (1, 2, 16): 900, (3, 2, 16): 2000, (3, 1, 16): 1990}, []

    def measure(one):
        asked.append((one.workers, one.threads, one.envs))
        return Pace(float(rates.get(asked[-1], 1)), 1.0, 0.0, 0.0, 1.0)

    best = tune(Setting(1, 2, 1), 3, lambda one: one.envs < 32, measure)
    assert best == Setting(3, 1, 16)  # as fast as with 2 threads
    assert asked[:4] == [(1, 2, 1), (1, 2, 8), (1, 2, 16), (2, 2, 16)]
    assert {*asked[4:]} == {(3, 2, 16), (3, 1, 16), (3, 3, 16)}


def test_without_a_setting_that_fits_the_run_keeps_its_own():
    assert tune(Setting(1, 2, 1), 2, lambda one: False, lambda one: None) == Setting(1, 2, 1)


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


def pace_of(worker_wait, trainer_wait):
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
    line, ratio = advice(pace_of(*waits), 0.2)
    assert line.startswith(says)
    assert ratio.startswith(f"orchestrator.sample_insert_ratio={balanced} ")
    assert "it is 0.2" in ratio


def test_no_ratio_is_proposed_when_both_are_busy_or_there_is_none():
    (said,) = advice(pace_of(0.05, 0.09), 0.25)
    assert said.startswith("both sides are busy")
    (said,) = advice(pace_of(0.5, 0.0), None)
    assert said.startswith("the trainer is the bottleneck")
