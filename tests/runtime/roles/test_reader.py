import threading

import numpy as np
import pytest
from datasets import record
from graphs import COUNTER, make_config

from drl_cli.envs.make import read_spec
from drl_cli.envs.probes import Counter
from drl_cli.runtime.factories import opened
from drl_cli.runtime.roles.reader import LANES, Reader, cut
from drl_cli.types import LoadParams

HEADER = LoadParams(0, 0, 0)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "counter.npz"
    record(Counter(), path, 600)
    return path


@pytest.fixture
def make(file):
    def make(*overrides):
        config = make_config(COUNTER, "mode=offline", "algo=td3", f"data.source={file}", *overrides)
        return Reader(config, read_spec(config.env), opened(config))

    return make


def collect(reader, num):
    headers, blocks = zip(*(reader.collect(HEADER) for _ in range(num)), strict=True)
    return headers, [np.column_stack([block["obs"], block["reward"]]) for block in blocks]


def as_set(rows):
    return {tuple(row) for row in np.concatenate(rows).tolist()}


@pytest.mark.parametrize("lengths", [[5] * 100, [1, 1000, 1], [7], [3, 4], list(range(1, 90))])
def test_lanes_are_consecutive_episodes_of_about_equal_total_length(lengths):
    ends = np.cumsum(lengths)
    first, last = cut(ends)
    assert first[0] == 0
    assert last[-1] == ends[-1]
    np.testing.assert_array_equal(first[1:], last[:-1])
    assert set(last) <= set(ends)
    assert 1 <= len(first) <= min(LANES, len(lengths))
    assert (last - first).max() <= sum(lengths) / LANES + max(lengths)


@pytest.mark.parametrize("n_step", [1, 4])
def test_a_pass_over_the_dataset_gives_every_step_once_and_the_next_pass_repeats_them(make, n_step):
    reader = make("replay.capacity=200", f"algo.n_step={n_step}")  # not the whole dataset: small blocks
    steps, per_pass = reader.dataset.facts.steps, -(-reader.length // reader.num_steps)
    assert per_pass > 3
    headers, first = collect(reader, per_pass)
    assert sum(header.rows for header in headers) == sum(map(len, first)) == len(as_set(first)) == steps
    assert {header.env_steps for header in headers} == {0}
    assert [header.blocks[0].number for header in headers] == list(range(per_pass))
    assert (reader.position, reader.builder.open_rows) == (0, 0)
    _, second = collect(reader, per_pass)
    for before, after in zip(first, second, strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_block_has_steps_from_all_parts_of_the_dataset(make):
    reader = make("replay.capacity=200")
    (_, columns) = reader.collect(HEADER)
    episodes = np.unique(columns["obs"][:, 1])
    assert len(episodes) == len(reader.first)
    assert episodes[-1] > 0.9 * len(reader.dataset.ends)


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_reader_goes_on_from_its_state_bit_for_bit(make, blocks):
    options = ("replay.capacity=200", "algo.n_step=3")
    reader, other = make(*options), make(*options)
    collect(reader, blocks)
    other.load_state({name: array.copy() for name, array in reader.state().items()})
    (before, expected), (after, rows) = collect(reader, 4), collect(other, 4)
    assert [header.blocks for header in before] == [header.blocks for header in after]
    for one, two in zip(expected, rows, strict=True):
        np.testing.assert_array_equal(one, two)


def watched(reader):
    """Return the parts of the dataset that are read, with whether a thread has read them."""
    parts, read, main = [], reader.ahead._read, threading.get_ident()

    def note(start, stop):
        parts.append((start, stop, threading.get_ident() != main))
        return read(start, stop)

    reader.ahead._read = note
    return parts


def test_the_next_block_is_read_while_the_trainer_works(make):
    reader = make("replay.capacity=200")
    parts, size = watched(reader), reader.num_steps
    reader.collect(HEADER)
    reader.ahead._thread.submit(int).result()  # the thread has ended what it began
    assert parts == [(0, size, False), (size, 2 * size, True)]
    collect(reader, -(-reader.length // size) - 1)
    reader.ahead._thread.submit(int).result()
    assert parts[-1] == (0, size, True)  # the next pass
    assert all(is_ahead for _, _, is_ahead in parts[1:])
    reader.close()


def test_a_dataset_that_fits_into_the_table_is_read_once(make):
    reader = make()
    reader.num_steps = 5
    parts = watched(reader)
    collect(reader, num := -(-reader.length // 5))
    reader.ahead._thread.submit(int).result()  # the thread has ended what it began
    reader.close()
    assert num > 2
    assert [part[:2] for part in parts] == [(5 * i, min(5 * i + 5, reader.length)) for i in range(num)]


def test_a_state_between_two_blocks_does_not_contain_what_was_read_ahead(make):
    reader, other = make("replay.capacity=200"), make("replay.capacity=200")
    collect(reader, 2)
    state = reader.state()
    reader.ahead.take(reader.position, reader.position + reader.num_steps)
    assert state["counters"].tolist() == [2, 2 * reader.num_steps]
    collect(other, 4)  # has read ahead another part
    other.load_state(state)
    (_, (expected,)), (_, (rows,)) = collect(reader, 1), collect(other, 1)
    np.testing.assert_array_equal(expected, rows)


@pytest.mark.parametrize("sign", [1, -1])
def test_rewards_are_clipped_and_scaled_as_by_a_worker(make, file, tmp_path, sign):
    arrays, path = dict(np.load(file)), tmp_path / "signed.npz"
    np.savez(path, **arrays | {"rewards": sign * arrays["rewards"]})
    _, columns = make("env.reward_clip=3", "env.reward_scale=0.5", f"data.source={path}").collect(HEADER)
    assert sorted({abs(columns["reward"]).min(), abs(columns["reward"]).max()}) == [0.5, 1.5]
    assert (np.sign(columns["reward"]) == sign).all()


def test_clamped_actions_are_counted_once(make, file, tmp_path):
    arrays = dict(np.load(file))
    arrays["actions"][[3, 40]] = 4.5  # above the bound 4
    np.savez(tmp_path / "wide.npz", **arrays)
    reader = make(f"data.source={tmp_path / 'wide.npz'}", "replay.capacity=200")
    headers, _ = collect(reader, 2 * -(-reader.length // reader.num_steps))
    assert [note for header in headers for note in header.notes] == [
        f"{tmp_path / 'wide.npz'}: 2 values of its actions were outside the action space and are clamped to its bounds"
    ]
