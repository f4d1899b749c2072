"""What is said of a cluster that can't be joined or can't run our roles, and what is shipped to its nodes."""

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from drl_cli.runtime.place.cluster import (
    Answer,
    Node,
    process_variables,
    share_cores,
    shipped_modules,
    unfit,
    unreachable,
    why_not_joined,
)

OURS = Answer("3.11.7", "2.60.0", "0.1.0", None)
NODES = [Node(f"{name}23456789", f"10.0.0.{i}", 4.0) for i, name in enumerate("abcdef")]


def test_every_unfit_node_has_a_line_that_says_why():
    no_module = "EnvError: env: can't import 'my_mod': No module named 'helper'"
    answers = [
        OURS,
        None,
        Answer("3.12.1", "2.60.0", "0.1.0", None),
        Answer("3.11.7", "2.61.0", "0.1.0", None),
        Answer("3.11.7", "2.60.0", "0.2.0", "EnvError: env: other words"),
        Answer("3.11.7", "2.60.0", "0.1.0", no_module),
    ]
    assert unfit(dict(zip(NODES, answers, strict=True)), OURS) == [
        "node 10.0.0.1 (b23456) does not answer",
        "node 10.0.0.2 (c23456) has Python 3.12.1 and Ray 2.60.0, here are 3.11.7 and 2.60.0: install the same on both",
        "node 10.0.0.3 (d23456) has Python 3.11.7 and Ray 2.61.0, here are 3.11.7 and 2.60.0: install the same on both",
        "node 10.0.0.4 (e23456) has drl-cli 0.2.0, here is 0.1.0: install the same on both",
        f"node 10.0.0.5 (f23456): {no_module}",
    ]
    assert unfit({NODES[0]: OURS}, OURS) == []


def test_our_package_missing_is_said_with_what_was_missing():
    answer = Answer("3.11.7", "2.60.0", None, "ModuleNotFoundError: No module named 'drl_cli'")
    assert unfit({NODES[0]: answer}, OURS) == ["node 10.0.0.0 (a23456): ModuleNotFoundError: No module named 'drl_cli'"]


def test_why_ray_could_not_join_is_one_line():
    absent = why_not_joined("auto", ConnectionError("Could not find any running Ray instance."))
    assert absent.startswith("ray.address=auto: no Ray cluster runs here. Start one (ray start --head)")
    versions = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1")
    said = "ray.address=host:1: Version mismatch: The cluster was started with: Ray: 2.9.0 Python: 3.10.1"
    assert why_not_joined("host:1", versions) == said
    assert why_not_joined("auto", RuntimeError("too old")) == "ray.address=auto: too old"
    assert why_not_joined("host:1", ConnectionError("closed")) == "ray.address=host:1: closed"


@pytest.fixture
def no_token(tmp_path, monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USE_TLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def guarded(no_token):
    """The address of a server that lets in who has the token, as Ray's does."""

    def answer(request, context):
        if dict(context.invocation_metadata()).get("authorization") != "Bearer right":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
        return b""

    methods = {"GetClusterId": grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("ray.rpc.NodeInfoGcsService", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_nobody_at_the_address(no_token):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        assert unreachable(address).startswith(f"ray.address: no Ray cluster answers at {address}.")


def test_a_cluster_that_asks_for_a_token(guarded, monkeypatch, tmp_path):
    assert "asks for a token and we have none. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in unreachable(guarded)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
    assert "we have none" in unreachable(guarded)  # Ray sends none before it is told to
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    assert "asks for a token and ours is another." in unreachable(guarded)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
    assert unreachable(guarded) is None
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("right\n")
    assert unreachable(guarded) is None


@pytest.fixture
def user_modules(tmp_path, monkeypatch):
    """A folder of a user with a module, what it imports, a package, and what has nothing to do with them."""
    (tmp_path / "lone_env.py").write_text("import lone_helper\n")
    (tmp_path / "lone_helper.py").write_text("")
    (tmp_path / "lone_stranger.py").write_text("")
    (tmp_path / "lone_package").mkdir()
    (tmp_path / "lone_package" / "__init__.py").write_text("")
    (tmp_path / "lone_package" / "envs.py").write_text("")
    (tmp_path / "lone_package" / "scene.bin").write_bytes(bytes(2**20))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("lone_")]:
        del sys.modules[name]


def test_a_module_travels_with_what_it_imports_from_beside_it(user_modules):
    __import__("lone_env")
    assert shipped_modules(["lone_env"]) == [user_modules / "lone_env.py", user_modules / "lone_helper.py"]


def test_several_modules_travel_together_but_for_those_that_are_installed(user_modules):
    __import__("lone_env")
    both = [user_modules / "lone_env.py", user_modules / "lone_helper.py"]
    assert shipped_modules(["gymnasium.wrappers", "lone_env"]) == both
    package = user_modules / "lone_package"
    assert shipped_modules(["lone_env", "lone_package.envs"]) == sorted([*both, package])


def test_a_package_travels_whole_unless_it_is_huge(user_modules):
    __import__("lone_package.envs")
    assert shipped_modules(["lone_package.envs"]) == [user_modules / "lone_package"]
    with pytest.raises(ValueError, match=r"lone_package.envs: .*lone_package is too large to ship to the nodes .1 MB"):
        shipped_modules(["lone_package.envs"], max_mb=0.5)


def test_what_is_installed_does_not_travel():
    assert shipped_modules(["gymnasium.envs", "json"]) == []


def test_modules_of_several_folders_travel_with_their_neighbours(user_modules, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "lone_algo.py").write_text("")
    monkeypatch.syspath_prepend(str(elsewhere))
    __import__("lone_env")
    wanted = [user_modules / "lone_env.py", user_modules / "lone_helper.py", elsewhere / "lone_algo.py"]
    assert shipped_modules(["lone_algo", "lone_env"]) == sorted(wanted)


def test_threads_that_the_user_has_set_stay(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    assert process_variables()["OMP_NUM_THREADS"] == "3"
    assert process_variables()["MKL_NUM_THREADS"] == "1"
    assert os.environ.get("MKL_NUM_THREADS") is None


@pytest.mark.parametrize(
    ("mode", "users", "policy"),
    [
        ("async", {}, "PASSIVE"),
        ("async", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
        ("sync", {}, None),
        ("single", {}, None),
    ],
)
def test_threads_wait_asleep_where_workers_use_their_cores(monkeypatch, mode, users, policy):
    monkeypatch.setattr(os, "environ", users)
    share_cores(mode)
    assert os.environ.get("OMP_WAIT_POLICY") == policy
    assert process_variables().get("OMP_WAIT_POLICY") == policy
