"""How much one call between roles carries, where the config does not say."""

import pytest
from graphs import TINY, make_config


@pytest.mark.parametrize(
    ("ratio", "mode", "rows", "updates"),
    [
        *[(0.01, "sync", 512, 5), (0.01, "async", 1024, 10)],  # no more updates than a hand-over pays for
        *[(0.1, "single", 320, 16), (0.1, "async", 640, 32)],
        *[(1.0, "sync", 32, 16), (1.0, "async", 64, 32)],
        *[(8.0, "single", 16, 16), (8.0, "async", 16, 32)],  # no less than a step of every environment
    ],
)
def test_a_hand_over_pays_for_two_train_calls_up_to_a_most(ratio, mode, rows, updates):
    config = make_config(f"orchestrator.sample_insert_ratio={ratio}", f"mode={mode}", "worker.envs=16")
    assert (config.block_rows, config.updates_per_call) == (rows, updates)


def test_what_is_given_holds_in_every_mode():
    config = make_config("mode=async", "worker.block_rows=48", "trainer.updates_per_call=7", "worker.envs=16")
    assert (config.block_rows, config.updates_per_call) == (48, 7)


@pytest.mark.parametrize(
    ("overrides", "least", "most"),
    [
        (["mode=async", "debug.in_process=false"], 1.0, 1.0),  # from the first on, when nobody knows how long they take
        (["mode=async", "trainer.updates_per_call=4"], 3.0, 4.0),
        (["mode=sync"], 3.0, 4.0),
        (["mode=async", "debug.in_process=true"], 3.0, 4.0),  # equal seeds give equal weights
    ],
)
def test_train_calls_of_slow_updates_are_short_in_async(build_graph, monkeypatch, overrides, least, most):
    monkeypatch.setattr("drl_cli.runtime.orchestrator.learning.CALL_S", 0.0)
    rows = ("worker.num=1", "worker.envs=2", "worker.block_rows=4", "orchestrator.sample_insert_ratio=1")
    graph = build_graph(*TINY, *rows, "orchestrator.min_inserts=32", "total_env_steps=96", *overrides)
    graph.run()
    progress = graph.progress
    assert progress.opt_steps >= 48
    assert least <= progress.opt_steps / progress.trace.counts[4] <= most
