import numpy as np
import pytest

from drl_cli.data.dataset import DatasetError
from drl_cli.data.find import data_folder, dataset_of_run, datasets_in
from drl_cli.data.open import open_dataset


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run" / "data").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path / "run"


def save(path):
    ends = np.array([False, True])
    zeros = np.zeros(2)
    np.savez(path, observations=zeros, actions=zeros, rewards=zeros, terminations=ends, truncations=ends)


def test_the_dataset_of_a_runs_folder(run):
    with pytest.raises(
        DatasetError, match=f"nothing was recorded for this run; type  drl-record run={run} episodes=100"
    ):
        open_dataset(f"run:{run}")
    save(run / "data" / "a.npz")
    save(run / "data" / ".b.npz")
    (run / "data" / "notes.txt").write_text("none")
    assert open_dataset(f"run:{run}").facts.steps == 2
    save(run / "data" / "c.npz")
    with pytest.raises(DatasetError, match=r"2 datasets were recorded for this run; say one of them: .*a.npz, .*c.npz"):
        dataset_of_run(f"run:{run}")


def test_what_is_no_run(tmp_path):
    with pytest.raises(DatasetError, match="is no run's folder"):
        open_dataset(f"run:{tmp_path}")


def test_folders_with_minaris_data(tmp_path):
    assert (data_folder(tmp_path), datasets_in(tmp_path / "none")) == (None, [])
    (tmp_path / "x" / "data").mkdir(parents=True)
    (tmp_path / "x" / "data" / "metadata.json").write_text("{}")
    assert data_folder(tmp_path / "x") == data_folder(tmp_path / "x" / "data") == tmp_path / "x" / "data"
    assert datasets_in(tmp_path) == [tmp_path / "x"]
