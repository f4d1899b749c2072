"""Checkpoint folders: `step_000200000/{model.safetensors, state.*, manifest.json}`; `best` and `last` point to one.

A folder is written beside its place and renamed, everything in it synced first, the manifest with the sha256 of every
file last. Loading reads arrays and json, never code.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from drl_cli.errors import CheckpointError
from drl_cli.runtime.messages import LoadParams
from drl_cli.types import Array, State

MODEL = "model.safetensors"
COUNTERS = "state.orchestrator.json"
FORMAT = 2
"""What a checkpoint's files hold, and by which names. Format 1 had no number yet."""


def save_model(folder: Path, params_header: LoadParams, params: Array, extra: Mapping[str, float]) -> Path:
    """Write the policy's parameters of one version to a folder, replacing what is there; returns the folder."""
    draft = make_draft(folder)
    try:
        return finish(draft, folder, params_header, params, {}, extra)
    except OSError:  # a full disk is not to be filled with drafts
        shutil.rmtree(draft, ignore_errors=True)
        raise


def make_draft(folder: Path) -> Path:
    """An empty folder beside `folder`, for its files."""
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    return draft


def finish(
    draft: Path,
    folder: Path,
    params_header: LoadParams,
    params: Array,
    sums: Mapping[str, str],
    extra: Mapping[str, Any],
) -> Path:
    """Make a draft, whose files have these sha256 `sums`, a checkpoint: add the model and the manifest, rename it."""
    sums = {**sums, MODEL: write_arrays(draft / MODEL, {"policy": params})}
    manifest = {
        "format": FORMAT,
        "version": params_header.version,
        "opt_steps": params_header.opt_steps,
        "env_steps": params_header.env_steps,
        "exploration": dict(params_header.exploration),
        **extra,
        "sha256": sums,
    }
    write_json(draft / "manifest.json", manifest | {"seal": _seal(manifest)})
    _sync(draft)
    _replace_folder(draft, folder)
    _sync(folder.parent)
    return folder


def write_arrays(path: Path, arrays: State) -> str:
    """Write named arrays, synced; returns the sha256 of the file."""
    content = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def read_arrays(folder: Path, name: str, manifest: Mapping[str, Any]) -> State:
    """The arrays of one file of a checkpoint; raises CheckpointError naming it when it is missing or damaged."""
    try:
        return dict(safetensors.numpy.load(_content(folder, name, manifest)))
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{folder / name} is damaged: {error}") from error


def point(root: Path, name: str, folder: Path) -> None:
    """Make the link `name` (best, last) point to a step folder, atomically."""
    draft = root / f".{name}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(folder.name)
    os.replace(draft, root / name)


def adopt(root: Path, checkpoint: Path) -> None:
    """Make a copy of another run's checkpoint the last one under `root`; its files, which never change, are linked.

    What ends this in between leaves nothing that doing it again does not put right.
    """
    draft, folder = root / f".{checkpoint.name}.{os.getpid()}", root / checkpoint.name
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(checkpoint, draft, copy_function=_link)
    _replace_folder(draft, folder)
    _sync(root)
    point(root, "last", folder)


def free_folder(root: Path, env_steps: int, version: int, suffix: str = "") -> Path:
    """A step folder that is not there yet: named by the env steps, and by the version too where that name is taken."""
    name = f"step_{env_steps:09d}"
    others = (f"{name}-v{version}{'' if i == 1 else f'-{i}'}{suffix}" for i in count(1))
    return next(path for path in map(root.joinpath, chain([name + suffix], others)) if not path.exists())


def prune(root: Path, keep_last: int) -> None:
    """Remove all but the newest `keep_last` step folders; what `best` and `last` point to stays.

    Folders named step_*-best hold a model only: they go as soon as `best` points to another.
    """
    linked = {os.readlink(root / name) for name in ("best", "last") if (root / name).is_symlink()}
    folders = [path for path in root.glob("step_*") if path.is_dir()]
    models = [path for path in folders if path.name.endswith("-best")]
    steps = sorted(set(folders) - set(models), key=_numbers)
    for path in (*steps[:-keep_last], *models):
        if path.name not in linked:
            _remove(path)


def load_model(folder: Path) -> tuple[Array, dict[str, Any]]:
    """The parameter vector and the manifest; raises CheckpointError naming what is missing or damaged."""
    manifest = read_manifest(folder)
    arrays = read_arrays(folder, MODEL, manifest)
    if "policy" not in arrays:
        raise CheckpointError(f"{folder / MODEL} is damaged: it holds no 'policy'")
    return arrays["policy"], manifest


def read_manifest(folder: Path) -> dict[str, Any]:  # Any: json
    """The manifest of a step folder; raises CheckpointError: there is none, another format, not as it was written."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: no readable checkpoint there ({error})") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("sha256"), dict):
        raise CheckpointError(f"{path}: damaged, it does not list the checkpoint's files")
    if problem := other_format(manifest):
        raise CheckpointError(f"{folder}: {problem}")
    if manifest.pop("seal", None) != _seal(manifest):
        raise CheckpointError(f"{path}: damaged, it is not as it was written (its seal does not match)")
    return manifest


def other_format(manifest: Mapping[str, Any]) -> str | None:
    """Why a manifest's checkpoint can't be read, being of an older or newer format; None when it can."""
    written = manifest.get("format", 1)
    return None if written == FORMAT else f"it was written by format {written} of drl-cli, this one reads {FORMAT}"


def read_json(folder: Path, name: str, manifest: Mapping[str, Any]) -> Any:
    """A json file of a checkpoint; raises CheckpointError naming it when it is missing or damaged."""
    return json.loads(_content(folder, name, manifest))


def write_json(path: Path, value: object) -> str:
    """Write a json file in one piece: beside its place, synced, renamed; returns its sha256."""
    draft, content = path.with_name(f".{path.name}.{os.getpid()}"), (json.dumps(value, indent=2) + "\n").encode()
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    return hashlib.sha256(content).hexdigest()


def _content(folder: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    path = folder / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} is missing or damaged ({error.strerror})") from error
    if hashlib.sha256(content).hexdigest() != manifest["sha256"].get(name):
        raise CheckpointError(f"{path} is missing or damaged (its sha256 is not the manifest's)")
    return content


def _link(source: str, target: str) -> None:
    """A hard link, or a copy where another file system is."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def _seal(manifest: Mapping[str, Any]) -> str:
    """sha256 of what a manifest says, whatever its layout."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sync(folder: Path) -> None:
    """Have the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace_folder(draft: Path, folder: Path) -> None:
    if folder.exists():
        old = _set_aside(folder)
        draft.rename(folder)
        shutil.rmtree(old)
    else:
        draft.rename(folder)


def _remove(folder: Path) -> None:
    """Remove a step folder; what ends this in between leaves no half of one by its name."""
    shutil.rmtree(_set_aside(folder))


def _set_aside(folder: Path) -> Path:
    """Rename a step folder to a name that is no checkpoint's, and is removed when a run begins."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    return folder.rename(old)
