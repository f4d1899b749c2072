"""Read the arrays of an .npz file in slices, without loading the file and without pickle."""

import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from drl_cli.data.dataset import DatasetError
from drl_cli.types import Array

LOCAL_HEADER = 30
"""Bytes of the header before a member of a zip file, without the member's name and extra field."""
PIECE_BYTES = 1 << 22


class Member:
    """An array `[n, ...]` in a file. Slices of rows are read from the file when they are asked for."""

    def __init__(self, file: IO[bytes], start: int, name: str) -> None:
        file.seek(start)
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, self.dtype = read_header(file)
        if self.dtype.hasobject:
            raise DatasetError(f"{name} holds Python objects; they need pickle, which could run any code: save numbers")
        self.shape = tuple(shape)
        self._file, self._start = file, file.tell()
        self._row = int(np.prod(self.shape[1:]))
        self._columns: Array | None = None
        if is_fortran and len(self.shape) > 1:  # a row is not in one piece
            self._columns = np.memmap(file, self.dtype, "r", self._start, self.shape, "F")

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, rows: slice) -> Array:
        """Return the rows of a slice without a step as a new array. Raise OSError if the file has become shorter."""
        first, last, _ = rows.indices(len(self))
        if self._columns is not None:
            return np.array(self._columns[first:last], order="C")
        shape = (last - first, *self.shape[1:])
        self._file.seek(self._start + first * self._row * self.dtype.itemsize)
        values = np.fromfile(self._file, self.dtype, shape[0] * self._row)
        if values.size < shape[0] * self._row:
            raise OSError(f"the file ends before row {last}")
        return values.reshape(shape)


class Npz(Mapping[str, Member]):
    """The arrays of an .npz file by name. A compressed array is first written to a temporary file.

    Raise DatasetError if the file is damaged or needs pickle, and OSError if it can't be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
                self._infos = {info.filename.removesuffix(".npy"): info for info in infos}
                self._members = {name: self._open(archive, name) for name in self._infos}
        except (zipfile.BadZipFile, ValueError, EOFError) as error:
            raise DatasetError(f"{path} is damaged or is no .npz file ({error})") from error

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def __iter__(self) -> Any:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def stamp(self) -> str:
        """A text that changes if any content changes: the checksums in the file's directory."""
        return repr(sorted((name, info.CRC, info.file_size) for name, info in self._infos.items()))

    def verify(self) -> None:
        """Read the whole file. Raise DatasetError if its contents do not have the checksums of its directory."""
        with zipfile.ZipFile(self.path) as archive:
            for info in self._infos.values():
                try:
                    with archive.open(info) as member:
                        while member.read(PIECE_BYTES):
                            pass
                except (zipfile.BadZipFile, EOFError) as error:
                    raise DatasetError(f"{self.path} is damaged ({error})") from error

    def _open(self, archive: zipfile.ZipFile, name: str) -> Member:
        info = self._infos[name]
        if info.compress_type != zipfile.ZIP_STORED:
            file = tempfile.TemporaryFile()  # noqa: SIM115
            with archive.open(info) as member:
                shutil.copyfileobj(member, file, PIECE_BYTES)
            return Member(file, 0, f"{self.path}: {name}")
        plain = self.path.open("rb")
        plain.seek(info.header_offset)
        header = plain.read(LOCAL_HEADER)
        lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return Member(plain, info.header_offset + LOCAL_HEADER + lengths, f"{self.path}: {name}")
