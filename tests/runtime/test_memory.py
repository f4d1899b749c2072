import gc
import sys
from pathlib import Path

import pytest
from graphs import COUNTER

ROUNDS = 1000
FIRST = 1400  # numpy, Ray and the reports have filled their small caches by then


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.exhaustive)])
def test_no_memory_is_kept_per_round(build_graph, mode):
    """Collects, inserts, updates, versions, reports, evaluations and checkpoints leave no objects."""
    graph = build_graph(
        COUNTER, f"mode={mode}", "worker.num=1", "worker.envs=2", "worker.block_rows=2", "replay.capacity=200",
        "orchestrator.sample_insert_ratio=0.5", "orchestrator.sample_load_ratio=4", "manage.eval_period=20",
        "checkpoint.period=1000", "checkpoint.replay=off", "logger.report_s=1e-9",
        f"total_env_steps={2 * (FIRST + ROUNDS + 100)}",
    )  # fmt: skip
    graph.progress.usage.sample = lambda: 0  # looks at all processes; 5 ms each
    graph.reports.console.line = lambda text: None
    blocks, dispatch = {}, graph.pool.dispatch

    def count(*args):
        rounds = graph.progress.env_steps // 2
        if rounds in (FIRST, FIRST + ROUNDS) and rounds not in blocks:
            graph.evaluations.clear()  # the test's own
            gc.collect()
            blocks[rounds] = sys.getallocatedblocks()
        return dispatch(*args)

    graph.pool.dispatch = count
    graph.run()
    early, late = blocks.values()
    assert graph.progress.loads > 300
    assert late - early < ROUNDS / 4


def test_the_installed_ray_has_the_setting():
    """Ray ignores an unknown setting, and gcs_server would then grow by 3 KB per call."""
    import ray

    server = Path(ray.__file__).parent / "core/src/ray/gcs/gcs_server"
    assert b"RAY_task_events_report_interval_ms" in server.read_bytes()
