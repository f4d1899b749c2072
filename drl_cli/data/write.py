"""Write episodes in Minari's format, or as an .npz file. Both appear at once, when they are complete."""

import json
import os
import re
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.lib import format as npy

from drl_cli.data.dataset import DatasetError
from drl_cli.data.find import MINARI, datasets_root
from drl_cli.data.minari_format import storage_class
from drl_cli.envs.trees import space_to_json, tree_of
from drl_cli.types import MASK, Array, Columns

Storage = Literal["hdf5", "arrow"]
ID = re.compile(r"([-\w]+/)*[-\w]+-v\d+")


@dataclass(frozen=True)
class Episode:
    """Steps in the units of the environment: `obs` `[T+1, ...]` and `action` `[T, ...]` by dotted path.

    A mask from `info` is a part of `obs`, as in an EnvSpec. `reward`, `terminated` and `truncated` are `[T]`.
    """

    obs: Columns
    action: Columns
    reward: Array
    terminated: Array
    truncated: Array
    seed: int | None = None


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


@dataclass
class Written:
    """What was written so far: steps, and the return of each episode."""

    steps: int = 0
    returns: list[float] = field(default_factory=list)
    terminations: int = 0

    def watch(self, episodes: Iterable[Episode]) -> Iterator[Episode]:
        """Yield the episodes, and count them. Raise DatasetError if there are none."""
        for episode in episodes:
            self.steps += len(episode.reward)
            self.returns.append(float(episode.reward.sum(dtype=np.float64)))
            self.terminations += int(episode.terminated.sum())
            yield episode
        if not self.steps:
            raise DatasetError("there are no steps to record")

    def statistics(self) -> dict[str, float]:
        returns = {f"return_{name}": float(getattr(np, name)(self.returns)) for name in ("mean", "std", "min", "max")}
        counts = {"steps": self.steps, "episodes": len(self.returns), "terminations": self.terminations}
        return {**counts, **returns}


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


def write(path: Path, header: Header, episodes: Iterable[Episode], storage: Storage = "hdf5") -> Written:
    """Write a recording and return its counts. If this fails, leave nothing behind. Raise DatasetError or OSError."""
    written = Written()
    watched = written.watch(episodes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _draft(path) as draft:
        if path.suffix == ".npz":
            _write_npz(draft, header, watched, written)
        else:
            _write_minari(draft, path, header, watched, written, storage)
    return written


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Give a path to write to, and rename it to `path` at the end. Remove it if the block raises."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        os.rename(draft, path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _write_npz(path: Path, header: Header, episodes: Iterable[Episode], written: Written) -> None:
    columns: dict[str, _Column] = {}
    for episode in episodes:
        for name, values in _arrays(episode).items():
            columns.setdefault(name, _Column(path.parent, values)).append(values)
    spaces = zip(("observation_space", "action_space"), map(space_to_json, header.spaces), strict=True)
    metadata: dict[str, Any] = {
        **dict(spaces),
        "env": header.env,
        "has_mask": header.has_mask,
        "reference": header.reference,
    }
    metadata["drl_cli"] = header.provenance | written.statistics()
    with zipfile.ZipFile(path, "w") as archive:
        for name, column in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                column.copy_to(member)
        with archive.open("metadata.npy", "w") as member:
            npy.write_array(member, np.array(json.dumps(metadata)), allow_pickle=False)


def _arrays(episode: Episode) -> Columns:
    flags = {"rewards": episode.reward, "terminations": episode.terminated, "truncations": episode.truncated}
    return {
        **{f"observations.{path}".rstrip("."): part[:-1] for path, part in episode.obs.items()},
        **{f"next_observations.{path}".rstrip("."): part[1:] for path, part in episode.obs.items()},
        **{f"actions.{path}".rstrip("."): part for path, part in episode.action.items()},
        **flags,
    }


class _Column:
    """An array that grows in a temporary file."""

    def __init__(self, folder: Path, first: Array) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._dtype, self._row, self._rows = first.dtype, first.shape[1:], 0

    def append(self, values: Array) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._rows += len(values)

    def copy_to(self, member: IO[bytes]) -> None:
        descr = npy.dtype_to_descr(self._dtype)
        npy.write_array_header_1_0(member, {"descr": descr, "fortran_order": False, "shape": (self._rows, *self._row)})
        self._file.seek(0)
        shutil.copyfileobj(self._file, member)


def _write_minari(
    draft: Path, path: Path, header: Header, episodes: Iterable[Episode], written: Written, storage: Storage
) -> None:
    from minari import __version__
    from minari.dataset.minari_storage import MinariStorage

    (draft / "data").mkdir(parents=True)
    for space in header.spaces:
        space_to_json(space)  # raises EnvError for a space that can't be recorded
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
