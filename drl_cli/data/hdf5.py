"""Recordings in .hdf5 files with flat arrays, as d4rl has them."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.data.dataset import DatasetError
from drl_cli.data.flat import FlatRecording
from drl_cli.errors import MISSING

SAMPLES = 64
"""The stamp of a file covers the contents of this number of steps."""


class Hdf5Recording(FlatRecording):
    """The recording in an .hdf5 file."""

    def __init__(self, name: str, path: Path) -> None:
        try:
            import h5py
        except ImportError as error:
            raise DatasetError(".hdf5 files need h5py:  pip install 'drl-cli[minari]'", MISSING) from error
        if not path.is_file():
            raise DatasetError(f"{name} is no file")
        self._file = h5py.File(path, "r")
        super().__init__(name, dict(own_arrays(self._file, name)))
        steps = np.unique(np.linspace(0, len(self) - 1, SAMPLES).astype(int)).tolist() if len(self) else []
        samples = [self._read(step, step + 1) for step in steps]
        parts = [
            part for each in samples for found in (each.obs, each.action, each.next_obs) for part in found.values()
        ]
        self.stamp = f"{path.stat().st_size} {zlib.crc32(b''.join(part.tobytes() for part in parts))}"


def own_arrays(group: Any, name: str, prefix: str = "", above: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the arrays in an open file by dotted path. Any: h5py has no types.

    Raise DatasetError if an array lies in another file, or if a link leads to another file or back to its group.
    """
    import h5py

    for key in group:
        path = f"{prefix}{key}"
        if group.get(key, getlink=True, getclass=True) is not h5py.HardLink:
            raise DatasetError(f"{name}: {path} is a link; a dataset has to hold its arrays itself")
        node = group[key]
        if isinstance(node, h5py.Group):
            if node in (*above, group):
                raise DatasetError(f"{name}: {path} is a link to a group above it")
            yield from own_arrays(node, name, f"{path}.", (*above, group))
        elif node.external or node.is_virtual:
            raise DatasetError(f"{name}: {path} lies in another file; a dataset has to hold its arrays itself")
        else:
            yield path, node
