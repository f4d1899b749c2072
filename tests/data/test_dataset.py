"""Datasets: coverage, scores, several joined, and reading ahead."""

import threading

import numpy as np
import pytest
from datasets import record
from recorded_envs import env_config

from drl_cli.data.dataset import DatasetError, ReadAhead, coverage, normalised
from drl_cli.data.open import open_dataset, open_datasets

STEPS = 1 << 17  # more than one part


@pytest.fixture
def name(tmp_path):
    return str(tmp_path / "a.npz")


def saved(name, actions):
    ends = np.arange(STEPS) % 10 == 9
    flags = {"rewards": np.ones(STEPS), "terminations": ends, "truncations": np.zeros(STEPS, bool)}
    np.savez(name, observations=np.zeros((STEPS, 2)), actions=actions, **flags)
    return name


@pytest.mark.parametrize(
    ("actions", "covered"),
    [
        (np.linspace([-1, 0], [1, 0], STEPS), (1 + 1 / 20) / 2),
        (np.repeat([[-1.0], [1.0]], STEPS // 2, 0), 2 / 20),
        (np.where(np.arange(STEPS) == 0, 3, 0), 2 / 4),
        (np.stack([np.arange(STEPS) % 2, np.where(np.arange(STEPS) == 0, 4, 0)], 1), (1 + 2 / 5) / 2),
    ],
)
def test_coverage_of_actions(name, actions, covered):
    assert coverage(open_dataset(saved(name, actions))) == pytest.approx(covered)


def test_normalised_scores():
    assert [normalised(score, (-10.0, 30.0)) for score in (-10, 30, 10, 50)] == [0, 100, 50, 150]


@pytest.mark.parametrize("reference", [[1.0], [1, 2, 3], [2, 1], [1, 1], [float("nan"), 1], [0, float("inf")]])
def test_wrong_references(name, reference):
    with pytest.raises(DatasetError, match=r"say \[random,expert\]"):
        open_dataset(saved(name, np.arange(STEPS) % 3), reference=reference)


def opened(name):
    return open_dataset(name, env_config(id="Pendulum-v1"))


def joined(names):
    return open_datasets(names, env_config(id="Pendulum-v1"), is_checked=True)


@pytest.fixture
def names(tmp_path):
    """Three datasets of Pendulum, of 200, 400 and 200 steps, in episodes of 200."""
    found = [str(tmp_path / f"{name}.npz") for name in "abc"]
    for seed, (name, steps) in enumerate(zip(found, (200, 400, 200), strict=True)):
        record("Pendulum-v1", name, steps, seed)
    return found


@pytest.mark.parametrize(
    ("first", "last"), [(0, 800), (0, 200), (150, 650), (200, 201), (599, 600), (600, 800), (7, 7)]
)
def test_steps_are_those_of_all_datasets_in_order(names, first, last):
    both, apart = joined(names), [opened(name) for name in names]
    columns = both.read(first, last)
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
        whole = np.concatenate([one.read(0, one.facts.steps)[name] for one in apart])
        np.testing.assert_array_equal(columns[name], whole[first:last])


def test_facts_are_sums_and_every_part_counts_in_the_identity(names):
    both = joined(names)
    np.testing.assert_array_equal(both.ends, [200, 400, 600, 800])
    facts = both.facts
    assert (facts.steps, facts.episodes, facts.terminations, facts.truncations) == (800, 4, 0, 4)
    np.testing.assert_array_equal(facts.returns, np.concatenate([opened(name).facts.returns for name in names]))
    assert facts.source == f"[{','.join(names)}]"
    others = [names[::-1], names[:2], [*names[:2], names[0]]]
    assert len({facts.identity, *(joined(other).facts.identity for other in others)}) == 4


def test_one_dataset_is_itself(names):
    assert joined(names[:1]).facts.identity == opened(names[0]).facts.identity


def test_other_spaces_are_refused_by_name(names, tmp_path):
    arrays = dict(np.load(names[0]))
    for name, change in (
        ("wide", {"observations": np.zeros((200, 4)), "next_observations": np.zeros((200, 4))}),
        ("far", {"actions": 3 * arrays["actions"]}),
    ):
        np.savez(tmp_path / f"{name}.npz", **(arrays | change))
    for name, what in (("wide", "observations"), ("far", "actions")):
        other = str(tmp_path / f"{name}.npz")
        with pytest.raises(DatasetError) as error:
            open_datasets([names[0], other])
        assert f"{other} can't be joined with {names[0]}: its {what} are Box(" in str(error.value)


def test_actions_outside_the_space_are_counted_in_all_datasets(names, tmp_path):
    far = str(tmp_path / "far.npz")
    np.savez(far, **{**np.load(names[0]), "actions": np.full((200, 1), 5.0, np.float32)})
    both = joined([far, names[0], far])
    both.read(100, 500)
    assert both.clamped == 200


class Source:
    """Records its calls. A call waits until `go` is set, if it runs in another thread."""

    def __init__(self):
        self.parts, self.running, self.most, self.go = [], 0, 0, threading.Event()
        self.main = threading.get_ident()

    def read(self, start, stop):
        self.running += 1
        self.most = max(self.most, self.running)
        if threading.get_ident() != self.main:
            assert self.go.wait(10)
        self.parts.append((start, stop))
        self.running -= 1
        if start < 0:
            raise OSError("gone")
        return range(start, stop)


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def ahead(source):
    made = ReadAhead(source.read)
    yield made
    source.go.set()
    made.close()


def test_begin_returns_at_once_and_take_returns_what_the_thread_has_read(source, ahead):
    ahead.begin(2, 5)
    assert source.parts == []  # the thread waits, and `begin` does not
    source.go.set()
    assert ahead.take(2, 5) == range(2, 5)
    assert source.parts == [(2, 5)]


def test_another_part_than_the_begun_one_is_read_after_the_begun_one_has_ended(source, ahead):
    ahead.begin(0, 3)
    threading.Timer(0.1, source.go.set).start()
    assert ahead.take(3, 6) == range(3, 6)
    assert (source.parts, source.most) == ([(0, 3), (3, 6)], 1)
    assert ahead.take(0, 3) == range(3)  # the result that was dropped is not kept
    assert source.parts[2:] == [(0, 3)]


def test_an_error_of_the_thread_is_raised_by_take(source, ahead):
    source.go.set()
    ahead.begin(-1, 0)
    with pytest.raises(OSError, match="gone"):
        ahead.take(-1, 0)


def test_close_ends_the_thread(source, ahead):
    before = threading.active_count()
    ahead.begin(0, 1)
    assert threading.active_count() == before + 1
    source.go.set()
    ahead.close()
    assert threading.active_count() == before
