import json
import os
import shutil

import numpy as np
import pytest

from drl_cli.errors import CheckpointError
from drl_cli.run_folder import checkpoint
from drl_cli.run_folder import checkpoint as checkpoints
from drl_cli.run_folder.pruning import prune, repair_best
from drl_cli.types import LoadParams

HEADER = LoadParams(3, 30, 300, exploration={"epsilon": 0.25})
PARAMS = np.arange(5, dtype=np.float32)


def save(root, env_steps=200_000, name=None):
    return checkpoints.save_model(
        root / (name or f"step_{env_steps:09d}"), LoadParams(12, 96, env_steps), PARAMS, {"mean": 1.5}
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def synced(monkeypatch):
    """Record the name, size and descriptor of each synced file or folder."""
    seen, fsync = [], os.fsync

    def note(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        seen.append((os.path.basename(path), os.fstat(descriptor).st_size, descriptor))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return seen


@pytest.mark.parametrize(("form", "found"), [(None, 1), (3, 3)])
def test_another_format_is_refused_by_name(tmp_path, form, found):
    folder = save(tmp_path)
    manifest = checkpoints.read_manifest(folder)
    assert (manifest.pop("format"), checkpoints.other_format({"format": 2})) == (2, None)
    (folder / "manifest.json").write_text(json.dumps(manifest | ({"format": form} if form else {})))
    with pytest.raises(CheckpointError, match=rf"{folder}: its checkpoint format is {found}, this drl-cli reads 2$"):
        checkpoints.load_model(folder)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("model.safetensors", lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:], "is missing or"),
        ("model.safetensors", None, "is missing or damaged"),
        ("manifest.json", None, "no readable checkpoint"),
        *[
            ("manifest.json", lambda content, keep=keep: content[:keep], "no readable checkpoint")
            for keep in (0, 1, 40)
        ],
        *[("manifest.json", lambda _, text=text: text, "does not list") for text in (b"{}", b"[]", b'{"sha256": 3}')],
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, name, change, problem):
    path = save(tmp_path) / name
    content = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(content))
    with pytest.raises(CheckpointError, match=f"step_000200000/{name}.*{problem}"):
        checkpoints.load_model(path.parent)


@pytest.mark.parametrize(
    ("older", "newer"), [("step_999999999", "step_1000000000"), ("step_000000010-v9", "step_000000010-v10")]
)
def test_prune_orders_by_number_not_by_text(tmp_path, older, newer):
    for name in (older, newer):
        save(tmp_path, int(name.split("_")[1].split("-")[0]), name=name)
    checkpoint.point(tmp_path, "last", tmp_path / newer)
    prune(tmp_path, 1)
    assert names(tmp_path) == ["last", newer]


def test_folders_are_synced_and_closed(tmp_path, synced):
    checkpoints.save_model(tmp_path / "step_000000300", HEADER, PARAMS, {})
    order = [name for name, *_ in synced]
    size = (tmp_path / "step_000000300" / "model.safetensors").stat().st_size  # smaller than a buffer
    assert synced[0][:2] == ("model.safetensors", size)
    assert order[1].startswith(".manifest.json")
    assert order[2].startswith(".step_000000300.")
    assert order[3:] == [tmp_path.name]
    for _, _, descriptor in synced:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_full_disk_keeps_no_draft(tmp_path, monkeypatch):
    def full(path, arrays):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_arrays", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save_model(tmp_path / "step_000000300", HEADER, PARAMS, {})
    assert names(tmp_path) == []


def test_a_checkpoint_lists_the_sums_of_all_its_files(tmp_path):
    draft = checkpoints.make_draft(tmp_path / "step_000000300")
    sums = {
        "a.safetensors": checkpoints.write_arrays(
            draft / "a.safetensors", {"x": np.ones((2, 3))[:, ::-1], "y": np.array(7)}
        )
    }
    sums["b.json"] = checkpoints.write_json(draft / "b.json", [1, 2])
    folder = checkpoints.finish(draft, tmp_path / "step_000000300", HEADER, PARAMS, sums, {"extra": 1})
    assert folder == tmp_path / "step_000000300"
    assert not draft.exists()
    manifest = checkpoints.read_manifest(folder)
    assert manifest["sha256"].keys() == {"a.safetensors", "b.json", "model.safetensors"}
    assert (manifest["version"], manifest["opt_steps"], manifest["env_steps"], manifest["extra"]) == (3, 30, 300, 1)
    arrays = checkpoints.read_arrays(folder, "a.safetensors", manifest)
    assert {name: (array.shape, array.tolist()) for name, array in arrays.items()} == {
        "x": ((2, 3), np.ones((2, 3)).tolist()),
        "y": ((), 7),
    }
    assert checkpoints.read_json(folder, "b.json", manifest) == [1, 2]
    with pytest.raises(CheckpointError, match=r"c\.json is missing or damaged \(No such file or directory\)"):
        checkpoints.read_json(folder, "c.json", manifest)
    (folder / "c.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"c\.json is missing or damaged \(its sha256 is not the manifest's\)"):
        checkpoints.read_json(folder, "c.json", manifest)


@pytest.mark.parametrize(("content", "problem"), [(b"no arrays", "is damaged"), (None, "holds no 'policy'")])
def test_a_file_without_a_model_is_refused(tmp_path, content, problem):
    folder = save(tmp_path)
    checkpoints.write_arrays(folder / "model.safetensors", {"other": PARAMS})
    if content is not None:
        (folder / "model.safetensors").write_bytes(content)
    manifest = checkpoints.read_manifest(folder)
    digest = checkpoint.hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    manifest["sha256"]["model.safetensors"] = digest
    checkpoints.write_json(folder / "manifest.json", manifest | {"seal": checkpoint._seal(manifest)})
    with pytest.raises(CheckpointError, match=problem):
        checkpoints.load_model(folder)


def test_a_manifest_that_was_changed_is_refused(tmp_path):
    folder = checkpoints.save_model(tmp_path / "step_1", HEADER, PARAMS, {"mean": 1.0})
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"mean": 2.0}))
    with pytest.raises(CheckpointError, match="its seal does not match"):
        checkpoints.read_manifest(folder)
    (folder / "manifest.json").write_text(json.dumps(dict(reversed(manifest.items()))))  # another order of keys
    assert checkpoints.read_manifest(folder)["mean"] == 1.0
    assert "seal" not in checkpoints.read_manifest(folder)


def test_a_free_folder_is_named_by_steps_and_then_version(tmp_path):
    taken = []
    for suffix in ("", "", "", "-best", "-best"):
        taken.append(checkpoints.free_folder(tmp_path, 42, 7, suffix).name)
        (tmp_path / taken[-1]).mkdir()
    assert taken == [
        *("step_000000042", "step_000000042-v7", "step_000000042-v7-2"),
        *("step_000000042-best", "step_000000042-v7-best"),
    ]


def test_only_what_last_and_best_replace_is_removed(tmp_path):
    for name in ("step_000000001", "step_000000001-best", "step_000000002", "step_000000003", "step_000000003-best"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_000000009").touch()  # not a folder
    every = names(tmp_path)
    for link in ("step_000000007", None):  # links that point to nothing, and no links
        for name in ("best", "last"):
            checkpoint.point(tmp_path, name, link and tmp_path / link)
        prune(tmp_path, 1)
        assert names(tmp_path) == sorted([*every, *(["best", "last"] if link else [])])
    checkpoint.point(tmp_path, "best", tmp_path / "step_000000001-best")
    checkpoint.point(tmp_path, "last", tmp_path / "step_000000002")
    prune(tmp_path, 2)
    kept = ["best", "last", "step_000000001", "step_000000001-best", "step_000000002", "step_000000003"]
    assert names(tmp_path) == [*kept, "step_000000009"]
    prune(tmp_path, 1)  # the newer one is of another branch: only a new checkpoint after a resume replaces it
    assert names(tmp_path) == [*kept[:2], *kept[3:], "step_000000009"]


def test_the_best_model_is_the_complete_one_with_the_highest_mean_whatever_best_points_to(tmp_path):
    for position, mean in ((100, 7.0), (200, 9.0), (300, 5.0)):
        checkpoints.save_model(
            tmp_path / f"step_{position:09d}-best", LoadParams(1, 1, position), PARAMS, {"mean": mean}
        )
    checkpoint.point(tmp_path, "best", tmp_path / "step_000000300-best")
    (tmp_path / "step_000000200-best" / "model.safetensors").write_bytes(b"damaged")
    assert len(repair_best(tmp_path)) == 1
    assert os.readlink(tmp_path / "best") == "step_000000100-best"
    assert repair_best(tmp_path) == []


@pytest.mark.parametrize("can_link", [True, False])
def test_a_checkpoint_of_another_run_is_adopted_as_the_last(tmp_path, synced, monkeypatch, can_link):
    for name, value in (("theirs", PARAMS), ("mine", PARAMS + 1)):
        folder = checkpoints.save_model(tmp_path / name / "step_000000300", HEADER, value, {})
        checkpoint.point(folder.parent, "last", folder)
    source, mine = tmp_path / "theirs" / "step_000000300", tmp_path / "mine"
    (mine / f".{source.name}.{os.getpid()}").mkdir()  # a killed attempt left this
    if not can_link:

        def refuse(*_):
            raise OSError("another file system")

        monkeypatch.setattr(os, "link", refuse)
    synced.clear()
    for _ in range(2):  # the second time as after a kill
        checkpoints.adopt(mine, source)
        assert (names(mine), os.readlink(mine / "last")) == (["last", "step_000000300"], "step_000000300")
        np.testing.assert_array_equal(checkpoints.load_model(mine / "last")[0], PARAMS)
    assert "mine" in [name for name, _, _ in synced]
    assert (source / "model.safetensors").samefile(mine / "last" / "model.safetensors") == can_link
    shutil.rmtree(source.parent)
    np.testing.assert_array_equal(checkpoints.load_model(mine / "last")[0], PARAMS)
