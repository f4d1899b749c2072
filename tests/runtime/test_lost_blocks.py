"""A block that is lost on its way to replay is reported and not counted."""

import pytest
from counting import check_counter_rows
from graphs import COUNTER

from drl_cli.runtime.edges.worker_pool import Collected
from drl_cli.runtime.place.handles import LocalRef, ObjectLost, get


@pytest.mark.parametrize(("mode", "proxies"), [("sync", 1), ("async", 0)])
def test_a_lost_block_is_counted_nowhere(build_graph, caplog, mode, proxies):
    args = (COUNTER, f"mode={mode}", "worker.num=2", f"worker.proxies={proxies}", "total_env_steps=1000")
    graph = build_graph(*args)
    finish, finished = graph.pool.finish, []

    def lose_one(ref):
        done = finish(ref)
        finished.append(done)
        if len(finished) != 7:
            return done
        return Collected(done.member, done.header, LocalRef(error=ObjectLost("node 10.0.0.7 is gone")), done.loaded)

    graph.pool.finish = lose_one
    graph.run()
    graph.finish()
    lost = finished[6].header
    assert (
        f"a block of {lost.rows} transitions was lost on its way to replay (node 10.0.0.7 is gone)" in caplog.messages
    )
    progress = graph.progress
    assert progress.inserts == progress.env_steps == graph.limiter.inserts == graph.limiter.landed
    assert progress.env_steps >= 1000
    assert progress.inserts == sum(done.header.rows for done in finished) - lost.rows
    assert progress.num_episodes == sum(len(done.header.episodes) for done in finished) - len(lost.episodes)
    assert progress.samples == progress.opt_steps
    assert graph.limiter.target == 0.25 * (progress.inserts - 64)
    assert abs(graph.limiter.target - progress.samples) <= graph.limiter.band / 2
    (shard,) = graph.replay.shards
    assert len(get(shard.call("contents"))["reward"]) == progress.inserts
    with pytest.raises(AssertionError):  # the gap that it left
        check_counter_rows(get(shard.call("contents")), 1, 0.99, progress.env_steps)
