"""Every row in replay names the worker and the environment that made it."""

import numpy as np
import pytest
from graphs import COUNTER

from drl_cli.runtime.place.handles import get

TABLES = {
    "n_step": ("algo.n_step=3",),
    "prioritized": ("replay=prioritized", "replay.initial_priority=max"),
    "ppo": ("algo=ppo", "algo.minibatch_size=8", "orchestrator.limiter=none"),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("proxies", [0, 1])
def test_rows_name_worker_and_environment(build_graph, table, proxies):
    graph = build_graph(COUNTER, *TABLES[table], "mode=sync", "worker.num=2", f"worker.proxies={proxies}")
    seen, insert = [], graph.replay.shards[0].role.table.insert
    graph.replay.shards[0].role.table.insert = lambda columns, versions: (
        seen.append(columns),
        insert(columns, versions),
    )
    graph.run()
    obs, source = (np.concatenate([columns[name] for columns in seen]) for name in ("obs", "source"))
    assert source.dtype == np.int32
    members = [member.handle.role for member in graph.pool.members]
    workers = [member.handle.role for role in members for member in role.pool.members] if proxies else members
    tags = {2**16 * worker.index + i: tag for worker in workers for i, tag in enumerate(worker.envs.obs[:, 0])}
    assert set(source.tolist()) == set(tags) == {0, 1, 2, 3, 65536, 65537, 65538, 65539}
    assert all(obs[source == i, 0].tolist() == [tag] * int((source == i).sum()) for i, tag in tags.items())
    assert get(graph.replay.shards[0].call("contents")).keys() >= {"source"}
