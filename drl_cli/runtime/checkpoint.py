"""Model files: `checkpoints/step_000200000/{model.safetensors, manifest.json}`, `best` and `last` pointing to one.

A folder is written beside its place and renamed; loading reads arrays and json, never code.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.numpy

from drl_cli.runtime.messages import LoadParams
from drl_cli.types import Array


class CheckpointError(Exception):
    """A checkpoint that is missing or damaged; the message names the file."""


def save_model(folder: Path, load: LoadParams, params: Array, extra: Mapping[str, float]) -> Path:
    """Write the policy's parameters of one version to a folder, replacing what is there; returns the folder."""
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    model = draft / "model.safetensors"
    safetensors.numpy.save_file({"policy": params}, model)
    manifest = {
        "version": load.version,
        "opt_steps": load.opt_steps,
        "env_steps": load.env_steps,
        "exploration": dict(load.exploration),
        **extra,
        "sha256": {"model.safetensors": digest(model)},
    }
    write_json(draft / "manifest.json", manifest)
    _replace_folder(draft, folder)
    return folder


def point(root: Path, name: str, folder: Path) -> None:
    """Make the link `name` (best, last) point to a step folder, atomically."""
    draft = root / f".{name}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(folder.name)
    os.replace(draft, root / name)


def prune(root: Path, keep_last: int) -> None:
    """Remove all but the newest `keep_last` step folders; what `best` and `last` point to stays."""
    linked = {os.readlink(root / name) for name in ("best", "last") if (root / name).is_symlink()}
    folders = (path for path in root.glob("step_*") if path.is_dir())
    steps = sorted(folders, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])
    for path in steps[:-keep_last]:
        if path.name not in linked:
            shutil.rmtree(path)


def load_model(folder: Path) -> tuple[Array, dict[str, Any]]:
    """The parameter vector and the manifest; raises CheckpointError naming what is missing or damaged."""
    manifest = read_manifest(folder)
    model = folder / "model.safetensors"
    if not model.is_file() or digest(model) != manifest["sha256"][model.name]:
        raise CheckpointError(f"{model} is missing or damaged (its sha256 is not the manifest's)")
    return safetensors.numpy.load_file(model)["policy"], manifest


def read_manifest(folder: Path) -> dict[str, Any]:  # Any: json
    """The manifest of a step folder; raises CheckpointError when there is none or it does not list its files' sums."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: no readable checkpoint there ({error})") from error
    sums = manifest.get("sha256") if isinstance(manifest, dict) else None
    if not isinstance(sums, dict) or "model.safetensors" not in sums:
        raise CheckpointError(f"{path}: damaged, it does not list the checkpoint's files")
    return {str(key): value for key, value in manifest.items()}


def digest(path: Path) -> str:
    """sha256 of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_json(path: Path, value: object) -> None:
    """Write a json file in one piece: beside its place, synced, renamed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def _replace_folder(draft: Path, folder: Path) -> None:
    if folder.exists():
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        draft.rename(folder)
        shutil.rmtree(old)
    else:
        draft.rename(folder)
