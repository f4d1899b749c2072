"""Write episodes in Minari's format, or as an .npz file.

The episodes are first written to a draft, one by one. The file or folder appears when it is complete.
"""

import os
import re
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy

from drl_cli.data.dataset import DatasetError
from drl_cli.data.draft import Draft, DraftWriter, Episode, Written, draft_path
from drl_cli.data.find import MINARI, datasets_root
from drl_cli.data.minari_format import storage_class
from drl_cli.envs.trees import space_to_json, tree_of
from drl_cli.types import MASK

Storage = Literal["hdf5", "arrow"]
ID = re.compile(r"([-\w]+/)*[-\w]+-v\d+")


@dataclass(frozen=True)
class Header:
    """What a recording says about itself. `spaces` are those of observations and actions.

    `env` is an id, `env_spec` is Gymnasium's EnvSpec. With `has_mask`, `obs` has a mask from `info`. `provenance` says
    where the steps come from. `reference` has the returns of a random policy and of an expert.
    """

    env: str
    spaces: tuple[Any, Any]  # Any: spaces of Gymnasium
    env_spec: Any = None
    has_mask: bool = False
    algorithm: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)  # Any: json
    reference: tuple[float, float] | None = None


def find_output(output: str, storage: Storage = "hdf5") -> Path:
    """Return the path for a recording: an .npz file, a folder, or the folder of `minari:ID`.

    Raise DatasetError if it exists, can't be one, or needs Minari and Minari is not installed.
    """
    if output.startswith(MINARI):
        id = output.removeprefix(MINARI)
        if not ID.fullmatch(id):
            raise DatasetError(f"output={output}: Minari's ids end with a version: {MINARI}{id or 'my/data'}-v0")
        path = datasets_root() / id
    else:
        path = Path(output).expanduser()
        if path.suffix in (".hdf5", ".h5", ".json", ".csv", ".pkl"):
            raise DatasetError(f"output={output}: {path.suffix} is not written; say a folder, minari:ID or a file .npz")
    if path.exists():
        raise DatasetError(f"output={output} is there already: say another name, or remove it")
    if path.suffix != ".npz":
        try:
            storage_class(storage, f"output={output}")
        except DatasetError as error:
            raise DatasetError(f"{error}   or write a file: output=NAME.npz", error.exit_code) from error
    return path


def write(
    path: Path, header: Header, play: Callable[[Written], Iterable[Episode]], storage: Storage = "hdf5"
) -> Written:
    """Write a recording and return its counts.

    `play` gets the counts of the episodes that an interrupted recording has left in the draft of this path, and yields
    the episodes after these. If this fails, the draft keeps all whole episodes. SIGINT, SIGTERM and SIGHUP end the
    recording with the episodes so far. Raise DatasetError or OSError.
    """
    metadata, ended_by = metadata_of(header), None
    path.parent.mkdir(parents=True, exist_ok=True)
    with DraftWriter(draft_path(path), metadata) as writer:
        try:
            for episode in play(writer.written):
                writer.append(episode)
        except KeyboardInterrupt as signal:
            if writer.is_empty:
                raise
            ended_by = signal
        if writer.is_empty:
            raise DatasetError("there are no steps to record")
        draft = Draft(writer.folder)
        written = replace(draft.counts(), ended_by=ended_by)
        _remove(output := writer.folder / "output")  # of a process that was killed
        try:
            if path.suffix == ".npz":
                _write_npz(output, draft)
            else:
                _write_minari(output, path, header, draft.episodes(), written, storage)
            os.rename(output, path)
        except BaseException:
            _remove(output)
            raise
        writer.remove()
    return written


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def metadata_of(header: Header) -> dict[str, Any]:
    observations, actions = map(space_to_json, header.spaces)
    return {
        "observation_space": observations,
        "action_space": actions,
        "env": header.env,
        "has_mask": header.has_mask,
        "reference": header.reference,
        "drl_cli": header.provenance,
    }


def _write_npz(path: Path, draft: Draft) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, column in draft.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                descr = npy.dtype_to_descr(column.dtype)
                header = {"descr": descr, "fortran_order": False, "shape": column.shape}
                npy.write_array_header_1_0(member, header)
                for piece in column.pieces():
                    member.write(piece.data)
        with archive.open("metadata.npy", "w") as member:
            npy.write_array(member, np.array(draft.text("metadata")), allow_pickle=False)


def _write_minari(
    draft: Path, path: Path, header: Header, episodes: Iterable[Episode], written: Written, storage: Storage
) -> None:
    from minari import __version__
    from minari.dataset.minari_storage import MinariStorage

    (draft / "data").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari's advice on authors
        data, env_spec = (draft / "data").resolve(), _env_spec(header)
        store = MinariStorage.new(data, *header.spaces, env_spec, storage, jpeg_encoding=False)
        store.update_metadata({"dataset_id": _id(path), "minari_version": __version__})
        store.update_episodes(_buffers(header, episodes))
        metadata: dict[str, Any] = {"algorithm_name": header.algorithm, "author": {"drl-record"}}
        if header.reference is not None:
            metadata |= dict(zip(("ref_min_score", "ref_max_score"), header.reference, strict=True))
        store.update_metadata(metadata | {"drl_cli": {"env": header.env} | header.provenance | written.statistics()})


def _env_spec(header: Header) -> Any:  # Any: Gymnasium's EnvSpec
    """Return the EnvSpec if it can be written, else None: a class that was registered itself has no import path."""
    try:
        header.env_spec.to_json()
    except (AttributeError, TypeError, ValueError):
        return None
    return header.env_spec


def _id(path: Path) -> str:
    """Return the id of a dataset in a folder. Only a folder below Minari's own can be found by its id."""
    root = datasets_root().resolve()
    name = str(path.resolve().relative_to(root)) if path.resolve().is_relative_to(root) else path.name
    return name if ID.fullmatch(name) else f"{re.sub(r'[^-/0-9A-Za-z_]', '_', name)}-v0"


def _buffers(header: Header, episodes: Iterable[Episode]) -> Iterator[Any]:  # Any: Minari has no types
    from minari.data_collector.episode_buffer import EpisodeBuffer

    observations, actions = header.spaces
    for episode in episodes:
        obs, infos = dict(episode.obs), None
        if header.has_mask:
            infos = {MASK: obs.pop(MASK)}
            obs = {"" if path == "obs" else path: part for path, part in obs.items()}
        yield EpisodeBuffer(
            seed=episode.seed,
            observations=tree_of(observations, obs),
            actions=tree_of(actions, episode.action),
            rewards=episode.reward,
            terminations=episode.terminated,
            truncations=episode.truncated,
            infos=infos,
        )
