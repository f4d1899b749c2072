import numpy as np
import pytest

from drl_cli.errors import CheckpointError
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.roles.parameter_server import ParameterServer


def test_pull_fails_before_the_first_push():
    server = ParameterServer()
    with pytest.raises(ValueError, match="no parameters yet"):
        server.pull()


def test_the_newest_version_is_kept():
    server = ParameterServer()
    server.push(LoadParams(3, 10, 100), np.full(2, 3.0, np.float32))
    server.push(LoadParams(2, 5, 50), np.full(2, 2.0, np.float32))
    params_header, params = server.pull()
    assert (params_header.version, params.tolist()) == (3, [3.0, 3.0])
    server.push(LoadParams(4, 20, 200), np.full(2, 4.0, np.float32))
    assert server.pull()[0].version == 4
    assert server.pull()[0] == LoadParams(4, 20, 200)


def test_push_copies_the_parameters():
    server, params = ParameterServer(), np.ones(2, np.float32)
    server.push(LoadParams(0, 0, 0), params)
    params[:] = 9
    assert server.pull()[1].tolist() == [1.0, 1.0]


def test_save_and_restore_are_exact(tmp_path):
    server, other = ParameterServer(), ParameterServer()
    with pytest.raises(ValueError, match="no parameters yet"):
        server.save(tmp_path / "none")
    params_header = LoadParams(7, 30, 300, exploration={"epsilon": 0.1 + 0.2})
    params = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    server.push(params_header, params)
    assert server.save(tmp_path / "saved") == tmp_path / "saved"
    other.push(LoadParams(9, 40, 400), np.zeros(3, np.float32))
    assert (other.restore(tmp_path / "saved"), other.pull()[0]) == (params_header, params_header)
    assert other.pull()[1].tobytes() == params.tobytes()
    other.push(LoadParams(8, 35, 350), params + 1)  # goes on from there
    assert other.pull()[0].version == 8


def test_restore_from_damaged_files_changes_nothing(tmp_path):
    server = ParameterServer()
    server.push(LoadParams(3, 10, 100), np.ones(50, np.float32))
    model = server.save(tmp_path / "saved") / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    server.push(LoadParams(4, 20, 200), np.zeros(50, np.float32))
    with pytest.raises(CheckpointError, match="damaged"):
        server.restore(tmp_path / "saved")
    assert server.pull()[0].version == 4
    assert not server.pull()[1].any()
