"""Recordings in Minari's format, in the storage formats that Minari has. Nothing in them is executed."""

import json
import zlib
from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.data.dataset import DatasetError
from drl_cli.data.find import METADATA, MINARI, datasets_root, local_ids
from drl_cli.data.recording import Recording, Steps, own_arrays, pieces_of
from drl_cli.envs.config import EnvError
from drl_cli.envs.trees import parts_of, space_from_json
from drl_cli.errors import MISSING
from drl_cli.types import MASK, Array, Columns
from drl_cli.utils.files import read_file
from drl_cli.utils.spelling import did_you_mean

KEPT_BYTES = 1 << 28
"""A recording is kept in memory up to this size. The episodes beyond it are read again when they are asked for."""
DAMAGE = (KeyError, ValueError, IndexError, TypeError, AttributeError, AssertionError)
"""Errors of Minari and its libraries for files with other contents than they expect."""


def find_minari(id: str, download: bool) -> Path:
    """Return the folder of the dataset with this id. Let Minari download a missing one if `download` is True.

    Raise DatasetError with both ways to download it if it is missing.
    """
    root, ids = datasets_root(), local_ids()
    if id not in ids and download and id:
        _download(id)
        ids = local_ids()
    if id not in ids:
        there = f"   there: {', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''}" if ids else ""
        how = f"data.download=true (drl-list data: download=true), or minari download {id}" if id else "say an ID"
        raise DatasetError(f"no Minari dataset '{id}' in {root}.{did_you_mean(id, ids)} To download it: {how}{there}")
    return root / id


def _download(id: str) -> None:
    storage_class("hdf5", f"{MINARI}{id}")
    import minari

    try:
        minari.download_dataset(id)
    except Exception as error:  # Minari's clients raise errors of many libraries
        line = " ".join(str(error).split())
        raise DatasetError(f"Minari could not download '{id}': {line or type(error).__name__}") from error


def storage_class(format: str, source: str) -> Any:  # Any: Minari has no types
    """Return Minari's class for the storage format of `source`. Raise DatasetError if a package is missing."""
    try:
        from minari.dataset._storages import get_minari_storage, get_storage_keys

        if format not in get_storage_keys():
            raise DatasetError(
                f"{source}: Minari has no storage format '{format}', but {', '.join(get_storage_keys())}"
            )
        return get_minari_storage(format)
    except ImportError as error:
        raise DatasetError(f"{source} needs Minari:  pip install 'drl-cli[minari]'", MISSING) from error


Arrays = tuple[Columns, Columns]
"""The arrays of an episode by path: observations `[T+1, ...]` and actions `[T, ...]`."""


def _nbytes(episode: Arrays) -> int:
    return sum(part.nbytes for parts in episode for part in parts.values())


class MinariRecording(Recording):
    """The recording in a folder with Minari's data. All of it is read once at the start.

    Raise DatasetError if it is damaged, and OSError if it can't be read.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        with self._reading():
            metadata = json.loads(read_file(folder / METADATA))
            _check_files(folder, metadata, name)
            self._open(folder, metadata)
            self._load()
            if len(self) != metadata["total_steps"]:
                raise DatasetError(f"{name} is damaged: it has {len(self):,} steps, not {metadata['total_steps']:,}")

    def _open(self, folder: Path, metadata: dict[str, Any]) -> None:
        if not {"observation_space", "action_space"} <= metadata.keys():
            raise DatasetError(f"{self.name} has no spaces in its {METADATA}; write it again with a newer Minari")
        observations, actions = (space_from_json(metadata[f"{kind}_space"]) for kind in ("observation", "action"))
        self.spaces = observations, actions
        low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
        self.reference = None if low is None or high is None or low >= high else (float(low), float(high))
        self.provenance = metadata.get("drl_cli") or {}
        self.pieces = pieces_of(self.provenance)
        self.env = self.provenance.get("env") or json.loads(metadata.get("env_spec") or "{}").get("id")
        make = storage_class(metadata["data_format"], self.name)
        has_jpegs = metadata.get("jpeg_encoding", True)
        self._storage = make(folder.resolve(), observations, actions, jpeg_encoding=has_jpegs)
        self._num = int(metadata["total_episodes"])

    def _load(self) -> None:
        """Read all episodes. Keep the first ones up to `KEPT_BYTES`."""
        self._kept: dict[int, Arrays] = {}
        self._last: tuple[int, Arrays] = -1, ({}, {})  # the next part often begins within it
        flags: list[list[Array]] = [[np.zeros(0)], [np.zeros(0, np.bool_)], [np.zeros(0, np.bool_)]]
        size = checksum = 0
        for i, found in enumerate(self._storage.get_episodes(range(self._num))):
            reward, terminated, truncated = (
                np.asarray(found[key]) for key in ("rewards", "terminations", "truncations")
            )
            episode = self._episode(i, found, len(reward))
            for column, values in zip(flags, (reward, terminated, truncated), strict=True):
                column.append(values.astype(column[0].dtype).reshape(len(reward)))
            if len(reward):
                flags[2][-1] = flags[2][-1] | (np.arange(len(reward)) == len(reward) - 1)  # an episode ends
            for part in [*episode[0].values(), *episode[1].values()]:
                checksum = zlib.crc32(part.tobytes(), checksum)
            size += _nbytes(episode)
            if size <= KEPT_BYTES:
                self._kept[i] = episode
        self.stamp = str(checksum)
        self._ends = np.cumsum([len(reward) for reward in flags[0][1:]], dtype=np.int64)
        self.reward, self.terminated, self.truncated = map(np.concatenate, flags)

    def _episode(self, i: int, found: dict[str, Any], steps: int) -> Arrays:
        obs, action = parts_of(found["observations"]), parts_of(found["actions"])
        mask = (found["infos"] or {}).get(MASK)
        if mask is not None and MASK not in obs:
            self.has_mask = True
            obs = {path or "obs": part for path, part in obs.items()} | {MASK: np.asarray(mask)}
        if not all(len(part) == steps + 1 for part in obs.values()):
            raise DatasetError(f"{self.name} is damaged: episode {i} does not have {steps + 1} observations")
        if not all(len(part) == steps for part in action.values()):
            raise DatasetError(f"{self.name} is damaged: episode {i} does not have {steps} actions")
        return obs, action

    def _read(self, first: int, last: int) -> Steps:
        low, high = np.searchsorted(self._ends, (first, last - 1), "right").tolist()
        columns: list[list[Columns]] = [[], [], []]
        with self._reading():
            for i, (obs, action) in self._episodes(range(min(low, self._num - 1), max(low, high) + 1)):
                end = int(self._ends[i])
                start = end - len(next(iter(action.values())))
                begin, stop = max(first - start, 0), min(last, end) - start
                columns[0].append({path: part[begin:stop] for path, part in obs.items()})
                columns[1].append({path: part[begin:stop] for path, part in action.items()})
                columns[2].append({path: part[begin + 1 : stop + 1] for path, part in obs.items()})
        joined = [{path: np.concatenate([each[path] for each in pieces]) for path in pieces[0]} for pieces in columns]
        return Steps(*joined)

    def _episodes(self, wanted: range) -> Iterator[tuple[int, Arrays]]:
        known = ChainMap(self._kept, dict([self._last]))
        missing = [i for i in wanted if i not in known]
        loaded = iter(self._storage.get_episodes(missing) if missing else ())
        for i in wanted:
            if i in known:
                episode = known[i]
            else:
                arrays = next(loaded)
                episode = self._episode(i, arrays, len(arrays["rewards"]))
            self._last = i, episode
            yield i, episode

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn the errors of damaged files into DatasetErrors."""
        try:
            yield
        except EnvError as error:
            raise DatasetError(f"{self.name}: {error}") from error
        except DAMAGE as error:
            line = " ".join(str(error).split()) or type(error).__name__
            raise DatasetError(f"{self.name} is damaged, or it is no Minari dataset ({line})") from error


def _check_files(folder: Path, metadata: dict[str, Any], name: str) -> None:
    """Raise DatasetError if a file of a dataset is a pipe or a device, or has arrays in other files."""
    for path in folder.rglob("*"):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DatasetError(f"{name}: {path} is a pipe or a device")
    file = folder / "main_data.hdf5"
    if metadata.get("data_format") == "hdf5" and file.is_file():
        import h5py

        with h5py.File(file, "r") as opened:
            for _ in own_arrays(opened, name):
                pass
