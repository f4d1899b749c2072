"""Saving needs little memory: a child process saves large arrays with little more memory than they have."""

import subprocess
import sys

import numpy as np
import safetensors.numpy

from drl_cli.run_folder.checkpoint import DTYPES, write_arrays
from drl_cli.run_folder.replay_files import CHUNK_BYTES

MIB = 1 << 20
SIZE = 64 * MIB
LIMIT = """
import resource, sys
from pathlib import Path
import numpy as np
import psutil
from drl_cli.replay.config import UniformConfig
from drl_cli.run_folder.checkpoint import write_arrays
from drl_cli.run_folder.replay_files import ReplaySaver
from drl_cli.types import Column

def limit(margin):
    most = psutil.Process().memory_info().data + margin
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))

folder, size, margin = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
"""
ARRAYS = """
arrays = {"a": np.ones(size // 4, np.float32), "b": np.ones((size // 8, 4), np.uint8)}
limit(margin)
write_arrays(folder / "arrays", arrays)
"""
TABLE = """
rows = size // 256
config = UniformConfig("uniform", rows, 1, "oldest", "none")
table = config.make_table({"obs": Column((64,), "float32")}, np.random.default_rng(0), 1)
table.insert({"obs": np.ones((rows, 64), np.float32)}, np.zeros(rows, np.int64))
limit(margin)
saver = ReplaySaver(table)
saver.begin(folder, None, {})
while saver.part() is None:
    pass
"""


def run_limited(code, tmp_path, margin):
    """Run code in a process that may take `margin` bytes more than it has when it calls `limit`."""
    words = [sys.executable, "-c", LIMIT + code, str(tmp_path), str(SIZE), str(margin)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]


def test_arrays_are_written_from_where_they_are(tmp_path):
    run_limited(ARRAYS, tmp_path, 4 * MIB)
    assert (tmp_path / "arrays").stat().st_size > 1.4 * SIZE


def test_a_table_is_saved_in_the_memory_of_a_few_chunks(tmp_path):
    run_limited(TABLE, tmp_path, 4 * CHUNK_BYTES)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > SIZE


def test_files_are_equal_to_those_of_the_safetensors_package(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"x.{dtype}": rng.integers(0, 2, (3, 5)).astype(dtype) for dtype in reversed(DTYPES)}
    arrays |= {"empty": np.zeros((0, 4), np.float32), "number": np.array(3), "ü": np.arange(12.0).reshape(3, 4).T}
    write_arrays(tmp_path / "arrays", arrays | {"foreign": np.arange(3, dtype=">f4")})
    written = (tmp_path / "arrays").read_bytes()
    as_written = arrays | {"foreign": np.arange(3, dtype="<f4")}
    assert written == safetensors.numpy.save({name: np.asarray(each, order="C") for name, each in as_written.items()})
    for name, array in safetensors.numpy.load(written).items():
        np.testing.assert_array_equal(array, as_written[name])
