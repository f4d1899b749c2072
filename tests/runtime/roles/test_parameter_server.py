import numpy as np
import pytest

from drl_cli.runtime.roles.parameter_server import ParameterServer
from drl_cli.types import LoadParams


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
