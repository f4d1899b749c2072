import importlib.util
import os

import gymnasium
import numpy as np
import pytest
from recorded_envs import env_config

from drl_cli.data.columns import DataColumns
from drl_cli.data.dataset import BestEpisodes, DatasetError, JoinedDataset
from drl_cli.data.find import data_folder, dataset_of_run, datasets_in
from drl_cli.data.open import RecordedDataset, open_dataset, open_recording
from drl_cli.data.recording import Npz
from drl_cli.data.write import find_output
from drl_cli.envs.recorded import StepMap


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


def test_a_run_is_no_dataset_and_has_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "run.json").touch()
    for name in ("r1", "latest"):
        with pytest.raises(DatasetError, match=f"'{name}' is a run, not a dataset; say data=run:{name}"):
            open_dataset(name)


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


def test_the_environments_spaces_are_used_and_checked(tmp_path):
    """Torques of Pendulum are in [-2, 2]."""
    config = env_config(id="Pendulum-v1")
    dataset = open_dataset(saved(tmp_path / "a.npz", **arrays(actions=np.full((10, 1), 1.0))), config)
    assert (dataset.read(0, 10)["action"] == 0.5).all()
    assert dataset.spec.id == "Pendulum-v1"
    dataset = open_dataset(saved(tmp_path / "b.npz", **arrays(actions=np.full((10, 1), 3.0))), config)
    dataset.read(0, 4)
    assert dataset.clamped == 4
    for name, changes, text in (
        ("c", {}, r"c.npz does not fit Pendulum-v1: action has shape \(2,\), expected \(1,\)"),
        (
            "d",
            {"observations": np.zeros((10, 4)), "next_observations": np.zeros((10, 4))},
            r"observation has shape \(4,\)",
        ),
        (
            "e",
            {"observations": None, "observations.a": np.zeros((10, 3)), "next_observations": None},
            "e.npz: its observations have parts: it has a, Pendulum-v1 has one array",
        ),
    ):
        with pytest.raises(DatasetError, match=text):
            open_dataset(saved(tmp_path / f"{name}.npz", **arrays(**changes)), config)


HAS_ROBOTICS = importlib.util.find_spec("gymnasium_robotics") is not None


@pytest.mark.parametrize(
    ("id", "code"),
    [("Nothing-v0", 2), pytest.param("FetchReach-v4", 3, marks=pytest.mark.skipif(HAS_ROBOTICS, reason="is there"))],
)
def test_an_environment_that_cant_be_made(tmp_path, id, code):
    with pytest.raises(DatasetError) as error:
        open_dataset(saved(tmp_path / "a.npz", **arrays()), env_config(id=id))
    assert error.value.exit_code == code


def test_a_part_that_is_missing_is_named(tmp_path):
    with pytest.raises(
        DatasetError, match=r"no 'arm\.0' in its observations: it has one array, TestSampler-v0 has arm\.0, "
    ):
        open_dataset(saved(tmp_path / "a.npz", **arrays()), env_config("dict"))


def test_hdf5_of_d4rl(tmp_path):
    h5py = pytest.importorskip("h5py", reason="needs drl-cli[minari]")
    given = arrays(1000)
    given["terminals"], given["timeouts"] = given.pop("terminations"), given.pop("truncations")
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"{name}.hdf5", "w") as file:
            file.update({**given, "metadata/policy/weights": np.zeros(3)})
            if name == "b":
                file["observations"][0, 0] += 1
    dataset, other = (open_dataset(str(tmp_path / f"{name}.hdf5")) for name in ("a", "b"))
    np.testing.assert_array_equal(dataset.read(5, 900)["obs"], given["observations"][5:900])
    assert dataset.facts.truncations == 2
    assert dataset.facts.identity == open_dataset(str(tmp_path / "a.hdf5")).facts.identity != other.facts.identity
    (tmp_path / "c.hdf5").write_bytes(b"x")
    with pytest.raises(DatasetError, match=r"c.hdf5 can't be read"):
        open_dataset(str(tmp_path / "c.hdf5"))


def test_hdf5_without_h5py(tmp_path, monkeypatch):
    (tmp_path / "a.hdf5").write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(DatasetError, match=r"need h5py:  pip install 'drl-cli\[minari\]'"):
        open_dataset(str(tmp_path / "a.hdf5"))


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run" / "data").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path / "run"


def save(path):
    ends, zeros = np.array([False, True]), np.zeros(2)
    np.savez(path, observations=zeros, actions=zeros, rewards=zeros, terminations=ends, truncations=ends)


def test_the_dataset_of_a_runs_folder(run):
    with pytest.raises(
        DatasetError, match=f"nothing was recorded for this run; type  drl-record run={run} episodes=100"
    ):
        open_dataset(f"run:{run}")
    save(run / "data" / "a.npz")
    save(run / "data" / ".b.npz")
    (run / "data" / "notes.txt").write_text("none")
    assert open_dataset(f"run:{run}").facts.steps == 2
    save(run / "data" / "c.npz")
    os.utime(run / "data" / "c.npz", (1, 1))
    assert dataset_of_run(f"run:{run}").name == "a.npz"
    os.utime(run / "data" / "a.npz", (0, 0))
    assert dataset_of_run(f"run:{run}").name == "c.npz"


def test_what_is_no_run(tmp_path):
    with pytest.raises(DatasetError, match="is no run's folder"):
        open_dataset(f"run:{tmp_path}")


def test_folders_with_minaris_data(tmp_path):
    assert (data_folder(tmp_path), datasets_in(tmp_path / "none")) == (None, [])
    (tmp_path / "x" / "data").mkdir(parents=True)
    (tmp_path / "x" / "data" / "metadata.json").write_text("{}")
    assert data_folder(tmp_path / "x") == data_folder(tmp_path / "x" / "data") == tmp_path / "x" / "data"
    assert datasets_in(tmp_path) == [tmp_path / "x"]


@pytest.fixture
def dataset(tmp_path):
    """Three episodes of 4, 4 and 2 steps, with the rewards 0, 1, ..., 9."""
    return open_dataset(saved(tmp_path / "a.npz", **arrays()))


def columns(dataset, *names, n_step=1, gamma=0.5, scale=1.0, clip=None):
    return DataColumns(names, dataset, n_step, gamma, scale, clip)


@pytest.mark.parametrize(
    ("n_step", "steps"), [(1, [1, 2, 3, 3, 5, 6, 7, 7, 9, 9]), (3, [3, 3, 3, 3, 7, 7, 7, 7, 9, 9])]
)
def test_the_next_action_is_that_of_a_later_step_of_the_episode(dataset, n_step, steps):
    actions, found = dataset.read(0, 10)["action"], columns(dataset, "next_action", n_step=n_step)
    np.testing.assert_array_equal(found.read(0, 10)["next_action"], actions[steps])
    np.testing.assert_array_equal(found.read(2, 6)["next_action"], actions[steps][2:6])


def test_returns_end_with_the_episode(dataset):
    first = [0 + 1 / 2 + 2 / 4 + 3 / 8, 1 + 2 / 2 + 3 / 4, 2 + 3 / 2, 3]
    second = [4 + 5 / 2 + 6 / 4 + 7 / 8, 5 + 6 / 2 + 7 / 4, 6 + 7 / 2, 7]
    expected = [*first, *second, 8 + 9 / 2, 9]
    np.testing.assert_allclose(columns(dataset, "mc_return").read(0, 10)["mc_return"], expected)
    np.testing.assert_allclose(columns(dataset, "mc_return").read(3, 5)["mc_return"], expected[3:5])
    clipped = columns(dataset, "mc_return", clip=2.0, scale=10.0).read(0, 10)["mc_return"]
    np.testing.assert_allclose(clipped[:4], [12.5, 25.0, 30.0, 20.0])
    assert clipped.dtype == np.float32


@pytest.mark.parametrize(("share", "steps"), [(0.1, [4, 5, 6, 7]), (0.5, [4, 5, 6, 7, 8, 9]), (1.0, list(range(10)))])
def test_the_best_episodes_have_the_largest_returns(dataset, share, steps):
    """The returns are 6, 22 and 17."""
    best, rows = BestEpisodes(dataset, share), dataset.read(0, 10)
    assert (best.facts.steps, best.facts.episodes) == (len(steps), len(best.ends))
    np.testing.assert_array_equal(best.facts.returns, [r for r, s in ((6, 0), (22, 4), (17, 8)) if s in steps])
    assert best.facts.terminations == int(share == 1.0)
    assert best.facts.truncations == len(best.ends) - int(share == 1.0)
    for name, column in best.read(0, len(steps)).items():
        np.testing.assert_array_equal(column, rows[name][steps])
    np.testing.assert_array_equal(best.read(1, 3)["reward"], np.asarray(steps)[1:3])
    assert best.ends[-1] == len(steps)


def test_episodes_that_are_not_neighbours_are_joined(tmp_path):
    rewards = np.asarray([9, 9, 9, 9, 0, 0, 0, 0, 9, 9], np.float32)
    best = BestEpisodes(open_dataset(saved(tmp_path / "a.npz", **arrays(rewards=rewards))), 0.6)
    assert (best.ends.tolist(), best.read(0, 6)["reward"].tolist()) == ([4, 6], [9] * 6)


def test_pieces_of_episodes_are_the_last_of_the_best(tmp_path):
    """The returns are 6, 22 and 17; the second episode is a piece."""
    recording = open_recording(saved(tmp_path / "a.npz", **arrays()))
    recording.pieces = [1]
    dataset = RecordedDataset(recording, StepMap.of_spaces("x", *_spaces()))
    assert [BestEpisodes(dataset, share).facts.returns.tolist() for share in (0.3, 0.6, 1)] == [
        [17],
        [6, 17],
        [6, 22, 17],
    ]
    assert BestEpisodes(dataset, 1).facts.whole_returns.tolist() == [6, 17]
    joined = JoinedDataset([dataset, open_dataset(str(tmp_path / "a.npz"))])
    assert joined.facts.whole_returns.tolist() == [6, 17, 6, 22, 17]


def _spaces():
    box = gymnasium.spaces.Box
    return box(-np.inf, np.inf, (3,), np.float32), box(-1, 1, (2,), np.float32)


def test_a_file_npz_needs_no_minari_and_a_folder_does(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "minari.dataset._storages", None)
    assert find_output(str(tmp_path / "a.npz")) == tmp_path / "a.npz"
    with pytest.raises(DatasetError, match=r"needs Minari: .*or write a file: output=NAME.npz") as error:
        find_output(str(tmp_path / "a"))
    assert error.value.exit_code == 3
