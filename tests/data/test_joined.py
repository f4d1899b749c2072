import numpy as np
import pytest
from datasets import record
from recorded_envs import env_config

from drl_cli.data import open as module
from drl_cli.data.dataset import DatasetError


def open_dataset(name):
    return module.open_dataset(name, env_config(id="Pendulum-v1"))


def open_datasets(names):
    return module.open_datasets(names, env_config(id="Pendulum-v1"), is_checked=True)


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
    joined, apart = open_datasets(names), [open_dataset(name) for name in names]
    columns = joined.read(first, last)
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
        whole = np.concatenate([one.read(0, one.facts.steps)[name] for one in apart])
        np.testing.assert_array_equal(columns[name], whole[first:last])


def test_facts_are_sums_and_every_part_counts_in_the_identity(names):
    joined = open_datasets(names)
    np.testing.assert_array_equal(joined.ends, [200, 400, 600, 800])
    facts = joined.facts
    assert (facts.steps, facts.episodes, facts.terminations, facts.truncations) == (800, 4, 0, 4)
    np.testing.assert_array_equal(facts.returns, np.concatenate([open_dataset(name).facts.returns for name in names]))
    assert facts.source == f"[{','.join(names)}]"
    others = [names[::-1], names[:2], [*names[:2], names[0]]]
    assert len({facts.identity, *(open_datasets(other).facts.identity for other in others)}) == 4


def test_one_dataset_is_itself(names):
    assert open_datasets(names[:1]).facts.identity == open_dataset(names[0]).facts.identity


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
            module.open_datasets([names[0], other])
        assert f"{other} can't be joined with {names[0]}: its {what} are Box(" in str(error.value)


def test_actions_outside_the_space_are_counted_in_all_datasets(names, tmp_path):
    far = str(tmp_path / "far.npz")
    np.savez(far, **{**np.load(names[0]), "actions": np.full((200, 1), 5.0, np.float32)})
    joined = open_datasets([far, names[0], far])
    joined.read(100, 500)
    assert joined.clamped == 200
