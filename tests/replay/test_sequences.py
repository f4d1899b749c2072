from dataclasses import replace

import numpy as np
import pytest
from counting import check_counter_sequences
from graphs import make_config
from hypothesis import given, settings
from hypothesis import strategies as st
from images import ImageSteps, image_spec
from replays import CONFIGS

from drl_cli import types
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.replay.builders import NStepBuilder, SequenceBuilder, mix, sequence_schema
from drl_cli.replay.frame_table import FrameTable, reference_schema
from drl_cli.replay.frames import FrameBuilder, make_codec, make_stackings
from drl_cli.replay.store import RingStore
from drl_cli.types import ActionSpec, Column, EnvSpec, num_rows, transition_schema

EXTRA = {"log_prob": Column((), "float32"), "state": Column((2,), "float32")}


@st.composite
def shapes(draw):
    seq_len = draw(st.integers(1, 7))
    return seq_len, draw(st.integers(0, 6)), draw(st.integers(0, seq_len - 1))


def collect(builder, blocks, num_envs, kwargs):
    """Return blocks of these numbers of steps of Counter; the policy's state is [environment, time]."""
    config = EnvConfig("counter", "drl_cli.envs.probes:Counter-v0", kwargs, None, 1.0, "none", False, False)
    envs, rng, taken, time = EnvBatch(config, read_spec(config), range(num_envs)), np.random.default_rng(0), [], 0
    for num_steps in blocks:
        for _ in range(num_steps):
            state = np.stack([np.arange(num_envs), np.full(num_envs, time)], 1).astype(np.float32)
            action = rng.uniform(-1, 1, (num_envs, 1)).astype(np.float32)
            policy = {"action": action, "log_prob": action[:, 0] * 2, "state": state}
            builder.append({"obs": envs.obs.copy(), **policy, **vars(envs.step(action))})
            time += 1
        taken.append(builder.take())
    return taken


def joined(blocks):
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


@settings(deadline=None, max_examples=70)
@given(
    shape=shapes(),
    num_envs=st.integers(1, 3),
    blocks=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    base_length=st.integers(1, 9),
    spread=st.integers(1, 5),
    gamma=st.sampled_from([0.0, 0.99, 1.0]),
    scale=st.sampled_from([1.0, 0.5]),
)
def test_sequences_of_counter(shape, num_envs, blocks, base_length, spread, gamma, scale):
    builder = SequenceBuilder(*shape, gamma, scale)
    rows = joined(collect(builder, blocks, num_envs, {"base_length": base_length, "spread": spread}))
    starts, left = check_counter_sequences(rows, num_envs, sum(blocks), *shape, gamma, scale, base_length, spread)
    assert builder.open_rows == left
    np.testing.assert_array_equal(rows["log_prob"], 2 * rows["action"][:, :, 0])
    assert ((rows["action"][:, :, 0] != 0) == rows["valid"]).all()
    # The state is that of the first real step: who it is, and how many steps it had taken.
    assert rows["state"].tolist() == [[tag, begun + first] for tag, begun, first in starts]


# Rewards 1 2 3 4 5 | 6 ...: an episode of five steps that terminates; seq_len 3, burn_in 2, overlap 1.
def test_a_worked_example():
    builder = SequenceBuilder(3, 2, 1, 0.5)
    (rows,) = collect(builder, [7], 1, {"base_length": 5, "spread": 1})
    assert rows["reward"].tolist() == [[0, 0, 1, 2, 3], [1, 2, 3, 4, 5]]
    assert rows["valid"].tolist() == [[False, False, True, True, True], [True] * 5]
    assert rows["discount"].tolist() == [[0, 0, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5, 0.0]]
    assert (rows["state"].tolist(), builder.open_rows) == ([[0, 0], [0, 0]], 2)


def test_rows_have_the_types_of_the_schema():
    builder = SequenceBuilder(4, 2, 1, 0.9)
    config = EnvConfig("counter", "drl_cli.envs.probes:Counter-v0", {}, None, 1.0, "none", False, False)
    schema = sequence_schema(transition_schema(read_spec(config), EXTRA), 6)
    first, second = collect(builder, [1, 20], 2, {})
    assert num_rows(first) == 0
    for rows in (first, second):
        assert {name: (column.shape[1:], column.dtype.name) for name, column in rows.items()} == {
            name: (column.shape, column.dtype) for name, column in schema.items()
        }
    store = RingStore(schema, 100)
    store.insert(second)
    np.testing.assert_array_equal(store.take(np.arange(len(store)))["obs"], second["obs"])


@settings(deadline=None, max_examples=70)
@given(
    shape=shapes(),
    num_envs=st.integers(1, 3),
    blocks=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    p_end=st.sampled_from([0.0, 0.1, 0.5]),
    p_fail=st.sampled_from([0.05, 0.2, 0.6]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sequences_end_before_invalid_steps(shape, num_envs, blocks, p_end, p_fail, seed):
    """The rows equal those without invalid steps, with the step before an invalid one truncated."""
    rng, builder, taken = np.random.default_rng(seed), SequenceBuilder(*shape, 0.9), []
    steps, time = [[] for _ in range(num_envs)], 0
    for num_steps in blocks:
        for _ in range(num_steps):
            valid = rng.random(num_envs) >= p_fail
            ended = valid & (rng.random(num_envs) < p_end)
            obs = np.stack([np.arange(num_envs), np.full(num_envs, time)], 1).astype(np.float32)
            step = {"obs": obs, "reward": obs[:, 1], "state": obs, "terminated": ended & (obs[:, 1] % 2 == 0)}
            step |= {"truncated": ended & ~step["terminated"], "valid": valid}
            builder.append(step)
            time += 1
            for env, mine in enumerate(steps):
                mine.append({name: column[env : env + 1].copy() for name, column in step.items()})
        taken.append(builder.take())
    rows, open_rows = joined(taken), 0
    for env, mine in enumerate(steps):
        alone = SequenceBuilder(*shape, 0.9)
        for step, following in zip(mine, [*mine[1:], None], strict=True):
            if step["valid"][0]:
                is_broken = following is not None and not following["valid"][0] and not step["terminated"][0]
                alone.append({**step, "was": step["truncated"], "truncated": step["truncated"] | is_broken})
        own, expected = rows["state"][:, 0] == env, alone.take() if any(step["valid"][0] for step in mine) else None
        if expected is None:
            assert not own.any()
            continue
        open_rows += alone.open_rows
        is_filled = expected["valid"][:, -1:]  # such a row was complete before the environment failed
        expected["truncated"] = expected.pop("was") | (expected["truncated"] & ~is_filled)
        for name, column in expected.items():
            np.testing.assert_array_equal(rows[name][own], column, err_msg=name)
    assert builder.open_rows == open_rows


def test_a_builder_keeps_no_more_steps_than_it_needs():
    builder = SequenceBuilder(4, 3, 2, 0.9)
    for _ in range(5):
        collect(builder, [40], 3, {"base_length": 1000})
        assert len(builder.state()["steps.reward"]) <= 7


@pytest.mark.parametrize("eta", [0.0, 0.9, 1.0])
def test_priorities_of_valid_steps_are_mixed(eta):
    rng = np.random.default_rng(0)
    priorities, mask = rng.uniform(0, 5, (50, 6)).astype(np.float32), rng.random((50, 6)) < 0.6
    mask[:, 2] = True
    expected = [
        eta * max(row[real].tolist()) + (1 - eta) * sum(row[real].tolist()) / real.sum()
        for row, real in zip(priorities, mask, strict=True)
    ]
    np.testing.assert_allclose(mix(np.where(mask, priorities, 99.0), mask, eta), expected, rtol=1e-12)
    np.testing.assert_allclose(mix(np.where(mask, priorities, np.nan), mask, eta), expected, rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0])
def test_one_bad_priority_makes_a_sequence_nan(bad):
    mask = np.array([[True, True, False], [True, True, True]])
    mixed = mix(np.array([[1.0, 2.0, bad], [1.0, bad, 9.0]]), mask, 0.9)
    assert mixed[0] == pytest.approx(0.9 * 2 + 0.1 * 1.5)
    assert np.isnan(mixed[1])


SPECS = image_spec(-1, 3), image_spec(0, 2, (5, 4)), image_spec(-1, 1, (2, 2))
BOTH = EnvSpec(
    "both",
    {"a": SPECS[0].obs, "b.0": SPECS[1].obs, "c": SPECS[2].obs, "v": Column((2,), "float32")},
    ActionSpec("discrete", 3, "Discrete(3)"),
    {path: spec.frame_stacks[""] for path, spec in zip(("a", "b.0", "c"), SPECS, strict=True)},
)


class Steps:
    """Steps with observations of three independent images and a vector."""

    def __init__(self, num_envs, rng, greys):
        self.parts = [ImageSteps(spec, num_envs, rng, greys=greys) for spec in SPECS]

    def step(self):
        steps = [part.step() for part in self.parts]
        vectors = {f"{name}.v": self.parts[0].rng.random((len(steps[0]["action"]), 2), np.float32) for name in NAMES}
        images = {f"{name}.{path}": each[name] for name in NAMES for path, each in zip("abc", steps, strict=True)}
        return {key.replace(".b", ".b.0"): column for key, column in {**images, **vectors}.items()} | {
            key: column for key, column in steps[0].items() if key not in NAMES
        }


NAMES = ("obs", "next_obs")


def rate(rows):
    """Return priorities that depend on all parts."""
    columns = [rows[f"{name}.{path}"] for name in NAMES for path in BOTH.obs]
    return sum(column.sum(tuple(range(1, column.ndim)), np.float64) for column in columns)


@settings(deadline=None, max_examples=30)
@given(
    n_step=st.integers(1, 4),
    num_envs=st.integers(1, 3),
    blocks=st.lists(st.integers(1, 7), min_size=1, max_size=20),
    greys=st.sampled_from([2, 256]),
    compress=st.sampled_from(["none", "lz4"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_tables_of_several_images_equal_a_plain_table(n_step, num_envs, blocks, greys, compress, seed):
    """The builder is saved and loaded after each block, and the table at the end, with the other codec."""
    config, codec, stackings = replace(CONFIGS["prioritized"], capacity=50), make_codec(compress), make_stackings(BOTH)
    other = make_codec("lz4" if compress == "none" else "none")
    steps, plain_builder = (
        Steps(num_envs, np.random.default_rng(seed), greys),
        NStepBuilder(n_step, 0.9, prioritize=rate),
    )

    def make_builder():
        return FrameBuilder(NStepBuilder(n_step, 0.9, prioritize=rate), stackings, codec, 3, 0, n_step - 1)

    def tables(codec):
        inner = config.make_table(reference_schema(schema, stackings), np.random.default_rng(0), 9)
        return FrameTable(inner, stackings, codec)

    builder, schema = make_builder(), types.transition_schema(BOTH)
    framed, plain = tables(codec), config.make_table(schema, np.random.default_rng(0), 9)
    for length in blocks:
        for _ in range(length):
            step = steps.step()
            plain_builder.append({name: column.copy() for name, column in step.items()})
            builder.append(step)
        block, rows = builder.take(), plain_builder.take()
        again = make_builder()
        again.load_state({name: column.copy() for name, column in builder.state().items()})
        builder = again
        for table, columns in ((framed, block), (plain, rows)):
            table.insert(columns, np.zeros(len(rows["reward"]), np.int64))
        check_equal(framed.contents(), plain.contents())
    np.testing.assert_array_equal(framed.table.sampler.tree.values, plain.sampler.tree.values)
    loaded, stored = tables(other), framed.store.take(np.arange(len(framed)))
    loaded.load_state(framed.state())
    loaded.store.fill(loaded.unpack([framed.pack(stored)]))
    check_equal(loaded.contents(), plain.contents())


def check_equal(columns, expected):
    assert columns.keys() == expected.keys()
    for name, column in columns.items():
        assert column.dtype == expected[name].dtype
        np.testing.assert_array_equal(column, expected[name])


def test_the_preset_has_prioritized_rows_of_sequences():
    replay = make_config("env=CartPole-v1", "algo=dqn", "replay=sequences").replay
    assert (replay.rows, replay.has_priorities, replay.table) == ("sequences", True, "sequences")
