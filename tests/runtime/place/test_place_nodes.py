import json
import signal
from types import SimpleNamespace

import fake_ray
import pytest
from fake_ray import ObjectRef

from drl_cli.runtime.place import nodes
from drl_cli.runtime.place.cluster import Node
from drl_cli.runtime.place.nodes import Keeper, NodeProcess, live_nodes, unshared

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
        monkeypatch.setattr(
            ray, "remote", lambda **options: ray.options.update(options) or (lambda kind: SimpleNamespace(remote=note))
        )

        def note(*args):
            ray.options["args"] = args
            return keeper

        return NodeProcess(["-c", "0"], {"GIVEN": "2"}, tmp_path / "log", 3, 2**20)

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

    monkeypatch.setattr(nodes, "ask", ask)
    assert unshared([NEAR, FAR], tmp_path / "sweep", tmp_path) == [
        f"node 10.0.0.1 (here) does not see {tmp_path / 'sweep'}: {why}",
        f"node 10.0.0.2 (there) does not say whether it sees {tmp_path / 'sweep'}",
    ]
    assert len(asked) == 1
    assert list((tmp_path / "sweep").iterdir()) == []


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
    assert (ray.options["num_cpus"], ray.options["memory"], ray.options["max_restarts"]) == (3, 2**20, 0)
    assert ray.options["scheduling_strategy"] == "SPREAD"


def test_a_signal_ends_a_process_that_waits_for_room(started, ray):
    process = started(ObjectRef(LATER), begun=LATER)
    assert (process.has_begun(), process.poll()) == (False, None)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.poll() == 130
    assert [call[0] for call in ray.calls if call[0] != "wait"] == ["kill"]


def test_a_lost_node_counts_as_sigkill_and_an_unavailable_one_is_asked_again(started, ray, tmp_path):
    errors = ray.exceptions
    lost = errors.RayActorError("The actor died because its node has died.\nmore")
    process = started(ObjectRef(error=errors.ActorUnavailableError("away")), ObjectRef(error=lost))
    assert (process.poll(), process.poll()) == (None, -signal.SIGKILL)
    message = "error: its node, or Ray's process on it, died: The actor died because its node has died.\n"
    assert (tmp_path / "log").read_text() == message
