"""Checkpoint files on the disk: synced before they count, names that are free, and what a crash has left."""

import json
import os
import shutil

import numpy as np
import pytest

from drl_cli.errors import CheckpointError
from drl_cli.runtime.files import checkpoint
from drl_cli.runtime.files.checkpoint import (
    adopt,
    finish,
    free_folder,
    load_model,
    make_draft,
    other_format,
    prune,
    read_arrays,
    read_json,
    read_manifest,
    save_model,
    write_arrays,
    write_json,
)
from drl_cli.runtime.messages import LoadParams

HEADER = LoadParams(3, 30, 300, exploration={"epsilon": 0.25})
PARAMS = np.arange(5, dtype=np.float32)


@pytest.fixture
def synced(monkeypatch):
    """Of each sync the file or folder, its size, and what the folder above has by then."""
    seen, fsync = [], os.fsync

    def note(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        seen.append((os.path.basename(path), os.fstat(descriptor).st_size, descriptor))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return seen


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("write", [write_json, write_arrays])
def test_a_file_is_whole_when_it_is_synced(tmp_path, synced, write):
    path, value = tmp_path / "file", {"a": np.arange(10)}  # less than what is written at once
    value = value if write is write_arrays else {"a": "x" * 50}
    digest = write(path, value)
    ((_, size, _),) = synced
    assert size == path.stat().st_size > 50
    assert digest == checkpoint.hashlib.sha256(path.read_bytes()).hexdigest()
    assert names(tmp_path) == ["file"]


def test_folders_are_synced_and_closed(tmp_path, synced):
    save_model(tmp_path / "step_000000300", HEADER, PARAMS, {})
    order = [name for name, *_ in synced]
    assert order[0] == "model.safetensors"
    assert order[1].startswith(".manifest.json")
    assert order[2].startswith(".step_000000300.")
    assert order[3:] == [tmp_path.name]
    for _, _, descriptor in synced:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_what_a_crash_has_left_is_in_nobodys_way(tmp_path):
    """Drafts, and a folder that was being replaced."""
    folder = tmp_path / "root" / "step_000000300"
    save_model(folder, HEADER, PARAMS, {})  # the root is made, too
    for name in (f".step_000000300.{os.getpid()}", ".step_000000300.old"):
        (folder.parent / name).mkdir()
        (folder.parent / name / "left").touch()
    assert save_model(folder, HEADER, PARAMS + 1, {"mean": 2.0}) == folder
    assert names(folder.parent) == ["step_000000300"]
    params, manifest = load_model(folder)
    assert np.array_equal(params, PARAMS + 1)
    assert (manifest["exploration"], manifest["mean"], manifest["format"]) == ({"epsilon": 0.25}, 2.0, 2)
    draft = make_draft(tmp_path / "new" / "step_1")
    assert draft.parent == tmp_path / "new"
    assert names(draft) == []


def test_a_disk_without_room_is_left_as_it_was(tmp_path, monkeypatch):
    def full(path, arrays):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_arrays", full)
    with pytest.raises(OSError, match="No space left"):
        save_model(tmp_path / "step_000000300", HEADER, PARAMS, {})
    assert names(tmp_path) == []


def test_a_checkpoint_lists_all_its_files_by_their_sums(tmp_path):
    draft = make_draft(tmp_path / "step_000000300")
    sums = {"a.safetensors": write_arrays(draft / "a.safetensors", {"x": np.ones((2, 3))[:, ::-1], "y": np.array(7)})}
    sums["b.json"] = write_json(draft / "b.json", [1, 2])
    folder = finish(draft, tmp_path / "step_000000300", HEADER, PARAMS, sums, {"extra": 1})
    assert folder == tmp_path / "step_000000300"
    assert not draft.exists()
    manifest = read_manifest(folder)
    assert manifest["sha256"].keys() == {"a.safetensors", "b.json", "model.safetensors"}
    assert (manifest["version"], manifest["opt_steps"], manifest["env_steps"], manifest["extra"]) == (3, 30, 300, 1)
    arrays = read_arrays(folder, "a.safetensors", manifest)
    assert {name: (array.shape, array.tolist()) for name, array in arrays.items()} == {
        "x": ((2, 3), np.ones((2, 3)).tolist()),
        "y": ((), 7),
    }
    assert read_json(folder, "b.json", manifest) == [1, 2]
    with pytest.raises(CheckpointError, match=r"c\.json is missing or damaged \(No such file or directory\)"):
        read_json(folder, "c.json", manifest)
    (folder / "c.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"c\.json is missing or damaged \(its sha256 is not the manifest's\)"):
        read_json(folder, "c.json", manifest)


def test_a_model_that_is_none_is_refused_by_name(tmp_path):
    folder = save_model(tmp_path / "step_1", HEADER, PARAMS, {})
    for content, says in ((b"no arrays", "is damaged"), (None, "holds no 'policy'")):
        if content is None:
            digest = write_arrays(folder / "model.safetensors", {"other": PARAMS})
        else:
            (folder / "model.safetensors").write_bytes(content)
            digest = checkpoint.hashlib.sha256(content).hexdigest()
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["sha256"]["model.safetensors"] = digest
        del manifest["seal"]
        write_json(folder / "manifest.json", manifest | {"seal": checkpoint._seal(manifest)})
        with pytest.raises(CheckpointError, match=says):
            load_model(folder)


def test_a_manifest_that_was_changed_is_refused(tmp_path):
    folder = save_model(tmp_path / "step_1", HEADER, PARAMS, {"mean": 1.0})
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"mean": 2.0}))
    with pytest.raises(CheckpointError, match="its seal does not match"):
        read_manifest(folder)
    (folder / "manifest.json").write_text(json.dumps(dict(reversed(manifest.items()))))  # another layout is no change
    assert read_manifest(folder)["mean"] == 1.0
    assert "seal" not in read_manifest(folder)


def test_formats_of_manifests():
    assert other_format({"format": 2}) is None
    assert other_format({}) == "its checkpoint format is 1, this drl-cli reads 2"
    assert other_format({"format": 3}) == "its checkpoint format is 3, this drl-cli reads 2"


def test_a_free_name_has_the_steps_and_then_the_version(tmp_path):
    taken = []
    for suffix in ("", "", "", "-best", "-best"):
        taken.append(free_folder(tmp_path, 42, 7, suffix).name)
        (tmp_path / taken[-1]).mkdir()
    assert taken == [
        *("step_000000042", "step_000000042-v7", "step_000000042-v7-2"),
        *("step_000000042-best", "step_000000042-v7-best"),
    ]


def test_models_alone_go_as_soon_as_best_points_to_another(tmp_path):
    for name in ("step_000000001", "step_000000001-best", "step_000000002", "step_000000003", "step_000000003-best"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_000000009").touch()  # no folder
    (tmp_path / "best").symlink_to("step_000000001-best")
    prune(tmp_path, 2)
    assert names(tmp_path) == ["best", "step_000000001-best", "step_000000002", "step_000000003", "step_000000009"]
    shutil.rmtree(tmp_path / "step_000000001-best")
    (tmp_path / "best").unlink()
    (tmp_path / "last").mkdir()  # no link
    prune(tmp_path, 1)
    assert names(tmp_path) == ["last", "step_000000003", "step_000000009"]


@pytest.mark.parametrize("can_link", [True, False])
def test_another_runs_checkpoint_becomes_the_last_one(tmp_path, synced, monkeypatch, can_link):
    for name, value in (("theirs", PARAMS), ("mine", PARAMS + 1)):
        folder = save_model(tmp_path / name / "step_000000300", HEADER, value, {})
        checkpoint.point(folder.parent, "last", folder)
    source, mine = tmp_path / "theirs" / "step_000000300", tmp_path / "mine"
    (mine / f".{source.name}.{os.getpid()}").mkdir()  # of an attempt that was killed
    if not can_link:

        def refuse(*_):
            raise OSError("another file system")

        monkeypatch.setattr(os, "link", refuse)
    synced.clear()
    for _ in range(2):  # again, as after a kill
        adopt(mine, source)
        assert names(mine) == ["last", "step_000000300"]
        assert os.readlink(mine / "last") == "step_000000300"
        np.testing.assert_array_equal(load_model(mine / "last")[0], PARAMS)
    assert "mine" in [name for name, _, _ in synced]
    assert (source / "model.safetensors").samefile(mine / "last" / "model.safetensors") == can_link
    shutil.rmtree(source.parent)
    np.testing.assert_array_equal(load_model(mine / "last")[0], PARAMS)
