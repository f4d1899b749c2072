"""Tables of every kind, and the calls that a run makes to them."""

import copy
from dataclasses import replace

import numpy as np
from images import ImageSteps, image_spec

from drl_cli.replay.builders import NStepBuilder
from drl_cli.replay.config import FifoConfig, PrioritizedConfig, UniformConfig
from drl_cli.replay.frame_table import FrameTable, reference_schema
from drl_cli.replay.frames import FrameBuilder, make_codec, make_stackings
from drl_cli.types import Column, transition_schema

OPTIONS = ("max", 0.6, 0.4, 1e-6, 0.1)
SCHEMA = {"id": Column((), "int64"), "obs": Column((3,), "float32"), "terminated": Column((), "bool")}
LENGTH = 3
"""Steps of a row_ids: one to burn in, two to learn from, of which one overlaps."""
SPEC = image_spec(-1, 3)
CONFIGS = {
    "uniform": UniformConfig("uniform", 40, 1, "oldest", "none"),
    "random": UniformConfig("uniform", 40, 1, "random", "none"),
    "prioritized": PrioritizedConfig("prioritized", 40, 1, "oldest", "none", *OPTIONS),
    "prioritized-random": PrioritizedConfig("prioritized", 40, 1, "random", "none", *OPTIONS),
    "prioritized-faded": PrioritizedConfig("prioritized", 40, 1, "oldest", "none", *OPTIONS, age_factor=0.9),
    "sequences": PrioritizedConfig(
        "sequences", 40, 1, "oldest", "none", *OPTIONS, rows="sequences", seq_len=2, burn_in=1, overlap=1
    ),
    "fifo-once": FifoConfig("fifo-once", 40, 1, 2),
    "fifo": FifoConfig("fifo", 40, 1, 3, times=3),
    "frames": UniformConfig("uniform", 40, 1, "oldest", "none"),
    "frames-lz4": UniformConfig("uniform", 40, 1, "oldest", "lz4"),
    "frames-prioritized": PrioritizedConfig("prioritized", 40, 1, "random", "lz4", *OPTIONS),
}


def make(kind, seed=0, capacity=40):
    config, rng = replace(CONFIGS[kind], capacity=capacity), np.random.default_rng(seed)
    if not kind.startswith("frames"):
        return config.make_table(SCHEMA, rng, 50)
    inner = config.make_table(reference_schema(transition_schema(SPEC), make_stackings(SPEC)), rng, 50)
    return FrameTable(inner, make_stackings(SPEC), make_codec(config.compress))


def clone(table):
    """Return a deep copy of a table that shares only its codec."""
    codec = getattr(table, "codec", None)
    return copy.deepcopy(table, {id(codec): codec})


class Source:
    """Makes blocks for tables of one kind, as workers send them."""

    def __init__(self, kind, seed=0, codec=None):
        self.kind, self.rng, self.rows = kind, np.random.default_rng(seed), 0
        if kind.startswith("frames"):
            stackings, codec = make_stackings(SPEC), codec or make_codec(CONFIGS[kind].compress)
            self.steps = ImageSteps(SPEC, 1, self.rng, greys=4)
            self.builder = FrameBuilder(NStepBuilder(1, 0.9), stackings, codec, 0, 0, 0)

    def block(self, rows):
        """Return columns and versions of `rows` transitions (at least 1 for frames)."""
        rows = max(rows, 1 if self.kind.startswith("frames") else 0)
        self.rows += rows
        versions = np.full(rows, self.rows // 20)
        if self.kind.startswith("frames"):
            for _ in range(rows):
                self.builder.append(self.steps.step())
            return self.builder.take(), versions
        shape = (rows, LENGTH) if self.kind == "sequences" else (rows,)
        ids = np.arange(self.rows - rows, self.rows)
        columns = {
            "id": np.broadcast_to(ids.reshape(-1, *[1] * (len(shape) - 1)), shape),
            "obs": self.rng.random((*shape, 3), np.float32),
            "terminated": self.rng.random(shape) < 0.5,
        }
        if self.kind == "sequences":
            columns["valid"] = self.rng.random(shape) < 0.7
            columns["valid"][:, -1] = True
        return columns, versions


def call(table, block, rng):
    """Insert a block, sample and update priorities. Return everything that the table returned."""
    table.insert(*block)
    if not len(table):
        return []
    drawn = table.sample(2, 4, int(block[1].max(initial=0)))
    if drawn.row_ids is not None:
        steps = (LENGTH - 1,) if "valid" in drawn.columns else ()
        for numbers in (drawn.row_ids, drawn.row_ids - 20):
            table.update_priorities(np.maximum(numbers, 0), rng.random((*drawn.row_ids.shape, *steps)))
    numbers = [] if drawn.row_ids is None else [drawn.row_ids]
    return [*drawn.columns.values(), *numbers, np.array([drawn.num_batches, drawn.waiting, drawn.repeats])]


def check_equal_answers(tables, source, seed=0, calls=8):
    rngs = [np.random.default_rng(seed) for _ in tables]
    check_same(tables)
    for _ in range(calls):
        block = source.block(int(source.rng.integers(0, 9)))
        seen = [call(table, copy.deepcopy(block), rng) for table, rng in zip(tables, rngs, strict=True)]
        for other in seen[1:]:
            for a, b in zip(seen[0], other, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)
        check_same(tables)


def check_same(tables):
    """Check that counts, statistics, rows and state of all tables are equal."""
    first = tables[0]
    for other in tables[1:]:
        assert (other.inserts, len(other), other.stats()) == (first.inserts, len(first), first.stats())
        for own, its in ((first.contents(), other.contents()), (first.state(), other.state())):
            assert own.keys() == its.keys()
            for name in own:
                np.testing.assert_array_equal(own[name], its[name])
        assert other.store.stamps(4) == first.store.stamps(4)
