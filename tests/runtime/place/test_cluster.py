import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import fake_ray
import grpc
import pytest
from fake_ray import ObjectRef

from drl_cli.errors import ClusterUnfit
from drl_cli.runtime.place import cluster, cluster_nodes
from drl_cli.runtime.place.cluster import Answer
from drl_cli.runtime.place.cluster_nodes import Keeper, NodeProcess, live_nodes, node_gpus, unshared
from drl_cli.utils import gpu
from drl_cli.utils.gpu import Gpu
from drl_cli.utils.machine import Node

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


def test_auto_takes_only_an_address_that_the_user_or_a_file_of_the_user_names(no_token, monkeypatch):
    silent, asked = {"10.0.0.1:1", "10.0.0.4:4"}, []
    monkeypatch.setattr(cluster, "unreachable", lambda address: asked.append(address) or (address in silent or None))
    others = ["127.0.0.1:9", "10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3"]
    assert cluster.found_here("10.0.0.4:4", lambda: others) == "10.0.0.4:4"  # the caller says why it is unreachable
    assert asked == []
    with pytest.raises(ClusterUnfit) as caught:
        cluster.found_here(None, lambda: others)
    assert asked == ["10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3"]
    (line,) = caught.value.problems
    assert "you have started no Ray cluster here. Found: 10.0.0.2:2, 10.0.0.3:3." in line
    assert line.endswith("type its address: ray.address=10.0.0.2:2")
    for private in ([], ["127.0.0.1:9"], ["10.0.0.1:1"]):
        with pytest.raises(
            ClusterUnfit, match=r"^ray\.address=auto: no Ray cluster runs here\. Start one \(ray start --he"
        ):
            cluster.found_here(None, lambda private=private: private)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.3:3")
    assert cluster.found_here("10.0.0.2:2", lambda: others) == "10.0.0.3:3"


PRIVATE_SESSION = """
import random
from drl_cli.runtime.place.launch import RaySession, ray
before, session = random.getstate(), RaySession(80)
session.wait()
print(random.getstate() == before)
print(ray.get_runtime_context().gcs_address, flush=True)
input()
session.close()
"""


@pytest.mark.ray
def test_the_session_of_another_run_is_private_and_leaves_pythons_global_generator_alone(no_token):
    """Environments may use it, and with mode=single they step in the process that starts Ray."""
    command = [sys.executable, "-c", PRIVATE_SESSION]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        is_equal, address = (other.stdout.readline().strip() for _ in range(2))
        from drl_cli.runtime.place.ray_internals import all_addresses, own_address

        found, own = all_addresses(), own_address()
        other.communicate("\n")
    assert (is_equal, other.returncode) == ("True", 0)
    assert address in found
    assert own != address
    with pytest.raises(ClusterUnfit, match="no Ray cluster runs here"):
        cluster.found_here(None, lambda: [address])


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


def test_the_token_of_this_user_is_sent_as_ray_start_asks_for_it(guarded, monkeypatch, tmp_path):
    assert not cluster.take_token(guarded)
    assert "RAY_AUTH_MODE" not in os.environ
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("right\n")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert not cluster.take_token(guarded)
    assert "we have none" in cluster.unreachable(guarded)
    monkeypatch.delenv("RAY_AUTH_MODE")
    assert cluster.take_token(guarded)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert cluster.unreachable(guarded) is None


def test_an_open_cluster_gets_no_token(no_token, monkeypatch):
    """Its nodes would not know the token, and each process of the run would end at once."""
    monkeypatch.setattr(cluster, "_own_token", lambda: "right")
    monkeypatch.setattr(cluster, "_refusal", lambda address, token: None)
    assert not cluster.take_token("10.0.0.1:6379")
    monkeypatch.setattr(cluster, "_refusal", lambda address, token: "UNAVAILABLE")
    assert not cluster.take_token("10.0.0.1:6379")
    assert "RAY_AUTH_MODE" not in os.environ


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


NEAR, FAR = Node("here", "10.0.0.1", 4.0, 2**30), Node("there", "10.0.0.2", 2.0, 2**31)
LATER = "not ready"


@pytest.fixture
def ray(monkeypatch):
    fake = fake_ray.install(monkeypatch)
    fake.silent = (LATER,)
    return fake


@pytest.fixture
def started(ray, monkeypatch, tmp_path):
    """Start a NodeProcess whose keeper gives these answers. `options` are the options for Ray."""

    def start(*ends, begun=None):
        ends = iter(ends)
        keeper = SimpleNamespace(
            begun=SimpleNamespace(remote=lambda: ObjectRef(begun)), wait=SimpleNamespace(remote=lambda: next(ends))
        )
        ray.options = {}
        ray.remote = lambda **options: ray.options.update(options) or (lambda kind: SimpleNamespace(remote=note))

        def note(*args):
            ray.options["args"] = args
            return keeper

        return NodeProcess(["-c", "0"], {"GIVEN": "2"}, tmp_path / "log", 3, 2**20, 0.25)

    return start


def test_live_nodes_have_a_cpu_or_are_this_node(ray):
    ray.entries = [
        {
            "NodeID": "there",
            "NodeManagerAddress": "10.0.0.2",
            "Alive": True,
            "Resources": {"CPU": 2.0, "memory": 2**31},
        },
        {"NodeID": "here", "NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {}},
        {"NodeID": "gone", "NodeManagerAddress": "10.0.0.3", "Alive": False, "Resources": {"CPU": 2.0}},
    ]
    assert live_nodes() == [FAR]
    assert live_nodes(only_here=True) == [Node("here", "10.0.0.1", 0.0, is_here=True)]
    ray.entries[0]["Resources"]["GPU"] = 2.0
    assert live_nodes() == [replace(FAR, gpus=2)]


def test_each_node_tries_its_own_gpus(monkeypatch):
    """Ray may count fewer GPUs than torch finds, and places trainers only on those."""
    found, asked = (Gpu("0", "H200"), Gpu("1", "K80", "old"), Gpu("2", "H200")), []
    there, lost = replace(FAR, gpus=2), replace(FAR, id="lost", gpus=1)

    def ask(nodes, look):
        asked.extend(nodes)
        return {there: look(), lost: None}

    monkeypatch.setattr(gpu, "gpus", lambda: found)
    monkeypatch.setattr(cluster_nodes, "on_each", ask)
    assert node_gpus([NEAR, there, lost]) == [*found[:2], Gpu("", "node 10.0.0.2 (lost)", "no answer")]
    assert asked == [there, lost]
    monkeypatch.setattr(cluster_nodes, "on_each", lambda *args: pytest.fail("asked"))
    assert node_gpus([NEAR]) == []


def test_a_node_without_the_shared_folder_is_named(ray, tmp_path, monkeypatch):
    (tmp_path / "sweep").mkdir()
    assert unshared([NEAR, FAR], tmp_path / "sweep", tmp_path) == []
    elsewhere = tmp_path / "elsewhere"
    why = "a sweep has to be in a folder that all nodes share"
    assert unshared([NEAR], tmp_path / "sweep", elsewhere) == [f"node 10.0.0.1 (here) does not see {elsewhere}: {why}"]
    asked = []

    def ask(nodes, look):
        for probe in (tmp_path / "sweep").iterdir():  # a folder of the same name that is not shared
            probe.write_text("another")
            asked.append(probe)
        return {NEAR: look(), FAR: None}

    monkeypatch.setattr(cluster_nodes, "on_each", ask)
    assert unshared([NEAR, FAR], tmp_path / "sweep", tmp_path) == [
        f"node 10.0.0.1 (here) does not see {tmp_path / 'sweep'}: {why}",
        f"node 10.0.0.2 (there) does not say whether it sees {tmp_path / 'sweep'}",
    ]
    assert (len(asked), list((tmp_path / "sweep").iterdir())) == (1, [])


def test_a_process_of_a_node_has_the_folder_the_variables_and_a_group(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_JOB_ID", "of Ray's own")
    monkeypatch.setenv("OF_THE_NODE", "1")
    log = tmp_path / "log"
    log.write_text("before\n")
    code = (
        "import json, os, signal; blocked = list(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "print(json.dumps([os.getcwd(), dict(os.environ), os.getpgid(0) == os.getpid(), blocked])); exit(7)"
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as in processes of Ray
    keeper = Keeper(["-c", code], str(tmp_path), {"GIVEN": "2"}, str(log))
    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert keeper.wait() == 7
    folder, variables, has_group, blocked = json.loads(log.read_text().removeprefix("before\n"))
    assert (folder, has_group, blocked) == (str(tmp_path), True, [])
    assert (variables["OF_THE_NODE"], variables["GIVEN"]) == ("1", "2")
    assert "RAY_JOB_ID" not in variables
    keeper = Keeper(["-c", "import time; time.sleep(60)"], str(tmp_path), {}, str(log))
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait() == -signal.SIGTERM


def test_a_process_reserves_its_room_until_it_ends(started, ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process = started(ObjectRef(7))
    assert (process.has_begun(), process.poll(), process.returncode) == (True, 7, 7)
    assert [call[0] for call in ray.calls if call[0] != "wait"] == ["kill"]  # its room is free again
    variables = {"GIVEN": "2", "RAY_ADDRESS": "10.0.0.9:1"}
    assert ray.options["args"] == (["-c", "0"], str(tmp_path), variables, str(tmp_path / "log"))
    assert ray.options["num_gpus"] == 0.25
    assert (ray.options["num_cpus"], ray.options["memory"], ray.options["max_restarts"]) == (3, 2**20, 0)
    assert ray.options["scheduling_strategy"] == "SPREAD"


def test_a_signal_ends_a_process_that_waits_for_room(started, ray):
    process = started(ObjectRef(LATER), begun=LATER)
    assert (process.has_begun(), process.poll()) == (False, None)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert (process.poll(), [call[0] for call in ray.calls if call[0] != "wait"]) == (130, ["kill"])


def test_a_lost_node_counts_as_sigkill_and_an_unavailable_one_is_asked_again(started, ray, tmp_path):
    errors = ray.exceptions
    lost = errors.RayActorError("The actor died because its node has died.\nmore")
    process = started(ObjectRef(error=errors.ActorUnavailableError("away")), ObjectRef(error=lost))
    assert (process.poll(), process.poll()) == (None, -signal.SIGKILL)
    message = "error: its node, or Ray's process on it, died: The actor died because its node has died.\n"
    assert (tmp_path / "log").read_text() == message
