"""Checkpoint folders `step_<env steps>` with model.safetensors, state.* and manifest.json; `best` and `last` are links.

A folder is first written under a temporary name, as a draft, and then renamed. All files are synced to disk before the
folder is renamed. The manifest is written last and lists the sha256 of each file. Loading reads arrays and JSON, and
never executes code. `pruning` decides which folders are kept.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from drl_cli.errors import CheckpointError
from drl_cli.types import Array, LoadParams, State, within
from drl_cli.utils.files import link, regular, remove_folder, replace_file, sync_folder

MODEL = "model.safetensors"
COUNTERS = "state.orchestrator.json"
TRAINER = "state.trainer.safetensors"
FORMAT = 2
"""The version of the file format."""
EVALUATION = "state.evaluation.safetensors"
"""The parameters of a version whose evaluation a resumed run repeats."""
DTYPES = {
    **{"uint64": "U64", "int64": "I64", "float64": "F64", "complex64": "C64", "float32": "F32", "uint32": "U32"},
    **{"int32": "I32", "float16": "F16", "uint16": "U16", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"},
}
"""The names of numpy's dtypes in a safetensors file, in the order in which such a file has them."""


def save_model(
    folder: Path, params_header: LoadParams, params: Array, extra: Mapping[str, float], name: str | None = None
) -> Path:
    """Write the parameters of a policy version to a folder, replacing an existing folder. Return the folder.

    Let the link `name` point to the folder, if given.
    """
    draft = make_draft(folder)
    try:
        return finish(draft, folder, params_header, params, {}, extra, name)
    except OSError:  # an unfinished folder must not take space on a full disk
        shutil.rmtree(draft, ignore_errors=True)
        raise


def make_draft(folder: Path) -> Path:
    """Create and return an empty folder beside `folder`, with a temporary name."""
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
    name: str | None = None,
) -> Path:
    """Add the model and the manifest to `draft`, and rename it to `folder`. `sums` has the sha256 of other files.

    Let the link `name` point to the folder, if given. The link is changed first: if the process is killed between the
    two steps, `pruning` finds the previous checkpoint, and a checkpoint that is whole never lacks its link.
    """
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
    write_json(draft / "manifest.json", manifest | {"seal": _seal(manifest)})  # also syncs the folder
    if name is not None:
        point(folder.parent, name, folder)
    _replace_folder(draft, folder)
    sync_folder(folder.parent)
    return folder


def write_arrays(path: Path, arrays: State) -> str:
    """Write named arrays to a file in safetensors' format and sync the file. Return the sha256 of the content.

    The arrays are written from where they are: safetensors itself copies them all twice, and aborts the process if
    there is no memory for this.
    """
    return _write(path, _pieces(arrays))


def write_json(path: Path, value: object) -> str:
    """Replace a JSON file as `replace_file` does. Return the sha256 of the content."""
    content = (json.dumps(value, indent=2) + "\n").encode()
    replace_file(path, content)
    return hashlib.sha256(content).hexdigest()


def read_arrays(folder: Path, name: str, manifest: Mapping[str, Any]) -> State:
    """Return the arrays in a file of a checkpoint. Raise CheckpointError if the file is missing or damaged."""
    try:
        return dict(safetensors.numpy.load(_content(folder, name, manifest)))
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{folder / name} is damaged: {error}") from error


def read_json(folder: Path, name: str, manifest: Mapping[str, Any]) -> Any:
    """Return the content of a JSON file of a checkpoint. Raise CheckpointError if the file is missing or damaged."""
    return json.loads(_content(folder, name, manifest))


def point(root: Path, name: str, folder: Path | None) -> None:
    """Atomically make the link `name` (`best` or `last`) point to a step folder, or remove the link.

    If `name` is a folder, as in a copy without links, rename this folder to the step folder with the lowest number.
    """
    if (root / name).is_dir() and not (root / name).is_symlink():
        (root / name).rename(free_folder(root, 0, 0, "-best" if name == "best" else ""))
    if folder is None:
        (root / name).unlink(missing_ok=True)
        return
    draft = root / f".{name}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(folder.name)
    os.replace(draft, root / name)


def adopt(root: Path, checkpoint: Path) -> None:
    """Link or copy another run's checkpoint into `root`, and let `last` point to it. Can be repeated after a kill."""
    draft, folder = root / f".{checkpoint.name}.{os.getpid()}", root / checkpoint.name
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(checkpoint, draft, copy_function=lambda old, new: link(old, new) or shutil.copy2(old, new))
    point(root, "last", folder)
    _replace_folder(draft, folder)
    sync_folder(root)


def free_folder(root: Path, env_steps: int, version: int, suffix: str = "") -> Path:
    """Return the path of a new step folder, named by the env steps, and also by the version if that name is taken."""
    name = f"step_{env_steps:09d}"
    others = (f"{name}-v{version}{'' if i == 1 else f'-{i}'}{suffix}" for i in count(1))
    return next(path for path in map(root.joinpath, chain([name + suffix], others)) if not path.exists())


def drop_replay(folder: Path) -> None:
    """Remove the replay from a checkpoint. The checkpoint stays complete: a resumed run fills its replay again."""
    manifest = read_manifest(folder)
    replay = [name for name in manifest["sha256"] if name.startswith("state.replay-")]
    for name in replay:
        del manifest["sha256"][name]
    write_json(folder / "manifest.json", manifest | {"seal": _seal(manifest)})
    for name in replay:
        (folder / name).unlink(missing_ok=True)


def load_model(folder: Path) -> tuple[Array, dict[str, Any]]:
    """Return a checkpoint's parameter vector and manifest. Raise CheckpointError if a file is missing or damaged."""
    manifest = read_manifest(folder)
    arrays = read_arrays(folder, MODEL, manifest)
    if "policy" not in arrays:
        raise CheckpointError(f"{folder / MODEL} is damaged: it holds no 'policy'")
    return arrays["policy"], manifest


class Weights(NamedTuple):
    """The weights from which a run starts: the policy's vector, and all parameters and target networks by name.

    A model that was saved alone, such as the best one, has no `networks`.
    """

    policy: Array
    networks: State


def read_weights(folder: Path) -> Weights:
    """Return the weights in a checkpoint. Raise CheckpointError if a file is missing or damaged."""
    policy, manifest = load_model(folder)
    has_trainer = TRAINER in manifest["sha256"]
    saved = within(read_arrays(folder, TRAINER, manifest), "algorithm") if has_trainer else {}
    kinds = ("params", "target", "buffer")
    return Weights(policy, {name: array for name, array in saved.items() if name.partition(".")[0] in kinds})


def read_manifest(folder: Path) -> dict[str, Any]:  # Any: json
    """Return a step folder's manifest. Raise CheckpointError if the file is missing, damaged, or of another format."""
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
        raise CheckpointError(f"{path}: damaged, its content has changed (its seal does not match)")
    return manifest


def other_format(manifest: Mapping[str, Any]) -> str | None:
    """Return why the format of a manifest can't be read, or None if it can be read."""
    written = manifest.get("format", 1)
    return None if written == FORMAT else f"its checkpoint format is {written}, this drl-cli reads {FORMAT}"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint for `resume`: a parameter version, the orchestrator's `state`, and the files of other roles."""

    folder: Path
    params_header: LoadParams
    params: Array
    manifest: dict[str, Any]
    state: dict[str, Any]

    @property
    def env_steps(self) -> int:
        return int(self.state["counts"]["env_steps"])

    @property
    def opt_steps(self) -> int:
        return int(self.state["counts"]["opt_steps"])

    @property
    def unfinished(self) -> LoadParams | None:
        """The version whose evaluation the resumed run has to repeat, if any."""
        return LoadParams(**self.state["evaluation"]) if EVALUATION in self.manifest["sha256"] else None

    @property
    def has_replay(self) -> bool:
        return any(map(is_replay, self.manifest["sha256"]))

    def without_replay(self) -> "Checkpoint":
        """Return the checkpoint as if it had been saved with checkpoint.replay=off."""
        sums = {name: sha256 for name, sha256 in self.manifest["sha256"].items() if not is_replay(name)}
        return replace(self, manifest=self.manifest | {"sha256": sums})


def is_replay(name: str) -> bool:
    """Return whether a file of a checkpoint belongs to the replay."""
    return name.startswith("state.replay-")


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a checkpoint and read its small files. Raise CheckpointError with the name of a missing or damaged file."""
    params, manifest = load_model(folder)
    if COUNTERS not in manifest["sha256"]:
        raise CheckpointError(f"{folder} holds a model only, nothing to resume from; load_weights={folder} can use it")
    params_header = LoadParams(
        manifest["version"], manifest["opt_steps"], manifest["env_steps"], exploration=manifest["exploration"]
    )
    return Checkpoint(folder.resolve(), params_header, params, manifest, read_json(folder, COUNTERS, manifest))


def _pieces(arrays: State) -> Iterator[bytes | memoryview]:
    """Yield the header of a safetensors file with these arrays, and the bytes of each array."""
    order = [*DTYPES]
    ordered = sorted(arrays.items(), key=lambda named: (order.index(named[1].dtype.name), named[0]))
    header, end = dict[str, object](), 0
    for name, array in ordered:
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": (begin, end)}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, array in ordered:
        yield np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data


def damaged_files(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Return the names of the files that are missing or damaged. This reads all files."""
    from concurrent.futures import ThreadPoolExecutor  # most commands do not need it

    def is_damaged(name: str) -> bool:
        try:
            with open(folder / name, "rb", opener=regular) as file:
                return hashlib.file_digest(file, "sha256").hexdigest() != str(manifest["sha256"][name])
        except OSError:
            return True

    with ThreadPoolExecutor() as pool:
        names = sorted(manifest["sha256"])
        return [name for name, bad in zip(names, pool.map(is_damaged, names), strict=True) if bad]


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    with open(path, "wb", opener=regular) as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _content(folder: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    path = folder / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} is missing or damaged ({error.strerror})") from error
    if hashlib.sha256(content).hexdigest() != manifest["sha256"].get(name):
        raise CheckpointError(f"{path} is missing or damaged (its sha256 is not the manifest's)")
    return content


def _seal(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _replace_folder(draft: Path, folder: Path) -> None:
    if folder.exists():
        remove_folder(folder)
    draft.rename(folder)
