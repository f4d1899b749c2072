"""Model files: round trip, damage, links, pruning."""

import json
import os

import numpy as np
import pytest

from drl_cli.errors import CheckpointError
from drl_cli.runtime.files.checkpoint import (
    load_model,
    point,
    prune,
    read_manifest,
    save_model,
    write_json,
)
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.orchestrator.saver import drop_drafts

PARAMS = np.linspace(-1, 1, 1000, dtype=np.float32)


def save(root, env_steps=200_000, version=12, params=PARAMS, name=None):
    return save_model(
        root / (name or f"step_{env_steps:09d}"), LoadParams(version, 96, env_steps), params, {"mean": 1.5}
    )


def names(root):
    return sorted(path.name for path in root.iterdir())


def test_round_trip(tmp_path):
    folder = save(tmp_path)
    params, manifest = load_model(folder)
    assert params.dtype == np.float32
    np.testing.assert_array_equal(params, PARAMS)
    expected = {"version": 12, "opt_steps": 96, "env_steps": 200_000, "mean": 1.5}
    assert {key: manifest[key] for key in expected} == expected
    assert names(folder) == ["manifest.json", "model.safetensors"]
    assert names(tmp_path) == ["step_000200000"]


@pytest.mark.parametrize(("form", "said"), [(None, 1), (3, 3)])
def test_another_format_is_refused_by_name(tmp_path, form, said):
    folder = save(tmp_path)
    manifest = read_manifest(folder)
    assert manifest["format"] == 2
    del manifest["format"]
    (folder / "manifest.json").write_text(json.dumps(manifest | ({"format": form} if form else {})))
    with pytest.raises(CheckpointError, match=rf"{folder}: its checkpoint format is {said}, this drl-cli reads 2$"):
        load_model(folder)


def test_saving_again_replaces_and_leaves_no_drafts(tmp_path):
    save(tmp_path)
    folder = save(tmp_path, version=13, params=PARAMS + 1)
    params, manifest = load_model(folder)
    assert manifest["version"] == 13
    np.testing.assert_array_equal(params, PARAMS + 1)
    assert names(tmp_path) == ["step_000200000"]


def test_a_changed_byte_is_refused_by_name(tmp_path):
    model = save(tmp_path) / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-5] ^= 1
    model.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"step_000200000/model.safetensors is missing or damaged"):
        load_model(model.parent)
    model.unlink()
    with pytest.raises(CheckpointError, match=r"step_000200000/model.safetensors is missing or damaged"):
        load_model(model.parent)


@pytest.mark.parametrize("keep", [0, 1, 40])
def test_a_truncated_manifest_is_refused_by_name(tmp_path, keep):
    manifest = save(tmp_path) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"step_000200000/manifest.json: no readable checkpoint"):
        load_model(manifest.parent)


@pytest.mark.parametrize("content", ["{}", "[]", '{"sha256": 3}'])
def test_a_manifest_without_sums_is_refused_by_name(tmp_path, content):
    manifest = save(tmp_path) / "manifest.json"
    manifest.write_text(content)
    with pytest.raises(CheckpointError, match=r"step_000200000"):
        load_model(manifest.parent)


def test_a_folder_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match=r"step_1/manifest.json"):
        read_manifest(tmp_path / "step_1")


def test_links_are_relative_and_replaced_in_one_piece(tmp_path):
    old, new = save(tmp_path, 10), save(tmp_path, 20)
    for folder in (old, new, new):
        point(tmp_path, "best", folder)
        assert os.readlink(tmp_path / "best") == folder.name
        assert load_model(tmp_path / "best")[1]["env_steps"] == int(folder.name[-2:])
    assert names(tmp_path) == ["best", "step_000000010", "step_000000020"]


def test_prune_keeps_the_newest_and_what_is_linked(tmp_path):
    folders = [save(tmp_path, step) for step in range(100, 700, 100)]
    point(tmp_path, "best", folders[1])
    point(tmp_path, "last", folders[-1])
    prune(tmp_path, 2)
    assert names(tmp_path) == ["best", "last", "step_000000200", "step_000000500", "step_000000600"]
    prune(tmp_path, 2)
    assert load_model(tmp_path / "best")[1]["env_steps"] == 200


def test_what_a_killed_process_was_removing_is_no_checkpoint_any_more(tmp_path, monkeypatch):
    class Killed(BaseException):
        """The process ends."""

    def first_file(folder, **_):
        if folder.exists():
            (folder / "manifest.json").unlink()
            raise Killed

    for step in (100, 200):
        save(tmp_path, step)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", first_file)
        with pytest.raises(Killed):
            prune(tmp_path, 1)
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_000000200"]
    drop_drafts(tmp_path)
    assert names(tmp_path) == ["step_000000200"]


@pytest.mark.parametrize(
    ("older", "newer"),
    [("step_999999999", "step_1000000000"), ("step_000000010-v9", "step_000000010-v10")],
)
def test_prune_orders_by_number_not_by_text(tmp_path, older, newer):
    for name in (older, newer):
        save(tmp_path, int(name.split("_")[1].split("-")[0]), name=name)
    prune(tmp_path, 1)
    assert names(tmp_path) == [newer]


def test_write_json_replaces_and_leaves_no_draft(tmp_path):
    for value in ({"a": 1}, {"a": 2}):
        write_json(tmp_path / "run.json", value)
        assert json.loads((tmp_path / "run.json").read_text()) == value
    assert names(tmp_path) == ["run.json"]
    with pytest.raises(TypeError):
        write_json(tmp_path / "run.json", {"a": object()})
    assert json.loads((tmp_path / "run.json").read_text()) == {"a": 2}


def test_a_link_that_a_killed_process_left_half_made_is_no_matter(tmp_path):
    (tmp_path / "step_1").mkdir()
    (tmp_path / f".last.{os.getpid()}").symlink_to("gone")
    point(tmp_path, "last", tmp_path / "step_1")
    assert (tmp_path / "last").resolve() == (tmp_path / "step_1").resolve()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step_1"]
