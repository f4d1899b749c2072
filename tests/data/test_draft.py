"""What an interrupted recording leaves: its whole episodes, which can be read, and which the same command continues."""

import minari
import numpy as np
import pytest
from recorded_envs import SPACES, episodes, header

from drl_cli.data import draft as module
from drl_cli.data.dataset import DatasetError
from drl_cli.data.draft import Written, draft_path
from drl_cli.data.open import open_dataset, open_recording
from drl_cli.data.write import write

STEPS = np.array([3, 4, 5, 6, 7])
"""The lengths of the episodes."""


def stopped_by(error, kind="box", count=3):
    def play(done):
        yield from episodes(kind, count)
        raise error

    return play


def interrupt(path, kind="box", count=3):
    """Write episodes, and fail. Return the folder with what is left."""
    with pytest.raises(OSError, match="no space"):
        write(path, header(kind), stopped_by(OSError("no space"), kind, count))
    assert not path.exists()
    return draft_path(path)


def rest(kind="box"):
    """Play the episodes that are missing."""
    return lambda done: [*episodes(kind)][done.episodes :]


def assert_same(one, other):
    one, other = open_dataset(str(one)), open_dataset(str(other))
    assert (one.facts.steps, one.ends.tolist(), one.spec) == (other.facts.steps, other.ends.tolist(), other.spec)
    rows, others = (dataset.read(0, dataset.facts.steps) for dataset in (one, other))
    for name in others:
        np.testing.assert_array_equal(rows[name], others[name])
        assert rows[name].dtype == others[name].dtype
        assert rows[name].flags.writeable  # a copy


@pytest.mark.parametrize("kind", SPACES)
def test_a_draft_is_a_dataset_with_the_episodes_so_far(tmp_path, kind):
    write(tmp_path / "whole.npz", header(kind, reference=(0.0, 5.0)), lambda _: episodes(kind, 3))
    folder = interrupt(tmp_path / "x.npz", kind)
    assert folder == tmp_path / "x.npz.partial"
    assert_same(folder, tmp_path / "whole.npz")
    steps, given = open_recording(str(folder)).read(0, 12), [*episodes(kind, 3)]
    for path, part in steps.obs.items():
        np.testing.assert_array_equal(part, np.concatenate([each.obs[path][:-1] for each in given]))
        np.testing.assert_array_equal(steps.next_obs[path], np.concatenate([each.obs[path][1:] for each in given]))
    for path, part in steps.action.items():
        np.testing.assert_array_equal(part, np.concatenate([each.action[path] for each in given]))
    assert open_dataset(str(folder)).facts.env == "TestSampler-v0"


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("name", ["a.npz", "b"])
def test_an_interrupted_recording_continues(tmp_path, kind, name):
    folder = interrupt(tmp_path / name, kind)
    written = write(tmp_path / name, header(kind), rest(kind))
    once = write(tmp_path / f"once-{name}", header(kind), lambda _: episodes(kind))
    assert written == once
    assert (written.steps, written.episodes, written.terminations, len(written.returns)) == (25, 5, 1, 5)
    assert_same(tmp_path / name, tmp_path / f"once-{name}")
    assert not folder.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, f"once-{name}"])


def test_minari_keeps_the_seeds_of_a_continued_recording(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    interrupt(tmp_path / "my" / "data-v0")
    write(tmp_path / "my" / "data-v0", header("box"), rest())
    found = minari.load_dataset("my/data-v0").storage.get_episode_metadata(range(5))
    assert [each["seed"] for each in found] == [*range(5)]


def test_a_killed_process_leaves_its_whole_episodes(tmp_path):
    """It was killed within its third episode: a part of the arrays is there, and a part of the line of the index."""
    folder = interrupt(tmp_path / "a.npz", count=2)
    for path in [*folder.glob("*.bin"), folder / "episodes.jsonl"]:
        path.write_bytes(path.read_bytes() + b'{"ste')
    assert open_dataset(str(folder)).facts.steps == STEPS[:2].sum()
    write(tmp_path / "a.npz", header("box"), rest())
    write(tmp_path / "once.npz", header("box"), lambda _: episodes("box"))
    assert_same(tmp_path / "a.npz", tmp_path / "once.npz")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), KeyboardInterrupt(75)])
@pytest.mark.parametrize("name", ["a.npz", "b"])
def test_a_signal_ends_a_recording_with_the_episodes_so_far(tmp_path, error, name):
    written = write(tmp_path / name, header("box"), stopped_by(error))
    assert written.ended_by is error
    assert (written.steps, open_dataset(str(tmp_path / name)).facts.steps) == (12, 12)
    with pytest.raises(type(error)):
        write(tmp_path / "empty", header("box"), stopped_by(error, count=0))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a.npz", "b"])
def test_a_recording_that_cant_be_completed_keeps_its_episodes(tmp_path, monkeypatch, name):
    def fail(*args):
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("drl_cli.data.write.os.rename", fail)
        with pytest.raises(OSError, match="no space"):
            write(tmp_path / name, header("box"), rest())
    folder = draft_path(tmp_path / name)
    assert not (folder / "output").exists()
    (folder / "output").mkdir()  # of a process that was killed
    (folder / "output" / "data").touch()
    assert write(tmp_path / name, header("box"), rest()).steps == 25
    assert open_dataset(str(tmp_path / name)).facts.steps == 25


def test_nothing_to_record(tmp_path):
    with pytest.raises(DatasetError, match="no steps to record"):
        write(tmp_path / "a.npz", header("box"), lambda _: [])
    assert not [*tmp_path.iterdir()]


def test_a_draft_without_an_episode(tmp_path):
    folder = tmp_path / "a.npz.partial"
    folder.mkdir()
    (folder / "episodes.jsonl").write_text('{"steps"')
    with pytest.raises(DatasetError, match=r"a.npz.partial is empty: .* before its first episode ended"):
        open_dataset(str(folder))
    assert write(tmp_path / "a.npz", header("box"), rest()).steps == 25
    assert open_dataset(str(tmp_path / "a.npz")).facts.steps == 25


def test_the_draft_of_another_command_is_kept(tmp_path):
    folder = interrupt(tmp_path / "a.npz")
    other = header("box", provenance={"command": ["drl-record", "seed=2"]})
    with pytest.raises(DatasetError, match=r"a.npz.partial has the episodes of another command; remove it, or say ano"):
        write(tmp_path / "a.npz", other, rest())
    assert open_dataset(str(folder)).facts.steps == 12


def test_two_processes_dont_write_the_same_draft(tmp_path):
    def play(done):
        with pytest.raises(DatasetError, match="another process is writing"):
            write(tmp_path / "a.npz", header("box"), rest())
        return episodes("box")

    assert write(tmp_path / "a.npz", header("box"), play).steps == 25


def test_other_arrays_are_refused(tmp_path):
    folder = interrupt(tmp_path / "a.npz")
    with pytest.raises(DatasetError, match="has the arrays"):
        write(tmp_path / "a.npz", header("box"), lambda _: episodes("dict"))
    assert open_dataset(str(folder)).facts.steps == 12


@pytest.mark.parametrize(
    "spoil",
    [
        lambda at: (at / "header.json").write_text("{"),
        lambda at: (at / "header.json").write_text("{}"),
        lambda at: (at / "episodes.jsonl").write_text("{}\n"),
        lambda at: (at / "episodes.jsonl").write_text("[]\n"),
        lambda at: (at / "0.bin").write_bytes(b"x"),
    ],
)
def test_refuses_what_is_damaged(tmp_path, spoil):
    folder = interrupt(tmp_path / "a.npz")
    spoil(folder)
    with pytest.raises(DatasetError, match="damaged"):
        open_dataset(str(folder))


def test_identity_changes_with_any_value(tmp_path):
    first, same = (interrupt(tmp_path / name) for name in "ab")
    assert open_dataset(str(first)).facts.identity == open_dataset(str(same)).facts.identity
    content = bytearray((same / "0.bin").read_bytes())
    content[8 * 3 + 1] ^= 1
    (same / "0.bin").write_bytes(content)
    assert open_dataset(str(first)).facts.identity != open_dataset(str(same)).facts.identity


def test_large_arrays_are_copied_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 50)  # two observations
    column = module.Draft(interrupt(tmp_path / "a.npz"))["next_observations"]
    pieces = [*column.pieces()]
    assert [len(piece) for piece in pieces] == [2] * 6
    np.testing.assert_array_equal(np.concatenate(pieces), column[0:12])


@pytest.mark.parametrize("name", ["a.npz", "b"])
def test_returns_are_those_of_whole_episodes(tmp_path, name):
    from dataclasses import replace

    def pieces(done):
        return [replace(each, is_whole=i not in (1, 4)) for i, each in enumerate(episodes("box"))]

    written = write(tmp_path / name, header("box"), pieces)
    returns = [each.reward.sum() for each in episodes("box")]
    assert written.pieces == open_recording(str(tmp_path / name)).pieces == [1, 4]
    np.testing.assert_allclose(written.returns, np.take(returns, [0, 2, 3]))
    facts = open_dataset(str(tmp_path / name)).facts
    np.testing.assert_allclose(facts.returns, returns)
    np.testing.assert_allclose(facts.whole_returns, np.take(returns, [0, 2, 3]))
    source = open_recording(str(tmp_path / name)).provenance
    assert (source["episodes"], source["steps"], source["return_min"]) == (5, 25, min(written.returns))


def test_without_a_whole_episode_there_are_no_returns():
    assert Written(10, 1, 0, [], [0]).statistics() == {"steps": 10, "episodes": 1, "terminations": 0, "pieces": [0]}
