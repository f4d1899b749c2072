"""Datasets in .hdf5 files hold all their arrays themselves."""

import os

import numpy as np
import pytest

from drl_cli.data.dataset import DatasetError
from drl_cli.data.open import open_recording

h5py = pytest.importorskip("h5py")
ARRAYS = {
    "observations": np.arange(12, dtype=np.float32).reshape(6, 2),
    "actions": np.zeros((6, 1), np.float32),
    "rewards": np.ones(6, np.float32),
    "terminations": np.zeros(6, bool),
    "truncations": np.arange(6) == 5,
}


def save(path, leave_out=""):
    with h5py.File(path, "w") as file:
        for name, values in ARRAYS.items():
            if name != leave_out:
                file[name] = values


def test_plain_arrays_and_groups_are_read(tmp_path):
    save(tmp_path / "plain.hdf5", "observations")
    with h5py.File(tmp_path / "plain.hdf5", "a") as file:
        file["observations/a"], file["observations/b"] = ARRAYS["observations"], ARRAYS["observations"]
    found = open_recording(str(tmp_path / "plain.hdf5")).read(0, 2)
    assert sorted(found.obs) == ["a", "b"]
    assert found.obs["a"].tolist() == [[0, 1], [2, 3]]


def external(file, folder):
    (folder / "secret").write_bytes(ARRAYS["observations"].tobytes())
    file.create_dataset("observations", (6, 2), np.float32, external=[(str(folder / "secret"), 0, 48)])


def virtual(file, folder):
    save(folder / "other.hdf5")
    layout = h5py.VirtualLayout((6, 2), np.float32)
    layout[:] = h5py.VirtualSource(str(folder / "other.hdf5"), "observations", (6, 2))
    file.create_virtual_dataset("observations", layout)


def outer_link(file, folder):
    save(folder / "other.hdf5")
    file["observations"] = h5py.ExternalLink(str(folder / "other.hdf5"), "/observations")


def soft_link(file, folder):
    file["observations"] = h5py.SoftLink("/actions")


def circle(file, folder):
    file["a/b/c"] = 1.0
    file["a/b/up"] = file["a"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (external, "observations lies in another file"),
        (virtual, "observations lies in another file"),
        (outer_link, "observations is a link"),
        (soft_link, "observations is a link"),
        (circle, "a.b.up is a link to a group above it"),
    ],
)
def test_arrays_of_other_files_and_links_are_refused(tmp_path, make, says):
    save(tmp_path / "data.hdf5", "observations")
    with h5py.File(tmp_path / "data.hdf5", "a") as file:
        make(file, tmp_path)
    with pytest.raises(DatasetError, match=says):
        open_recording(str(tmp_path / "data.hdf5"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["data.hdf5", "data.npz", "data"])
def test_nobody_waits_for_a_pipe(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DatasetError, match="no dataset"):
        open_recording(str(tmp_path / name))
