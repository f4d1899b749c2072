import logging
import os
import pickle
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import fake_ray
import psutil
import pytest

import drl_cli
from drl_cli.envs.config import EnvConfig
from drl_cli.errors import ClusterUnfit, RoleLost
from drl_cli.runtime.place import launch, session_folder
from drl_cli.runtime.place.cluster import Answer, process_variables
from drl_cli.runtime.place.launch import Cluster, RaySession, ray_internals
from drl_cli.utils.machine import Node

NO_FOLDERS = SimpleNamespace(_py_driver_sys_path=[])  # a job whose processes get no import path from this process
ENV = EnvConfig("counter", "drl_cli.envs.probes:Counter-v0", {}, None, 1.0, "none", False, False)


@pytest.fixture
def ray(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {"HOME": "/root", "PATH": os.environ["PATH"]})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(session_folder, "SOCKET_BYTES", 1000)  # pytest's folders have long paths
    monkeypatch.setattr(session_folder, "token_path", lambda: tmp_path / "home" / ".ray" / "auth_token")
    return fake_ray.install(monkeypatch)


class Process:
    def __init__(self, name, is_gone=False):
        self.name, self.is_gone, self.killed = name, is_gone, False

    def kill(self):
        if self.is_gone:
            raise psutil.NoSuchProcess(0)
        self.killed = True


@pytest.fixture
def children(monkeypatch):
    found = []
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: found if recursive else [])
    return found


@pytest.fixture
def session(ray, children):
    made = RaySession(100)
    yield made
    made._end.set()


def test_services_are_left_out_only_during_the_start(ray):
    with pytest.raises(ValueError, match="not three"), ray_internals.fewer_services():
        ray.init(value=ray.Node().start_api_server(include=True), other=int("not three"))
    with ray_internals.fewer_services():
        ray.init()
    assert ray.Node.started == ["raylet"]
    ray.init()
    assert ray.Node.started[1:] == ["api server", "log monitor", "raylet"]


def test_processes_of_ray_have_a_process_group_and_end_with_their_parent(ray, monkeypatch):
    monkeypatch.setattr(os, "setpgid", lambda *args: ray.parents.append(args))
    ray_internals.stand_apart()
    ray._private.utils.set_kill_on_parent_death_linux()
    assert ray.parents == ["ends with it", (0, 0)]


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_start_that_fails_is_tried_once_more(ray, session, monkeypatch, failures):
    attempts, start = [], session._start

    def fail():
        attempts.append(len(attempts))
        if len(attempts) <= failures:
            raise TimeoutError(f"too slow {len(attempts)}")
        start()

    session._start = fail
    if failures == 2:
        with pytest.raises(RoleLost, match="Ray did not start: too slow 2"):
            session.wait()
        assert session.lost() is None
    else:
        session.wait()
    assert len(attempts) == min(failures + 1, 2)
    assert session.is_up()


def test_dead_processes_of_ray_are_named(ray, session):
    node = SimpleNamespace(dead_processes=lambda: [("raylet", None), ("log_monitor", None), ("gcs_server", None)])
    ray._private.worker._global_node = node
    assert session.lost() is None  # Ray has not started
    session.wait()
    assert session.lost() == "Ray's gcs_server and raylet died, and all roles with it"
    until = time.monotonic() + 10
    while session.problem is None and time.monotonic() < until:
        time.sleep(0.01)
    assert session.problem == session.lost()
    node.dead_processes = lambda: [("log_monitor", None)]
    assert session.lost() is None
    ray._private.worker._global_node = None
    assert session.lost() is None


def test_close_leaves_no_process(ray, session, children):
    children += [Process("raylet"), Process("gone", is_gone=True)]
    session.wait()
    children.append(Process("late"))
    session.close()
    assert [call[0] for call in ray.calls] == ["shutdown", "init", "shutdown"]
    assert [process.killed for process in children] == [True, False, True]
    assert not session.folder.path.exists()
    session._thread.join(10)
    assert not session._thread.is_alive()
    assert not session.is_stuck


def test_a_session_that_never_started_is_not_shut_down(ray, session, children, monkeypatch):
    RaySession(100).close()
    assert ray.calls == []

    def fail():
        children[:] = [Process("raylet")]
        raise TimeoutError("too slow")

    session._start = fail
    with pytest.raises(RoleLost):
        session.wait()
    session.close()
    assert (ray.calls, [process.killed for process in children]) == ([], [True])


def test_a_start_that_takes_too_long_is_an_error(ray, session, monkeypatch):
    began, go_on = threading.Event(), threading.Event()
    session._start = lambda: (began.set(), go_on.wait(10))
    monkeypatch.setattr(launch, "WAIT_S", 0.0)
    with pytest.raises(RoleLost, match="Ray did not start within 0 s"):
        session.wait()
    assert began.wait(10)  # otherwise the thread could call the true `_start` after this test
    go_on.set()


def test_a_session_that_still_starts_ends_with_the_process(ray, session, children, monkeypatch, capsys):
    began, go_on, codes = threading.Event(), threading.Event(), []
    session._start = lambda: (began.set(), go_on.wait(10))
    monkeypatch.setattr(launch, "START_S", 0.0)
    monkeypatch.setattr(os, "_exit", codes.append)
    session.start()
    began.wait(10)
    session.close()
    assert (session.is_stuck, ray.calls) == (True, [])
    children.append(Process("raylet"))
    session.leave(75)
    assert (codes, children[0].killed) == ([75], True)
    go_on.set()


OURS = Answer(".".join(map(str, sys.version_info[:3])), launch.version("ray"), drl_cli.__version__, None)
ENTRIES = [
    {"NodeID": f"{name}123456789", "NodeManagerAddress": f"10.0.0.{i}", "Alive": is_alive, "Resources": resources}
    for i, (name, is_alive, resources) in enumerate(
        [("c", True, {"CPU": 2.0}), ("a", True, {"CPU": 4.0}), ("b", False, {"CPU": 4.0}), ("d", True, {"GPU": 1.0})]
    )
]
NODES = [Node("a123456789", "10.0.0.1", 4.0), Node("c123456789", "10.0.0.0", 2.0)]


@pytest.fixture
def answers(ray, monkeypatch):
    """The answers of the nodes, round by round; `asked` are the nodes, environments and modules."""
    given = SimpleNamespace(rounds=[], asked=[])

    def ask(nodes, env, modules, folder):
        given.asked.append((nodes, env, modules, folder))
        return dict(zip(nodes, given.rounds.pop(0), strict=True))

    ray.entries = ENTRIES
    monkeypatch.setattr(launch, "ask_nodes", ask)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_internals, "own_address", lambda: "10.0.0.1:6379")
    monkeypatch.setattr(launch.cluster, "take_token", lambda address: False)
    monkeypatch.setattr(launch.cluster, "unreachable", lambda address: None)
    monkeypatch.setattr(launch.cluster, "shipped_modules", lambda modules: [Path("/user/my_env.py")])
    return given


def test_a_cluster_is_joined_with_the_files_of_the_user(ray, answers):
    answers.rounds = [[OURS, OURS]]
    cluster = Cluster("10.0.0.1:6379", ENV, ["my_env"], folder="/user")
    assert cluster.nodes == NODES  # live nodes with a CPU
    assert answers.asked == [(NODES, ENV, ["my_env"], "/user")]
    (shutdown, (_, options)) = ray.calls
    assert shutdown == ("shutdown",)
    assert options.pop("runtime_env") == {"env_vars": process_variables(), "py_modules": ["/user/my_env.py"]}
    assert options.pop("job_config") == NO_FOLDERS
    assert options == {"address": "10.0.0.1:6379", "logging_level": logging.ERROR, "log_to_driver": False}
    assert os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] == "1"
    assert ray._private.worker.print_to_stdstream is not print
    cluster.wait()
    assert (cluster.is_up(), cluster.lost()) == (True, None)
    cluster.close()
    assert ray.calls[2:] == [("shutdown",)]


def test_a_cluster_is_joined_in_another_thread_because_ray_would_replace_the_handler_of_sigterm(ray, answers):
    answers.rounds, threads = [[OURS, OURS]], []
    ray.init = lambda **options: threads.append(threading.current_thread())
    Cluster("10.0.0.1:6379", ENV, [])
    assert threads != [threading.main_thread()]


def test_nodes_without_drl_cli_get_it(ray, answers):
    lacks = Answer(OURS.python, OURS.ray, None, "ModuleNotFoundError: No module named 'drl_cli'")
    answers.rounds = [[OURS, lacks], [OURS, OURS]]
    assert Cluster("auto", ENV, ["my_env"]).nodes == NODES
    shipped = [call[1]["runtime_env"]["py_modules"] for call in ray.calls if call[0] == "init"]
    assert shipped == [["/user/my_env.py"], ["/user/my_env.py", str(Path(drl_cli.__file__).parent)]]


NEW = [{**ENTRIES[0], "NodeID": f"{name}123456789", "NodeManagerAddress": f"10.0.1.{i}"} for i, name in enumerate("ef")]


def test_nodes_that_join_a_cluster_are_asked_until_ray_answers_and_offered_if_they_fit(
    ray, answers, monkeypatch, caplog
):
    monkeypatch.setattr(launch, "LOOK_S", 0.001)
    answers.rounds, answer = [[OURS, OURS]], launch.ask_nodes
    cluster, troubles = Cluster("auto", ENV, []), iter([ConnectionError("Ray is busy")])

    def ask(nodes, *args):
        for trouble in troubles:
            raise trouble
        answers.rounds = [[None if nodes[0].id[0] == "f" else OURS]]
        return answer(nodes, *args)

    monkeypatch.setattr(launch, "ask_nodes", ask)
    caplog.set_level("INFO")
    assert cluster.offers() == NODES
    ray.entries = [*ENTRIES, *NEW]
    end = time.monotonic() + 30
    while len(answers.asked) < 3 or len(cluster.offers()) < 3:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert [node.id[0] for node in cluster.offers()] == ["a", "c", "e"]
    ray.entries = ENTRIES[1:]
    while len(cluster.offers()) > 1:
        assert time.monotonic() < end
        time.sleep(0.001)
    cluster.close()
    assert [[node.id[0] for node in nodes] for nodes, *_ in answers.asked] == [["a", "c"], ["e"], ["f"]]
    assert "Ray is busy" in caplog.text
    assert "node 10.0.1.1 (f12345) does not answer; it has joined the cluster" in caplog.text


def test_a_cluster_that_can_not_be_joined_is_named(ray, answers, monkeypatch):
    ray.entries, answers.rounds = [], [[]]
    with pytest.raises(ClusterUnfit, match=r"^ray\.address: the cluster at 10\.0\.0\.1:6379 has no node with a CPU$"):
        Cluster("auto", ENV, [])

    def fail(**options):
        raise ConnectionError("nobody there")

    ray.init = fail
    with pytest.raises(ClusterUnfit, match=r"^ray\.address=10\.0\.0\.1:1: nobody there$"):
        Cluster("10.0.0.1:1", ENV, [])
    monkeypatch.setattr(ray_internals, "own_address", lambda: None)
    monkeypatch.setattr(ray_internals, "all_addresses", lambda: ["127.0.0.1:1"])
    with pytest.raises(ClusterUnfit, match=r"^ray\.address=auto: no Ray cluster runs here"):
        Cluster("auto", ENV, [])
    monkeypatch.setattr(launch.cluster, "unreachable", lambda address: f"nobody answers at {address}")
    with pytest.raises(ClusterUnfit, match=r"^nobody answers at 10\.0\.0\.1:1$"):
        Cluster("10.0.0.1:1", ENV, [])

    def too_large(modules):
        raise ValueError("60 MB are too many to ship")

    monkeypatch.setattr(launch.cluster, "unreachable", lambda address: None)
    monkeypatch.setattr(launch.cluster, "shipped_modules", too_large)
    with pytest.raises(ClusterUnfit, match="60 MB are too many"):
        Cluster("10.0.0.1:1", ENV, [])


def test_each_node_is_asked_for_versions_and_the_environment(ray):
    nodes = [*NODES, Node("e123456789", "10.0.0.4", 1.0)]
    answered = launch.ask_nodes(nodes, ENV, ["drl_cli.algos.off_policy.sac"])
    assert answered == dict.fromkeys(nodes, OURS)
    for (_, options, (pickled,)), node in zip(ray.asked, nodes, strict=True):
        assert (options["num_cpus"], options["max_retries"]) == (0, 0)
        assert vars(options["scheduling_strategy"]) == {"node": node.id, "soft": False}
        assert pickle.loads(pickled) == ENV
    ((_, refs, num, timeout),) = ray.calls
    assert (len(refs), num, timeout) == (3, 3, 60)


def test_an_error_on_a_node_is_its_answer(ray, monkeypatch):
    (answer,) = launch.ask_nodes(NODES[:1], ENV, ["no_such_module"]).values()
    problem = "ModuleNotFoundError: No module named 'no_such_module'"
    assert answer == Answer(OURS.python, OURS.ray, drl_cli.__version__, problem)
    ray.wait = lambda refs, num_returns, timeout: (refs[1:], refs[:1])

    def get(ref):
        raise fake_ray.RayError("a setup failed:\n  pip\n\n   no space left  \n")

    ray.get = get
    died = Answer(OURS.python, OURS.ray, None, "no space left")
    assert launch.ask_nodes(NODES, ENV, []) == {NODES[0]: None, NODES[1]: died}
