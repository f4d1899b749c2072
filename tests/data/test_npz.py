import numpy as np
import pytest

from drl_cli.data.dataset import DatasetError
from drl_cli.data.npz import Npz
from drl_cli.data.open import open_dataset


def arrays(steps=10, **changes):
    """Three episodes of 4, 4 and 2 steps: the first terminates, the second is cut, the third goes on."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.standard_normal((steps, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
        "rewards": np.arange(steps, dtype=np.float32),
        "terminations": np.arange(steps) == 3,
        "truncations": np.arange(steps) == 7,
        "next_observations": rng.standard_normal((steps, 3)).astype(np.float32),
    } | changes


def saved(path, save=np.savez, **given):
    save(path, **{name: array for name, array in given.items() if array is not None})
    return str(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_read_gives_the_saved_steps(tmp_path, save):
    given = arrays()
    dataset = open_dataset(saved(tmp_path / "a.npz", save, **given))
    assert (dataset.facts.steps, dataset.facts.episodes) == (10, 3)
    assert (dataset.facts.terminations, dataset.facts.truncations) == (1, 2)
    np.testing.assert_array_equal(dataset.facts.returns, [6, 22, 17])
    np.testing.assert_array_equal(dataset.ends, [4, 8, 10])
    rows = dataset.read(2, 9)
    np.testing.assert_array_equal(rows["obs"], given["observations"][2:9])
    np.testing.assert_array_equal(rows["next_obs"], given["next_observations"][2:9])
    np.testing.assert_allclose(rows["action"], given["actions"][2:9], atol=1e-6)
    np.testing.assert_array_equal(rows["reward"], np.arange(2, 9))
    np.testing.assert_array_equal(rows["terminated"].nonzero()[0], [1])
    np.testing.assert_array_equal(rows["truncated"].nonzero()[0], [5])
    assert dataset.read(9, 10)["truncated"].all(), "the recording ends within an episode"
    assert {name: column.dtype.name for name, column in rows.items()} == {
        "obs": "float32",
        "action": "float32",
        "reward": "float32",
        "next_obs": "float32",
        "terminated": "bool",
        "truncated": "bool",
    }


def test_without_next_observations_a_cut_episode_loses_its_last_step(tmp_path):
    given = arrays(next_observations=None)
    dataset = open_dataset(saved(tmp_path / "a.npz", **given))
    np.testing.assert_array_equal(dataset.ends, [4, 7, 8])
    rows, kept = dataset.read(0, 8), [0, 1, 2, 3, 4, 5, 6, 8]
    np.testing.assert_array_equal(rows["obs"], given["observations"][kept])
    np.testing.assert_array_equal(rows["next_obs"], given["observations"][[1, 2, 3, 3, 5, 6, 7, 9]])
    np.testing.assert_array_equal(rows["terminated"].nonzero()[0], [3])
    np.testing.assert_array_equal(rows["truncated"].nonzero()[0], [6, 7])
    for first in range(8):
        for last in range(first, 9):
            part = dataset.read(first, last)
            assert all((part[name] == rows[name][first:last]).all() for name in rows)


def test_an_episode_of_one_cut_step_without_a_next_observation_vanishes(tmp_path):
    cut = np.arange(10) >= 7
    dataset = open_dataset(saved(tmp_path / "a.npz", **arrays(next_observations=None, truncations=cut)))
    np.testing.assert_array_equal(dataset.ends, [4, 7])


def test_names_of_d4rl(tmp_path):
    given = arrays()
    given["terminals"], given["timeouts"] = given.pop("terminations"), given.pop("truncations")
    assert open_dataset(saved(tmp_path / "a.npz", **given)).facts.truncations == 2


def test_arrays_in_the_order_of_fortran(tmp_path):
    given = arrays()
    dataset = open_dataset(
        saved(tmp_path / "a.npz", **given | {"observations": np.asfortranarray(given["observations"])})
    )
    np.testing.assert_array_equal(dataset.read(3, 6)["obs"], given["observations"][3:6])


def test_parts_of_observations(tmp_path):
    given = arrays(observations=None, next_observations=None)
    images = np.arange(10 * 4, dtype=np.uint8).reshape(10, 2, 2, 1)
    choices = np.arange(10) % 3
    dataset = open_dataset(
        saved(tmp_path / "a.npz", **given | {"observations.eye": images, "observations.mode": choices})
    )
    rows = dataset.read(0, 2)
    assert rows["obs.eye"].dtype == np.uint8
    np.testing.assert_array_equal(rows["obs.eye"], images[:2])
    assert dataset.spec.obs["mode"].choices == (3,)
    np.testing.assert_array_equal(rows["next_obs.mode"], choices[1:3])


def test_reads_touch_only_their_part(tmp_path, monkeypatch):
    dataset = open_dataset(saved(tmp_path / "a.npz", **arrays(1000)))
    read, true = [], np.fromfile
    monkeypatch.setattr(np, "fromfile", lambda *args: read.append(args[2]) or true(*args))
    dataset.read(500, 510)
    assert max(read) == 30


def test_large_actions_have_the_range_of_the_data(tmp_path):
    actions = np.linspace([-2, -4], [2, 4], 10).astype(np.float32)
    dataset = open_dataset(saved(tmp_path / "a.npz", **arrays(actions=actions)))
    np.testing.assert_allclose(dataset.read(0, 10)["action"], actions / [2, 4], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rewards": None}, "has no rewards; it has actions, next_observations, observations, terminations, trunc"),
        ({"truncations": None}, "has no truncations (or timeouts); if no episode was cut, add zeros"),
        ({"actions": None, "observations": None}, "has no observations, actions; it has"),
        ({"rewards": np.zeros(9)}, "different lengths: observations 10, actions 10, rewards 9"),
        ({"rewards": np.zeros((10, 2))}, "rewards have shape (10, 2); expected one number per step"),
        ({"rewards": np.full(10, np.nan)}, "the reward of step 0 is nan"),
        (
            {"observations": np.where(np.arange(30).reshape(10, 3) == 13, np.inf, 0)},
            "the observation of step 4 has inf",
        ),
        ({"next_observations": np.full((10, 3), np.nan)}, "the next observation of step 0 has nan"),
        ({"actions": np.full((10, 2), np.nan, np.float32)}, "the action of step 0 has nan"),
        ({"rewards": np.array([None] * 10)}, "rewards holds Python objects; they need pickle"),
        ({name: array[:0] for name, array in arrays().items()}, "is empty: it has no steps"),
    ],
)
def test_refuses_what_cant_be_used(tmp_path, changes, text):
    path = saved(tmp_path / "a.npz", **arrays(**changes))
    with pytest.raises(DatasetError) as error:
        open_dataset(path)
    assert text in str(error.value)
    assert path in str(error.value)


@pytest.mark.parametrize("cut", [10, 500, -100])
def test_refuses_a_file_that_is_cut(tmp_path, cut):
    path = tmp_path / "a.npz"
    saved(path, **arrays(1000))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DatasetError, match="damaged"):
        open_dataset(str(path))


def test_refuses_a_flipped_bit(tmp_path):
    path = tmp_path / "a.npz"
    saved(path, **arrays(1000))
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="damaged"):
        open_dataset(str(path))


def test_refuses_what_is_no_dataset(tmp_path):
    (tmp_path / "a.npz").write_text("no zip file")
    (tmp_path / "a.txt").write_text("text")
    for name, text in (("a.npz", "damaged"), ("a.txt", "is no dataset"), ("b.npz", "no dataset")):
        with pytest.raises(DatasetError, match=text):
            open_dataset(str(tmp_path / name))


def test_identity_changes_with_any_value(tmp_path):
    given = arrays(1000)
    same = [open_dataset(saved(tmp_path / f"{i}.npz", **given)).facts.identity for i in range(2)]
    assert same[0] == same[1]
    for name in ("observations", "actions", "next_observations"):
        other = given[name].copy()
        other[501, 1] += 0.001
        changed = open_dataset(saved(tmp_path / "2.npz", **given | {name: other})).facts.identity
        assert changed != same[0]


def test_a_member_that_becomes_shorter_is_an_error(tmp_path):
    path = tmp_path / "a.npz"
    saved(path, **arrays(1000))
    member = Npz(path)["observations"]
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(OSError, match="ends before row 1000"):
        member[900:1000]
