"""Learning: how often a version is published."""

from itertools import pairwise

import pytest
from graphs import COUNTER


@pytest.mark.parametrize(("ratio", "apart"), [(4, 8), (7, 8), (8, 8), (9, 16)])
def test_a_version_follows_as_soon_as_its_updates_are_there(build_graph, ratio, apart):
    """Train calls make four updates each, and two of them are in flight."""
    calls = ("trainer.updates_per_call=4", f"orchestrator.sample_load_ratio={ratio}")
    graph = build_graph(COUNTER, "mode=async", *calls)
    published, on_published = [], graph.learning.on_published

    def note(load, params):
        published.append(load.opt_steps)
        on_published(load, params)

    graph.learning.on_published = note
    graph.run()
    assert {after - before for before, after in pairwise(published)} == {apart}
