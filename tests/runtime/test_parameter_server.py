"""ParameterServer: the newest version, in a copy of its own."""

import numpy as np
import pytest

from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.parameter_server import ParameterServer


def test_empty():
    server = ParameterServer()
    with pytest.raises(ValueError, match="no parameters yet"):
        server.pull()
    assert server.pull_if_newer(-1) == (None, None)


def test_keeps_the_newest_version():
    server = ParameterServer()
    assert server.push(LoadParams(3, 10, 100), np.full(2, 3.0, np.float32)) == 3
    assert server.push(LoadParams(2, 5, 50), np.full(2, 2.0, np.float32)) == 3
    load, params = server.pull()
    assert (load.version, params.tolist()) == (3, [3.0, 3.0])
    assert server.push(LoadParams(4, 20, 200), np.full(2, 4.0, np.float32)) == 4
    assert server.pull()[0] == LoadParams(4, 20, 200)


def test_pull_if_newer():
    server = ParameterServer()
    server.push(LoadParams(3, 10, 100), np.ones(2, np.float32))
    load, params = server.pull_if_newer(2)
    assert (load.version, params.tolist()) == (3, [1.0, 1.0])
    assert server.pull_if_newer(3) == (None, None)
    assert server.pull_if_newer(4) == (None, None)


def test_owns_its_copy():
    server, params = ParameterServer(), np.ones(2, np.float32)
    server.push(LoadParams(0, 0, 0), params)
    params[:] = 9
    assert server.pull()[1].tolist() == [1.0, 1.0]
