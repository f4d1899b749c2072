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
        self._file = h5py.File(path, "r")
        super().__init__(name, dict(_arrays(self._file)))
        steps = np.unique(np.linspace(0, len(self) - 1, SAMPLES).astype(int)).tolist() if len(self) else []
        samples = [self._read(step, step + 1) for step in steps]
        parts = [
            part for each in samples for found in (each.obs, each.action, each.next_obs) for part in found.values()
        ]
        self.stamp = f"{path.stat().st_size} {zlib.crc32(b''.join(part.tobytes() for part in parts))}"


def _arrays(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # Any: h5py has no types
    """Yield the arrays in a file by dotted path."""
    for key, node in group.items():
        yield from _arrays(node, f"{prefix}{key}.") if hasattr(node, "items") else [(f"{prefix}{key}", node)]
