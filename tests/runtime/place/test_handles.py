import logging
import os
import pickle
import time
from contextlib import contextmanager
from types import SimpleNamespace

import fake_ray
import numpy as np
import pytest
from fake_ray import ObjectRef
from handles import by_name

from drl_cli.errors import NodeGone, RoleLost
from drl_cli.runtime.place import handles, ray_runtime
from drl_cli.runtime.place.handles import ActorDied, LocalRef, LocalRuntime, RayHandle
from drl_cli.runtime.place.ray_runtime import INLINE_BYTES, Host, RayRuntime


@pytest.fixture
def ray(monkeypatch):
    return fake_ray.install(monkeypatch)


class Role:
    """Adds, or fails."""

    def __init__(self, *args):
        self.args = args
        if "fails" in args:
            raise ValueError("it can't be built")

    def add(self, a, b=1):
        return a + b

    def both(self, a):
        return a, -a

    def fail(self, *args):
        raise KeyError("lost")


# In this process


def test_a_local_role_answers_with_references_and_errors_are_raised_by_get():
    handle = LocalRuntime().spawn("role", Role, 3, gpus=1, node="elsewhere")
    assert (handle.role.args, handles.get(by_name(handle, "add", 1, LocalRef(2)))) == ((3,), 3)
    assert [handles.get(ref) for ref in by_name(handle, "both", 4, results=2)] == [4, -4]
    with pytest.raises(KeyError, match="lost"):
        handles.get(by_name(handle, "fail"))
    refs = by_name(handle, "fail", results=3)
    assert [type(ref.error) for ref in refs] == [KeyError] * 3
    assert len(set(refs)) == 3  # each part is expected and answered on its own
    with pytest.raises(OSError, match="gone before"):
        handles.get(by_name(handle, "add", LocalRef(error=OSError("gone before"))))
    assert handles.get(handle.ping()) == os.getpid()
    handle.kill()
    assert handle.role is None
    assert (LocalRuntime().gpus(), LocalRuntime().nodes) == (0, ())


def test_a_local_value_is_put_once():
    ref = LocalRuntime().put("value")
    assert (ref.value, LocalRuntime().put(ref), LocalRuntime().gpus()) == ("value", ref, 0)


def test_a_local_role_gets_the_value_of_a_reference_of_ray(ray):
    handle = LocalRuntime().spawn("adder", Role)
    assert handles.get(by_name(handle, "add", ObjectRef(3), LocalRef(4))) == 7


# On Ray


def test_calls_of_a_role_on_ray(ray):
    made, calls = [], []

    def options(**given):
        made.append(given)
        return SimpleNamespace(remote=lambda *args: calls.append(args) or (1, 2))

    ping, uses = (SimpleNamespace(remote=lambda answer=answer: answer) for answer in ("its process", "its use"))
    actor = SimpleNamespace(call=SimpleNamespace(options=options), ping=ping, uses=uses)
    handle, there = RayHandle(actor, "manage.log", ("evaluate",)), ObjectRef("there")
    by_name(handle, "train", LocalRef(5), there, "value", results=4)
    by_name(handle, "evaluate", 1)
    assert made == [{"num_returns": 4}, {"num_returns": 1, "concurrency_group": "evaluate"}]
    assert calls == [("train", 5, there, "value"), ("evaluate", 1)]
    assert (handle.ping(), handle.uses()) == ("its process", "its use")
    handle.kill()
    assert ray.calls == [("kill", actor)]


def entry(name, alive=True):
    return {"NodeID": name, "Alive": alive, "NodeManagerAddress": f"10.0.0.{len(name)}"}


@pytest.mark.parametrize(
    ("role", "where", "node", "options"),
    [
        ("worker 3", {}, "here", {}),
        ("trainer", {"gpus": 1}, None, {"num_gpus": 1}),
        ("proxy 0", {"node": "far"}, "far", {}),
        ("manage", {"concurrent": ("evaluate",)}, "here", {"concurrency_groups": {"evaluate": 1}}),
    ],
)
def test_roles_run_where_they_are_asked_to(ray, role, where, node, options):
    readied = []
    runtime = RayRuntime("/logs", lambda: readied.append(1), nodes=["far"])
    ray.entries = [entry("far"), entry("gonenode1", alive=False)]
    handle = runtime.spawn(role, Role, 1, 2, **where)
    ((host, given, args),) = ray.asked
    assert (readied, handle.actor.args, args) == ([1], args, (f"/logs/{role.replace(' ', '-')}.log", Role, 1, 2))
    assert (host.__name__, issubclass(host, Host)) == (role, True)
    strategy = {"scheduling_strategy": SimpleNamespace(node=node, soft=False)} if node else {}
    assert given == {"num_cpus": 0, "num_gpus": 0, "max_restarts": 0, "max_task_retries": 0} | strategy | options


def test_a_node_that_has_left_the_cluster_is_named(ray):
    ray.entries, runtime = [entry("gonenode1", alive=False)], RayRuntime("/logs")
    with pytest.raises(NodeGone, match=r"^node 10\.0\.0\.9 \(goneno\) is gone$"):
        runtime.spawn("proxy 1", Role, node="gonenode1")
    with pytest.raises(NodeGone, match=r"^node unknown address \(never \) is gone$"):
        runtime.spawn("proxy 1", Role, node="never there")


def test_an_unpickled_runtime_does_not_wait_for_ray(ray):
    def never():
        raise AssertionError

    runtime = pickle.loads(pickle.dumps(RayRuntime("/logs", never, never, ["far"])))
    assert (runtime.log_folder, list(runtime.nodes), runtime.is_up()) == ("/logs", [], True)
    runtime.ready()


def test_large_values_go_to_rays_store_and_small_ones_travel_with_calls(ray):
    readied = []
    runtime = RayRuntime("/logs", lambda: readied.append(1))
    small, large = np.zeros(INLINE_BYTES - 1, np.uint8), np.zeros(INLINE_BYTES, np.uint8)
    assert runtime.put(small).value is runtime.put(LocalRef(small)).value is small
    assert readied == []
    assert runtime.put(LocalRef(large)).value is large
    assert runtime.put("of unknown size").value == "of unknown size"
    assert ([call[0] for call in ray.calls], len(readied)) == (["put", "put"], 2)
    there = ObjectRef(1)
    assert runtime.put(there) is there
    assert runtime.put(LocalRef(there)) is there


def test_gpus_are_counted_in_the_cluster(ray):
    readied = []
    runtime = RayRuntime("/logs", lambda: readied.append(1))
    assert runtime.gpus() == 0
    ray.resources = {"GPU": 2.0, "CPU": 8.0}
    assert ((runtime.gpus(), readied), ray_runtime.node_address()) == ((2, [1, 1]), "10.0.0.1")


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (fake_ray.RayTaskError(KeyError("lost")), KeyError, "'lost'"),
        (fake_ray.RayTaskError(fake_ray.ObjectLostError("gone with it")), handles.ObjectLost, "gone with it"),
        (fake_ray.RayTaskError(None), fake_ray.RayTaskError, "None"),
        (fake_ray.GetTimeoutError("late"), RoleLost, f"Ray did not bring a value within {handles.FETCH_S:g} s"),
        (fake_ray.ObjectLostError("first line\nsecond"), handles.ObjectLost, "first line"),
        (fake_ray.ActorUnavailableError("socket closed"), handles.ActorUnavailable, "socket closed"),
        (fake_ray.RayActorError("died"), ActorDied, "died"),
        (fake_ray.ActorUnschedulableError("no node"), ActorDied, "no node"),
        (fake_ray.RayActorError("a\nWorker exit detail: killed by signal 9.\nb"), ActorDied, "killed by signal 9"),
        (fake_ray.RayActorError("x connection error code 2"), ActorDied, "its process ended unexpectedly"),
        (fake_ray.RayActorError("The actor died in its creation task:\n a\n why\n"), ActorDied, "why"),
        (fake_ray.RayActorError(" \n"), ActorDied, "RayActorError"),
    ],
)
def test_errors_of_ray_are_translated(ray, error, kind, says):
    with pytest.raises(kind) as caught:
        handles.get(ObjectRef(error=error))
    assert type(caught.value) is kind
    assert (str(caught.value), handles.get(ObjectRef(7))) == (says, 7)


def test_an_actor_that_crashed_has_the_message_of_its_crash(ray, tmp_path):
    runtime = pickle.loads(pickle.dumps(RayRuntime(str(tmp_path), env="my_mod:Env")))
    ray.entries, file = [entry("here")], tmp_path / "worker-3.crash"
    file.write_text("Fatal Python error: of an earlier process\n")
    runtime.spawn("worker 3", Role)
    error = fake_ray.RayActorError("x connection error code 2")
    error.actor_id = b"the actor".hex()
    with pytest.raises(ActorDied, match="its process ended unexpectedly"):
        handles.get(ObjectRef(error=error))
    file.write_text('Fatal Python error: Aborted\n  File "/x/drl_cli/envs/make.py", line 1 in build')
    with pytest.raises(ActorDied, match=r"^my_mod:Env ended its process by SIGABRT \(Aborted\)"):
        handles.get(ObjectRef(error=error))


def test_wait_returns_ready_references_in_the_order_given(ray):
    first, second, third = (ObjectRef(value) for value in "abc")
    here = LocalRef()
    ray.silent = ("b",)
    assert (handles.wait([third, second, first], 5.0), handles.wait([second], 5.0)) == ([third, first], [])
    assert handles.wait([first, here, second, third], 5.0) == [first, here, third]
    assert ray.calls == [
        ("wait", [third, second, first], 1, 5.0),
        ("wait", [third, second, first], 3, 0),
        ("wait", [second], 1, 5.0),
        ("wait", [first, second, third], 1, 0),
        ("wait", [first, second, third], 3, 0),
    ]
    ray.calls.clear()
    ray.silent = "abc"
    assert (handles.wait([first, second], 1.0), ray.calls) == ([], [("wait", [first, second], 1, 1.0)])


def test_wait_without_references_sleeps(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert (handles.wait([], 0.5), handles.wait([], 0.0), handles.wait([], -1.0)) == ([], [], [])
    here = LocalRef()
    assert (handles.wait([here], 0.5), slept) == ([here], [0.5])


# The process of a role


@contextmanager
def own_log():
    """A root logger without handlers, as in a new process."""
    logger = logging.getLogger()
    kept = logger.handlers, logger.level
    logger.handlers = []
    try:
        yield logger
    finally:
        for handler in logger.handlers:
            handler.close()
        logger.handlers = kept[0]
        logger.setLevel(kept[1])


@pytest.fixture
def crash_files(monkeypatch):
    """The crash files of hosts in this process, which keeps its own."""
    files = []
    monkeypatch.setattr(ray_runtime.crashes, "write_crashes", files.append)
    return files


def test_a_host_calls_its_role_and_logs_errors(tmp_path, crash_files):
    path = tmp_path / "logs" / "worker-3.log"
    with own_log():
        host = Host(str(path), Role, 5)
        assert (host.ping(), host.role.args, host.error) == (os.getpid(), (5,), None)
        assert host.call("add", 1, 4) == 5
        ((role, (_, pid, _), *_),) = (tuple(vars(use).values()) for use in host.uses())
        host.role.uses = lambda: ["the use of another"]
        assert (role, pid, host.uses()[1:]) == ("Host", os.getpid(), ["the use of another"])
        with pytest.raises(KeyError, match="lost"):
            host.call("fail")
    assert crash_files == [tmp_path / "logs" / "worker-3.crash"]
    lines = path.read_text().splitlines()
    assert lines[0].endswith(f" INFO worker-3 is process {os.getpid()}")
    assert lines[1].endswith(" ERROR fail failed")
    assert lines[-1] == "KeyError: 'lost'"


def test_a_role_that_can_not_be_built_fails_every_call(tmp_path, crash_files):
    (tmp_path / "file").touch()
    with own_log() as logger:
        host = Host(str(tmp_path / "file" / "worker-3.log"), Role, "fails")
        assert type(logger.handlers[0]) is logging.StreamHandler  # the log file could not be created
        for _ in range(2):
            with pytest.raises(ValueError, match="it can't be built"):
                host.call("add", 1)
    assert host.role is None
