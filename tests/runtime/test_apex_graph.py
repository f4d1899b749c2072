"""Ape-X in a run: replay ratio, ladder and first priorities in every mode."""

import numpy as np
import pytest

APEX = ("env=CartPole-v1", "algo=apex", "total_env_steps=1200", "orchestrator.sample_insert_ratio=0.5")


@pytest.mark.parametrize(("mode", "workers"), [("single", 1), ("sync", 2), ("async", 4)])
def test_ape_x_keeps_its_ratio_and_its_ladder(run_graph, mode, workers):
    graph = run_graph(*APEX, f"mode={mode}", f"worker.num={workers}")
    progress, (table,) = graph.progress, [shard.role.table for shard in graph.replay.shards]
    assert progress.updates_per_env_step() == pytest.approx(0.5, rel=0.02)
    assert progress.trace.counts[5] == progress.trace.counts[4] > 0
    epsilon = np.concatenate([member.handle.role.policy.epsilon for member in graph.pool.members])
    last = 4 * workers - 1
    assert epsilon == pytest.approx([0.4 ** (1 + 7 * i / last) for i in range(last + 1)])
    values = table.sampler.tree.values[: len(table)]
    assert len(np.unique(values)) > 0.9 * len(table)  # none has the largest one of the time
    assert table.stats()["bad_priorities"] == 0
