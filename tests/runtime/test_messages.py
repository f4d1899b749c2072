from headers import make_block

from drl_cli.runtime.messages import InsertTransition, MessageCounts


def test_rows_and_env_steps_are_sums_over_blocks():
    blocks = (make_block(30, last_env_step=32), make_block(28, worker=1, last_env_step=32))
    header = InsertTransition(blocks, (), 0.25)
    assert (header.rows, header.env_steps, InsertTransition((), (), 0.0).rows) == (58, 64, 0)


def test_message_counts_cover_every_route_and_call_the_observer():
    seen = []
    counts = MessageCounts(lambda route, count, detail: seen.append((route, count, dict(detail))))
    assert set(counts.counts) == set(range(1, 9))
    counts.add(2)
    counts.add(1, 3)
    counts.add(8, 0)
    counts.add(7, member=1, version=4)
    assert seen == [(2, 1, {}), (1, 3, {}), (7, 1, {"member": 1, "version": 4})]
    assert {route: count for route, count in counts.take().items() if count} == {1: 3, 2: 1, 7: 1}
    assert not any(counts.take().values())
