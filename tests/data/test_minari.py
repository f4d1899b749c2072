import json
import shutil

import gymnasium
import jax_trees
import numpy as np
import pytest
from recorded_envs import SPACES, env_config, episodes, header

from drl_cli.data import minari_format
from drl_cli.data.dataset import DatasetError
from drl_cli.data.draft import Episode
from drl_cli.data.open import open_dataset, open_recording
from drl_cli.data.write import Header
from drl_cli.data.write import write as write_played
from drl_cli.envs.recorded import StepMap
from drl_cli.envs.trees import parts_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
minari = pytest.importorskip("minari", reason="needs drl-cli[minari]")
pytest.importorskip("h5py", reason="needs drl-cli[minari]")
FORMATS = [
    "hdf5",
    pytest.param(
        "arrow",
        marks=pytest.mark.skipif(
            __import__("importlib").util.find_spec("pyarrow") is None, reason="needs pyarrow: drl-cli[minari]"
        ),
    ),
]


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


@pytest.fixture
def collect(monkeypatch):
    """Return a function that has Minari's DataCollector record episodes; the last one is cut after a step."""
    jax_trees.install(monkeypatch)

    def collect(kind, format="hdf5", episodes=6, id="test/sampler-v0"):
        env = minari.DataCollector(
            gymnasium.make("TestSampler-v0", kind=kind, disable_env_checker=True),
            data_format=format,
            jpeg_encoding=False,
        )
        env.action_space.seed(0)
        for i in range(episodes):
            env.reset(seed=i)
            is_last = i == episodes - 1
            ended = False
            while not ended:
                *_, terminated, truncated, _ = env.step(env.action_space.sample())
                ended = terminated or truncated or is_last
        return env.create_dataset(id, ref_min_score=-1.0, ref_max_score=4.0)

    return collect


def transitions(dataset, steps):
    """Return Minari's transitions as a worker would make them, with the environment's own maps."""
    rows = []
    for episode in dataset.iterate_episodes():
        obs, actions = parts_of(episode.observations), parts_of(episode.actions)
        for t in range(len(episode.rewards)):
            now, after = ({path: part[t + k] for path, part in obs.items()} for k in (0, 1))
            rows.append(
                (
                    *(now, {path: part[t] for path, part in actions.items()}, episode.rewards[t], after),
                    *(bool(episode.terminations[t]), bool(episode.truncations[t])),
                )
            )
    return rows


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", SPACES)
def test_reads_what_minaris_collector_wrote(collect, format, kind):
    theirs = collect(kind, format)
    ours = open_dataset("minari:test/sampler-v0", env_config(kind))
    returns = [episode.rewards.sum() for episode in theirs.iterate_episodes()]
    assert (ours.facts.steps, ours.facts.episodes) == (theirs.total_steps, theirs.total_episodes)
    np.testing.assert_allclose(ours.facts.returns, returns)
    assert (ours.facts.env, ours.facts.reference) == ("TestSampler-v0", (-1.0, 4.0))
    rows, steps = ours.read(0, ours.facts.steps), StepMap.of_env(env_config(kind))
    for i, (obs, action, reward, next_obs, terminated, truncated) in enumerate(transitions(theirs, steps)):
        for name, parts in (("obs", obs), ("next_obs", next_obs)):
            for path, value in steps.obs({path: part[None] for path, part in parts.items()}).items():
                mine = rows[f"{name}.{path}".rstrip(".")]
                np.testing.assert_array_equal(mine[i], value[0])
        np.testing.assert_array_equal(rows["action"][i], steps.actions({p: v[None] for p, v in action.items()})[0][0])
        assert rows["reward"][i] == np.float32(reward)
        assert (rows["terminated"][i], rows["truncated"][i]) == (terminated, truncated)
    assert rows["truncated"][-1], "the collector was left within an episode"
    assert ours.facts.truncations == sum(e.truncations.sum() for e in theirs.iterate_episodes())


@pytest.mark.parametrize("kept", [0, 60_000])  # none, or about two episodes
def test_any_part_can_be_read_and_an_episode_that_was_just_read_is_not_read_again(collect, monkeypatch, kept):
    storage = minari.dataset._storages.hdf5_storage.HDF5Storage
    asked, true = [], storage.get_episodes
    monkeypatch.setattr(storage, "get_episodes", lambda self, them: asked.extend(them) or true(self, them))
    monkeypatch.setattr(minari_format, "KEPT_BYTES", kept)
    collect("dict")
    dataset = open_dataset("minari:test/sampler-v0")
    rows, steps, num = dataset.read(0, dataset.facts.steps), dataset.facts.steps, dataset.facts.episodes
    for first in range(0, steps, 3):
        for last in (first, first + 1, first + 7, steps):
            part = dataset.read(first, min(last, steps))
            for name in rows:
                np.testing.assert_array_equal(part[name], rows[name][first:last])
    asked.clear()
    for first in range(steps):
        dataset.read(first, first + 1)
    assert asked == [*range(2 if kept else 0, num)]


def write(path, header, episodes, format="hdf5"):
    return write_played(path, header, lambda _: episodes, format)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", SPACES)
def test_minari_reads_what_we_write(root, format, kind):
    written = write(root / "my" / "data-v3", header(kind, reference=(0.0, 5.0)), episodes(kind), format)
    theirs = minari.load_dataset("my/data-v3")
    assert (theirs.total_steps, theirs.total_episodes) == (written.steps, 5) == (25, 5)
    assert theirs.observation_space == SPACES[kind][0]
    assert theirs.action_space == SPACES[kind][1]
    assert (theirs.env_spec.id, minari.get_normalized_score(theirs, np.array(2.5))) == ("TestSampler-v0", 0.5)
    for ours, other in zip(episodes(kind), theirs.iterate_episodes(), strict=True):
        for mine, found in ((ours.obs, other.observations), (ours.action, other.actions)):
            found = parts_of(found)
            assert mine.keys() == found.keys()
            for path in mine:
                np.testing.assert_array_equal(mine[path], found[path])
        np.testing.assert_array_equal(ours.reward, other.rewards)
        np.testing.assert_array_equal(ours.terminated, other.terminations)
        np.testing.assert_array_equal(ours.truncated, other.truncations)
    assert [each["seed"] for each in theirs.storage.get_episode_metadata(range(5))] == [*range(5)]
    assert "my/data-v3" in minari.list_local_datasets()


@pytest.mark.parametrize("kind", SPACES)
def test_npz_and_minari_give_the_same_steps(tmp_path, kind):
    for name in ("a.npz", "b"):
        write(tmp_path / name, header(kind, provenance={"seed": 1}), episodes(kind))
    one, other = (open_dataset(str(tmp_path / name)) for name in ("a.npz", "b"))
    assert one.spec == other.spec
    assert one.facts.env == other.facts.env == "TestSampler-v0"
    assert (
        (one.facts.terminations, one.facts.truncations) == (other.facts.terminations, other.facts.truncations) == (1, 4)
    )
    rows, others = (dataset.read(0, 25) for dataset in (one, other))
    assert rows.keys() == others.keys()
    for name in rows:
        np.testing.assert_array_equal(rows[name], others[name])
        assert rows[name].dtype == others[name].dtype
    first, second = (open_recording(str(tmp_path / name)).provenance["return_mean"] for name in ("a.npz", "b"))
    assert first == second
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_masks_from_info(tmp_path):
    observations, actions = SPACES["tuple"][0], gymnasium.spaces.Discrete(3)
    mask = np.array([[1, 1, 0]] * 4, np.int8)
    episode = Episode(
        {"obs": np.array([-2, 0, 1, 4]), "action_mask": mask},
        *({"": np.array([0, 1, 0])}, np.zeros(3), np.array([False, False, True]), np.zeros(3, bool)),
    )
    for name in ("a.npz", "b"):
        write(tmp_path / name, Header("Masked-v0", (observations, actions), has_mask=True), [episode])
        rows = open_dataset(str(tmp_path / name)).read(0, 3)
        np.testing.assert_array_equal(rows["obs.action_mask"], mask[:3] == 1)
        np.testing.assert_array_equal(rows["next_obs.obs"], [2, 3, 6])


def test_an_unknown_id_names_the_nearest_and_minaris_command(root):
    write(root / "D4RL" / "hopper" / "medium-v0", header("box"), episodes("box"))
    with pytest.raises(DatasetError) as error:
        open_dataset("minari:D4RL/hoper/medium-v0")
    text = str(error.value)
    assert f"no Minari dataset 'D4RL/hoper/medium-v0' in {root}. Did you mean D4RL/hopper/medium-v0?" in text
    ways = "data.download=true (drl-list data: download=true), or minari download D4RL/hoper/medium-v0"
    assert f"To download it: {ways}" in text


def test_downloads_only_when_asked(root, monkeypatch):
    asked = []

    def download(id):
        asked.append(id)
        write(root / id, header("box"), episodes("box"))

    monkeypatch.setattr(minari, "download_dataset", download)
    with pytest.raises(DatasetError):
        open_dataset("minari:far-v0")
    assert not asked
    assert open_dataset("minari:far-v0", download=True).facts.steps == 25
    assert (open_dataset("minari:far-v0", download=True).facts.steps, asked) == (25, ["far-v0"])


def test_a_download_that_fails(monkeypatch):
    monkeypatch.setattr(minari, "download_dataset", lambda id: 1 / 0)
    with pytest.raises(DatasetError, match="could not download 'far-v0': division by zero"):
        open_dataset("minari:far-v0", download=True)


def test_without_minari_the_extra_is_named(root, monkeypatch):
    write(root / "x-v0", header("box"), episodes("box"))
    monkeypatch.setitem(__import__("sys").modules, "minari.dataset._storages", None)
    with pytest.raises(DatasetError, match=r"pip install 'drl-cli\[minari\]'") as error:
        open_dataset("minari:x-v0")
    assert error.value.exit_code == 3


def test_other_spaces_are_named(root):
    write(root / "x-v0", header("box"), episodes("box"))
    with pytest.raises(DatasetError) as error:
        open_dataset("minari:x-v0", env_config("dict"))
    assert [line.partition(" are ")[0] for line in error.value.problems] == [
        "minari:x-v0: its observations",
        "minari:x-v0: its actions",
    ]
    assert "TestSampler-v0 has" in error.value.problems[1]


def changed_metadata(folder, **changes):
    path = folder / "data" / "metadata.json"
    metadata = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in metadata.items() if value is not None}))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda at: changed_metadata(at, total_steps=24), "it has 25 steps, not 24"),
        (lambda at: changed_metadata(at, total_episodes=9), "damaged"),
        (lambda at: changed_metadata(at, observation_space=None), "has no spaces"),
        (lambda at: changed_metadata(at, observation_space='{"type": "Graph"}'), "Graph spaces are not handled"),
        (lambda at: changed_metadata(at, data_format="pickle"), "Minari has no storage format 'pickle'"),
        (lambda at: (at / "data" / "metadata.json").write_text("{"), "damaged"),
        (lambda at: (at / "data" / "main_data.hdf5").write_bytes(b""), "can't be read"),
        (lambda at: (at / "data" / "main_data.hdf5").unlink(), "damaged"),
        (lambda at: cut(at / "data" / "main_data.hdf5"), "can't be read"),
        (lambda at: shutil.rmtree(at / "data"), "is no dataset"),
    ],
)
def test_refuses_what_is_damaged(tmp_path, spoil, text):
    write(tmp_path / "x", header("box"), episodes("box"))
    spoil(tmp_path / "x")
    with pytest.raises(DatasetError) as error:
        open_dataset(str(tmp_path / "x"))
    assert text in str(error.value)
    assert str(tmp_path / "x") in str(error.value)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_nothing_in_a_dataset_is_executed(tmp_path):
    """The entry point of Minari's EnvSpec names a module; Minari itself imports it if spaces are missing."""
    write(tmp_path / "x", header("box"), episodes("box"))
    spec = {"id": "Bad-v0", "entry_point": "antigravity:flights"}
    changed_metadata(tmp_path / "x", env_spec=json.dumps(spec), drl_cli=None)
    assert open_dataset(str(tmp_path / "x")).facts.env == "Bad-v0"
    changed_metadata(tmp_path / "x", observation_space=None)
    with pytest.raises(DatasetError):
        open_dataset(str(tmp_path / "x"))
    assert "antigravity" not in __import__("sys").modules


def test_identity_changes_with_any_value(tmp_path):
    for i in range(2):
        write(tmp_path / f"{i}", header("box"), episodes("box"))
    write(tmp_path / "2", header("box"), episodes("box", seed=1))
    first, same, other = (open_dataset(str(tmp_path / f"{i}")).facts.identity for i in range(3))
    assert first == same != other
    import h5py

    with h5py.File(tmp_path / "1" / "data" / "main_data.hdf5", "a") as file:
        file["episode_3/observations"][2, 1] += 1e-9
    assert open_dataset(str(tmp_path / "1")).facts.identity != first


def test_an_environment_that_minari_cant_make_is_recorded(tmp_path):
    spec = gymnasium.envs.registration.EnvSpec("Own-v0", entry_point=lambda: None)
    write(tmp_path / "x", Header("my_mod:Own-v0", SPACES["box"], spec), episodes("box"))
    assert open_dataset(str(tmp_path / "x")).facts.env == "my_mod:Own-v0"
