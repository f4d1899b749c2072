"""Nodes: listing them, asking them, and a process on one of them; a fake Ray runs everything in this process."""

import json
import signal
from types import SimpleNamespace

import fake_ray
import pytest
from fake_ray import ObjectRef

from drl_cli.runtime.place import nodes
from drl_cli.runtime.place.cluster import Node
from drl_cli.runtime.place.nodes import NodeProcess, live_nodes, unshared

NEAR, FAR = Node("here", "10.0.0.1", 4.0, 2**30), Node("there", "10.0.0.2", 2.0, 2**31)
LATER = "not ready"


class Actor:
    """Runs its methods at once; `ends` are the references that the first calls of `wait` return."""

    def __init__(self, role):
        self.role, self.begun_ref, self.ends = role, ObjectRef(), []

    def __getattr__(self, name):
        def remote(*args):
            if name == "wait" and self.ends:
                return self.ends.pop(0)
            return self.begun_ref if name == "begun" else ObjectRef(getattr(self.role, name)(*args))

        return SimpleNamespace(remote=remote)


@pytest.fixture
def ray(monkeypatch):
    fake = fake_ray.install(monkeypatch)
    fake.silent = (LATER,)
    return fake


@pytest.fixture
def actor(ray, monkeypatch):
    """Replaces the actor that NodeProcess makes of its keeper; `options` are the options for Ray."""
    made = SimpleNamespace(options={}, actor=None, begun_ref=ObjectRef(), ends=[], role=None)

    def remote(**options):
        def build(*args):
            made.actor = Actor(made.role or options["keeper"](*args))
            made.actor.begun_ref, made.actor.ends = made.begun_ref, made.ends
            return made.actor

        def of(keeper):
            options["keeper"] = keeper
            made.options = options
            return SimpleNamespace(remote=build)

        return of

    monkeypatch.setattr(ray, "remote", remote)
    return made


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
    assert live_nodes(only_here=True) == [Node("here", "10.0.0.1", 0.0)]


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


def test_a_process_on_a_node_runs_like_a_local_one(actor, ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_JOB_ID", "of Ray's own")
    monkeypatch.setenv("OF_THE_NODE", "1")
    log = tmp_path / "log"
    log.write_text("before\n")
    code = (
        "import json, os, signal; blocked = list(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "print(json.dumps([os.getcwd(), dict(os.environ), os.getpgid(0) == os.getpid(), blocked])); exit(7)"
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as in processes of Ray
    process = NodeProcess(["-c", code], {"GIVEN": "2"}, log, 3, 2**20)
    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert (process.has_begun(), process.poll(), process.returncode) == (True, 7, 7)
    assert ray.calls[-1] == ("kill", actor.actor)  # its room is free again
    folder, variables, has_group, blocked = json.loads(log.read_text().removeprefix("before\n"))
    assert (folder, has_group, blocked) == (str(tmp_path), True, [])
    assert (variables["OF_THE_NODE"], variables["GIVEN"], variables["RAY_ADDRESS"]) == ("1", "2", "10.0.0.9:1")
    assert "RAY_JOB_ID" not in variables
    assert (actor.options["num_cpus"], actor.options["memory"], actor.options["max_restarts"]) == (3, 2**20, 0)
    assert actor.options["scheduling_strategy"] == "SPREAD"


def test_a_signal_reaches_the_process(actor, tmp_path):
    actor.ends = [ObjectRef(LATER)]
    process = NodeProcess(["-c", "import time; time.sleep(60)"], {}, tmp_path / "log", 1, 0)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert actor.actor.role.wait() == -signal.SIGTERM


def test_a_signal_ends_a_process_that_waits_for_room(actor, ray, tmp_path):
    actor.role, actor.begun_ref, actor.ends = object(), ObjectRef(LATER), [ObjectRef(LATER)]
    process = NodeProcess([], {}, tmp_path / "log", 1, 0)
    assert (process.has_begun(), process.poll()) == (False, None)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.poll() == 130
    assert [call for call in ray.calls if call[0] == "kill"] == [("kill", actor.actor)]


def test_a_lost_node_counts_as_sigkill_and_an_unavailable_one_is_asked_again(actor, ray, tmp_path):
    errors = ray.exceptions
    lost = errors.RayActorError("The actor died because its node has died.\nmore")
    actor.role, actor.ends = object(), [ObjectRef(error=errors.ActorUnavailableError("away")), ObjectRef(error=lost)]
    process = NodeProcess([], {}, tmp_path / "log", 1, 0)
    assert (process.poll(), process.poll()) == (None, -signal.SIGKILL)
    message = "error: its node, or Ray's process on it, died: The actor died because its node has died.\n"
    assert (tmp_path / "log").read_text() == message
