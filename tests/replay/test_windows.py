"""Windows: equal the steps of whole episodes, whatever the ring has overwritten."""

import copy
import dataclasses

import numpy as np
import pytest
from images import ImageSteps, image_spec

from drl_cli.replay.base import Load
from drl_cli.replay.builders import NStepBuilder
from drl_cli.replay.config import PrioritizedConfig, UniformConfig
from drl_cli.replay.frame_table import FrameTable, reference_schema
from drl_cli.replay.frames import FrameBuilder, make_codec, make_stackings
from drl_cli.types import Column, transition_schema

GAMMA, LENGTH, NUM_ENVS = 0.9, 4, 3
FLOATS = {name: Column((), "float32") for name in ("obs", "next_obs", "reward", "discount")}
FLAGS = {name: Column((), "bool") for name in ("terminated", "truncated")}
SCHEMA = {**FLOATS, **FLAGS, "source": Column((), "int32")}
UNIFORM = UniformConfig("uniform", 50, 1, "oldest", "none", rows="windows", seq_len=LENGTH)
OPTIONS = ("max", 1.0, 0.4, 1e-6, 0.0)
PRIORITIZED = PrioritizedConfig("prioritized", 50, 1, "oldest", "none", *OPTIONS, rows="windows", seq_len=LENGTH)


def make(config=UNIFORM, schema=SCHEMA, seed=0):
    return config.make_table(schema, np.random.default_rng(seed), 100, None, GAMMA)


class Steps:
    """Makes blocks of steps. Observations are numbers that never repeat: the step from observation i ends in i + 1."""

    def __init__(self, seed=0):
        self.rng, self.obs, self.next = np.random.default_rng(seed), np.arange(NUM_ENVS) * 1e5, 1000.0
        self.steps = {}

    def block(self, num_steps):
        blocks = []
        for _ in range(num_steps):
            terminated, truncated = self.rng.random((2, NUM_ENVS)) < 0.1
            obs, next_obs = self.obs, self.obs + 1
            begins = np.arange(NUM_ENVS) * 1e5 + self.next
            self.next += 50
            self.obs = np.where(terminated | truncated, begins, next_obs)
            for row in zip(obs.tolist(), (terminated | truncated).tolist(), strict=True):
                self.steps[row[0]] = row[1]
            discount = np.where(terminated, 0.0, GAMMA)
            columns = (obs, next_obs, obs + 0.5, discount, terminated, truncated, np.arange(NUM_ENVS))
            blocks.append({name: c.astype(SCHEMA[name].dtype) for name, c in zip(SCHEMA, columns, strict=True)})
        block = {name: np.concatenate([each[name] for each in blocks]) for name in SCHEMA}
        return block, np.zeros(num_steps * NUM_ENVS, np.int64)

    def window(self, first, stored):
        window = [first]
        while len(window) < LENGTH and not self.steps[window[-1]] and window[-1] + 1 in stored:
            window.append(window[-1] + 1)
        return window


def check_windows(table, steps):
    stored, drawn = set(table.contents()["obs"].tolist()), table.sample(2, 40, 0).columns
    columns = {name: column.reshape(-1, *column.shape[2:]) for name, column in drawn.items() if name != "weight"}
    assert columns.keys() == {*SCHEMA, "valid"}
    for i, valid in enumerate(columns["valid"]):
        window = steps.window(columns["obs"][i, 0].item(), stored)
        assert valid.tolist() == [True] * len(window) + [False] * (LENGTH - len(window))
        assert columns["obs"][i, : len(window)].tolist() == window
        assert all(not column[i, len(window) :].any() for column in columns.values())
    valid, obs = columns["valid"], columns["obs"]
    np.testing.assert_array_equal(columns["next_obs"], (obs + 1) * valid)
    expected = np.where(columns["terminated"], 0.0, GAMMA).astype(np.float32) * valid
    np.testing.assert_array_equal(columns["discount"], expected)


@pytest.mark.parametrize("config", [UNIFORM, PRIORITIZED], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("seed", range(5))
def test_windows_are_the_consecutive_steps_of_one_episode(config, seed):
    table, steps = make(config, seed=seed), Steps(seed)
    for _ in range(12):
        block = steps.block(int(steps.rng.integers(1, 8)))
        if steps.rng.random() < 0.8:  # the other blocks are lost on the way
            table.insert(*block)
            check_windows(table, steps)


def test_a_copy_from_the_state_and_the_rows_draws_the_same_windows():
    table, steps, again = make(), Steps(), make(seed=9)
    for _ in range(9):
        table.insert(*steps.block(4))
    again.load_state(copy.deepcopy(table.state()))
    again.store.fill([{name: column.copy() for name, column in table.store.columns.items()}][:1])
    block = steps.block(5)
    for each in (table, again):
        each.insert(*block)
    drawn, same = (each.sample(2, 300, 0).columns for each in (table, again))
    for name in drawn:
        np.testing.assert_array_equal(drawn[name], same[name])


def test_windows_need_no_more_memory_than_transitions():
    plain = dataclasses.replace(UNIFORM, rows="transitions", capacity=1000)
    windows = dataclasses.replace(UNIFORM, capacity=1000, seq_len=8)
    assert make(windows).nbytes <= make(plain).nbytes
    assert windows.table_bytes(SCHEMA) == make(windows).nbytes


def test_the_priority_of_a_window_mixes_its_valid_steps():
    table, steps = make(PRIORITIZED), Steps(3)
    table.insert(*steps.block(10))
    drawn = table.sample(1, 20, 0)
    values = np.random.default_rng(0).random((1, 20, LENGTH))
    table.update_priorities(drawn.row_ids, np.where(drawn.columns["valid"], values, 99.0))
    assert table.sampler.tree.values.max() <= 1.001


def test_a_priority_belongs_to_the_steps_that_were_sampled():
    table, steps = make(dataclasses.replace(PRIORITIZED, eta=0.0)), Steps(3)
    block, versions = steps.block(2)
    block |= dict.fromkeys(("terminated", "truncated"), np.zeros(6, np.bool_))
    table.insert({name: column[:3] for name, column in block.items()}, versions)
    drawn = table.sample(1, 20, 0)
    assert drawn.columns["valid"].sum(-1).max() == 1
    table.insert({name: column[3:] for name, column in block.items()}, versions)  # each window gains a step
    table.update_priorities(drawn.row_ids, np.where(drawn.columns["valid"], 3.0, 77.0))
    np.testing.assert_allclose(table.sampler.tree.values[:3], 3.0, rtol=1e-5)


WRITABLE = {**SCHEMA, "uses": Column((), "float32")}


@pytest.mark.parametrize("config", [UNIFORM, PRIORITIZED], ids=["uniform", "prioritized"])
def test_each_step_of_a_window_is_written_by_its_own_id(config):
    table, steps, uses = make(config, WRITABLE), Steps(3), {}
    table.returns_ids = True
    for _ in range(12):
        block, versions = steps.block(6)
        table.insert(block | {"uses": np.zeros(18, np.float32)}, versions)
        drawn = table.sample(2, 8, 0)
        valid = drawn.columns["valid"]
        assert drawn.row_ids.shape == valid.shape
        np.testing.assert_array_equal(drawn.row_ids == -1, ~valid)
        values = steps.rng.random(valid.shape).astype(np.float32)
        table.write(drawn.row_ids, {"uses": values})
        uses |= dict(zip(drawn.columns["obs"][valid].tolist(), values[valid].tolist(), strict=True))
        rows = table.contents()
        assert rows["uses"].tolist() == [uses.get(obs, 0.0) for obs in rows["obs"].tolist()]
    assert max(uses.values()) > 0


def test_padding_is_not_written_to_memory_that_is_not_reserved():
    table, steps = UNIFORM.make_table(WRITABLE, np.random.default_rng(0), 100, 12, GAMMA), Steps(3)
    table.returns_ids = True
    block, versions = steps.block(4)
    table.insert(block | {"uses": np.zeros(12, np.float32)}, versions)
    drawn = table.sample(4, 50, 0)
    assert (drawn.row_ids == -1).any()
    table.write(drawn.row_ids, {"uses": np.ones(drawn.row_ids.shape, np.float32)})
    assert table.contents()["uses"].tolist() == [1.0] * 12


def test_a_write_skips_the_steps_that_were_overwritten():
    table, steps = make(schema=WRITABLE), Steps(3)
    table.returns_ids = True

    def insert(num_steps):
        block, versions = steps.block(num_steps)
        table.insert(block | {"uses": np.zeros(len(versions), np.float32)}, versions)

    insert(16)
    drawn = table.sample(4, 50, 0)
    insert(8)  # overwrites 22 of 48 steps: the ring holds 50
    table.write(drawn.row_ids, {"uses": np.ones(drawn.row_ids.shape, np.float32)})
    rows = table.contents()
    assert (rows["uses"][-24:].tolist(), rows["uses"][:26].tolist()) == ([0.0] * 24, [1.0] * 26)


def test_windows_of_frames_equal_windows_of_whole_images():
    spec = image_spec(-1, 3)
    stackings, rng = make_stackings(spec), np.random.default_rng(0)
    schema = {**transition_schema(spec), "source": Column((), "int32")}
    plain, codec = make(schema=schema), make_codec("none")
    framed = FrameTable(make(schema=reference_schema(schema, stackings)), stackings, codec)
    steps, builders = ImageSteps(spec, 2, rng), [NStepBuilder(1, GAMMA), NStepBuilder(1, GAMMA)]
    framing = FrameBuilder(builders[1], stackings, codec, 0, 0, 0)
    for _ in range(8):
        for _ in range(5):
            step = steps.step() | {"source": np.arange(2, dtype=np.int32)}
            builders[0].append(step)
            framing.append(step)
        for table, rows in ((plain, builders[0].take()), (framed, framing.take())):
            table.insert(rows, np.zeros(len(rows["reward"]), np.int64))
        drawn, same = (table.sample(1, 30, 0).columns for table in (plain, framed))
        assert drawn.keys() == same.keys()
        for name in drawn:
            np.testing.assert_array_equal(drawn[name], same[name])
    assert not drawn["valid"].all()
    assert drawn["valid"].any(-1).all()


def test_rows_keep_the_priorities_that_workers_gave_their_first_steps():
    table, (block, versions) = make(PRIORITIZED), Steps().block(10)
    priority = np.random.default_rng(0).random(30)
    table.insert(block | {"priority": priority}, versions)
    np.testing.assert_allclose(table.sampler.tree.values[:30], priority, atol=1e-5)


def test_workers_rate_windows_of_images_by_n_step_transitions():
    spec = image_spec(-1, 3)
    stackings, codec, rng = make_stackings(spec), make_codec("none"), np.random.default_rng(0)

    def rate(rows):
        return (rows["reward"] + rows["next_obs"].reshape(len(rows["reward"]), -1).sum(1)).astype(np.float64)

    steps, plain = ImageSteps(spec, 2, rng), NStepBuilder(3, GAMMA, prioritize=rate)
    framing = FrameBuilder(NStepBuilder(3, GAMMA, prioritize=rate, returns_steps=True), stackings, codec, 0, 0, 2)
    for _ in range(4):
        for _ in range(5):
            step = steps.step()
            plain.append({name: column.copy() for name, column in step.items()})
            framing.append(step)
        rows, same = framing.take(), plain.take()
        np.testing.assert_array_equal(rows["priority"], same["priority"])
        assert len({*rows["priority"].tolist()}) > 3


def test_a_sampler_from_outside_chooses_and_changes_windows():
    table, steps = make(dataclasses.replace(UNIFORM, sampler="outside.my_sampler:Hindsight")), Steps()
    table.insert(*steps.block(16))
    columns = table.sample(4, 50, 0).columns
    is_long = columns["valid"].sum(-1) > 1
    is_new = ((columns["reward"] == -1) | ~columns["valid"])[is_long][:, 0]
    assert 0.2 < is_new.mean() < 0.45


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("outside.my_sampler:NoSampler", "must be a class derived from drl_cli.replay.samplers.Sampler"),
        ("outside.my_sampler:Hindsite", "has no 'Hindsite'. Did you mean Hindsight?"),
        ("nowhere:Hindsight", "there is no module 'nowhere'"),
    ],
)
def test_a_wrong_sampler_is_named(path, problem):
    (line,) = dataclasses.replace(UNIFORM, sampler=path).problems(
        Load(1000, 8, 8, 8, is_async=False, versions_per_batch=1)
    )
    assert line.startswith(f"replay.sampler={path}")
    assert problem in line


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_a_window_ends_with_the_episode_even_if_the_next_one_begins_with_the_same_observation(end):
    table, (block, versions) = make(), Steps().block(8)
    block = {name: np.zeros_like(column) for name, column in block.items()}
    block[end][9] = True  # the steps of one environment are in order
    table.insert(block, versions)
    columns = table.sample(1, 300, 0).columns
    ends = columns[end].any(-1)
    assert ends.any()
    assert (columns[end].argmax(-1) == columns["valid"].sum(-1) - 1)[ends].all()


def test_a_step_does_not_follow_a_row_that_was_overwritten_by_another_source():
    table, (block, versions) = make(), Steps().block(8)
    block = {name: np.zeros_like(column) for name, column in block.items()}  # all observations are equal
    for source in (0, 1, 1, 1, 0):  # the ring holds 50 rows, and each block has 24
        table.insert(block | {"source": np.full(24, source, np.int32)}, versions)
    columns = table.sample(1, 300, 0).columns
    assert all(len({*row[valid]}) == 1 for row, valid in zip(columns["source"][0], columns["valid"][0], strict=True))


def test_a_first_block_of_one_step_has_only_windows_of_one_step():
    schema = SCHEMA | {name: Column((2,), "float32") for name in ("obs", "next_obs")}
    table = make(schema=schema)
    table.insert({name: np.zeros((1, *column.shape), column.dtype) for name, column in schema.items()}, np.zeros(1))
    assert table.sample(1, 3, 0).columns["valid"].sum(-1).tolist() == [[1, 1, 1]]
