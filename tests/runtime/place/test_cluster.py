import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from drl_cli.errors import ClusterUnfit
from drl_cli.runtime.place import cluster
from drl_cli.runtime.place.cluster import Answer, Node
from drl_cli.runtime.place.launch import _addresses

OURS = Answer("3.11.7", "2.60.0", "0.1.0", None)
NODES = [Node(f"{name}23456789", f"10.0.0.{i}", 4.0) for i, name in enumerate("abcdefg")]


def test_every_unfit_node_has_a_line_that_says_why():
    no_module = "EnvError: env: can't import 'my_mod': No module named 'helper'"
    answers = [
        OURS,
        None,
        Answer("3.12.1", "2.60.0", "0.1.0", None),
        Answer("3.11.7", "2.61.0", "0.1.0", None),
        Answer("3.11.7", "2.60.0", "0.2.0", "EnvError: env: other words"),
        Answer("3.11.7", "2.60.0", "0.1.0", no_module),
        Answer("3.11.7", "2.60.0", None, "ModuleNotFoundError: No module named 'drl_cli'"),
    ]
    assert cluster.unfit(dict(zip(NODES, answers, strict=True)), OURS) == [
        "node 10.0.0.1 (b23456) does not answer",
        "node 10.0.0.2 (c23456) has Python 3.12.1 and Ray 2.60.0, here are 3.11.7 and 2.60.0: install the same on both",
        "node 10.0.0.3 (d23456) has Python 3.11.7 and Ray 2.61.0, here are 3.11.7 and 2.60.0: install the same on both",
        "node 10.0.0.4 (e23456) has drl-cli 0.2.0, here is 0.1.0: install the same on both",
        f"node 10.0.0.5 (f23456): {no_module}",
        "node 10.0.0.6 (g23456): ModuleNotFoundError: No module named 'drl_cli'",
    ]
    assert cluster.unfit({NODES[0]: OURS}, OURS) == []


def test_errors_of_ray_are_one_line():
    versions = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1")
    message = "ray.address=host:1: Version mismatch: The cluster was started with: Ray: 2.9.0 Python: 3.10.1"
    assert cluster.why_not_joined("host:1", versions) == message
    assert cluster.why_not_joined("host:1", ConnectionError("closed")) == "ray.address=host:1: closed"


@pytest.fixture
def no_token(tmp_path, monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USE_TLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def guarded(no_token):
    """The address of a server that checks the token as Ray's does."""

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


def test_an_address_without_a_cluster(no_token):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        assert cluster.unreachable(address).startswith(f"ray.address: no Ray cluster answers at {address}.")


def test_auto_takes_the_first_cluster_that_answers_and_no_private_session(no_token, monkeypatch):
    silent = {"10.0.0.1:1", "10.0.0.4:4"}
    asked = []
    monkeypatch.setattr(cluster, "unreachable", lambda address: asked.append(address) or (address in silent or None))
    assert cluster.found_here(["127.0.0.1:9", "10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3"]) == "10.0.0.2:2"
    assert asked == ["10.0.0.1:1", "10.0.0.2:2"]
    assert cluster.found_here(["127.0.0.1:9", "10.0.0.4:4", "10.0.0.1:1"]) == "10.0.0.4:4"
    for private in ([], ["127.0.0.1:9"]):
        with pytest.raises(
            ClusterUnfit, match=r"^ray\.address=auto: no Ray cluster runs here\. Start one \(ray start --he"
        ):
            cluster.found_here(private)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.3:3")
    assert cluster.found_here(["10.0.0.2:2"]) == "10.0.0.3:3"


PRIVATE_SESSION = """
from drl_cli.runtime.place.launch import RaySession, ray
session = RaySession(80)
session.wait()
print(ray.get_runtime_context().gcs_address, flush=True)
input()
session.close()
"""


@pytest.mark.ray
def test_the_session_of_another_run_is_private(no_token):
    command = [sys.executable, "-c", PRIVATE_SESSION]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        address = other.stdout.readline().strip()
        found = _addresses()
        other.communicate("\n")
    assert address in found
    with pytest.raises(ClusterUnfit, match="no Ray cluster runs here"):
        cluster.found_here([address])


DRAWS = """
import random
from drl_cli.runtime.place.launch import RaySession
before, session = random.getstate(), RaySession(80)
session.wait()
print(random.getstate() == before)
session.close()
"""


@pytest.mark.ray
def test_a_session_leaves_pythons_global_generator_alone():
    """Environments may use it, and with mode=single they step in the process that starts Ray."""
    done = subprocess.run([sys.executable, "-c", DRAWS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


def test_a_cluster_with_a_token(guarded, monkeypatch, tmp_path):
    assert "asks for a token and we have none. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in cluster.unreachable(
        guarded
    )
    monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
    assert "we have none" in cluster.unreachable(guarded)  # without RAY_AUTH_MODE Ray sends no token
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    assert "asks for a token and ours is another." in cluster.unreachable(guarded)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
    assert cluster.unreachable(guarded) is None
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("right\n")
    assert cluster.unreachable(guarded) is None


@pytest.fixture
def user_modules(tmp_path, monkeypatch):
    """A folder of a user: a module, the module that it imports, a package, and an unrelated module."""
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


def test_modules_are_shipped_with_what_they_import_from_their_folders(user_modules, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "lone_algo.py").write_text("")
    monkeypatch.syspath_prepend(str(elsewhere))
    __import__("lone_env")
    both = [user_modules / "lone_env.py", user_modules / "lone_helper.py"]
    assert cluster.shipped_modules(["lone_env"]) == both
    assert cluster.shipped_modules(["lone_env", "lone_package.envs"]) == sorted([*both, user_modules / "lone_package"])
    assert cluster.shipped_modules(["lone_algo", "lone_env"]) == sorted([*both, elsewhere / "lone_algo.py"])


def test_a_large_package_is_refused(user_modules):
    __import__("lone_package.envs")
    assert cluster.shipped_modules(["lone_package.envs"]) == [user_modules / "lone_package"]
    with pytest.raises(ValueError, match=r"lone_package.envs: .*lone_package is too large to ship to the nodes .1 MB"):
        cluster.shipped_modules(["lone_package.envs"], max_mb=0.5)


def test_installed_modules_are_not_shipped(user_modules):
    __import__("lone_env")
    assert cluster.shipped_modules(["gymnasium.envs", "json"]) == []
    both = [user_modules / "lone_env.py", user_modules / "lone_helper.py"]
    assert cluster.shipped_modules(["gymnasium.wrappers", "lone_env"]) == both


def test_thread_counts_of_the_user_are_kept(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    assert cluster.process_variables()["OMP_NUM_THREADS"] == "3"
    assert cluster.process_variables()["MKL_NUM_THREADS"] == "1"
    assert os.environ.get("MKL_NUM_THREADS") is None


@pytest.mark.parametrize(
    ("mode", "users", "policy"),
    [
        *[("async", {}, "PASSIVE"), ("async", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"), ("sync", {}, None)],
        ("single", {}, None),
    ],
)
def test_threads_sleep_while_they_wait_in_async(monkeypatch, mode, users, policy):
    monkeypatch.setattr(os, "environ", users)
    cluster.share_cores(mode)
    assert os.environ.get("OMP_WAIT_POLICY") == policy
    assert cluster.process_variables().get("OMP_WAIT_POLICY") == policy
