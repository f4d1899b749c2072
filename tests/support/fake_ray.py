"""A fake of Ray that starts nothing, records its calls, and runs remote functions in the calling process."""

import importlib
import random
import sys
from types import ModuleType, SimpleNamespace


class ObjectRef:
    """A reference to a value, or to an error that `get` raises."""

    def __init__(self, value=None, error=None):
        self.value, self.error = value, error


class RayError(Exception):
    """The exceptions here and below are Ray's."""


class RayTaskError(RayError):
    def __init__(self, cause=None):
        self.cause = cause
        super().__init__(str(cause))


class ObjectLostError(RayError): ...


class GetTimeoutError(RayError): ...


class RayActorError(RayError): ...


class ActorUnavailableError(RayActorError): ...


class ActorUnschedulableError(RayError): ...


ERRORS = (
    *(RayError, RayTaskError, ObjectLostError, GetTimeoutError, RayActorError, ActorUnavailableError),
    ActorUnschedulableError,
)


class Remote:
    """A remote class or function with the options given so far."""

    def __init__(self, ray, target, options):
        self.ray, self.target, self.given = ray, target, options

    def options(self, **options):
        return Remote(self.ray, self.target, self.given | options)

    def remote(self, *args):
        self.ray.asked.append((self.target, self.given, args))
        if isinstance(self.target, type):
            return SimpleNamespace(args=args, _actor_id=b"the actor")
        try:
            return ObjectRef(self.target(*args))
        except RayError as error:
            return ObjectRef(error=error)


class Node:
    """The starter of Ray's processes; `started` has the processes of a session."""

    started: list

    def start_api_server(self, **options):
        self.started.append("api server")

    def start_log_monitor(self):
        self.started.append("log monitor")

    def dead_processes(self):
        return []

    def start_raylet(self):
        self.started.append("raylet")


class FakeRay(ModuleType):
    """The package; `calls` records init, shutdown, kill and put, `asked` the calls of classes and functions."""

    def __init__(self):
        super().__init__("ray")
        self.__version__ = "2.60.0"
        self.calls, self.asked, self.entries, self.silent = [], [], [], ()
        self.ObjectRef = ObjectRef
        self.exceptions = SimpleNamespace(**{error.__name__: error for error in ERRORS})
        self.resources = {}
        self.job_config = SimpleNamespace(JobConfig=SimpleNamespace)

        def affinity(node, soft):
            return SimpleNamespace(node=node, soft=soft)

        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=affinity)
        self.util = SimpleNamespace(scheduling_strategies=strategies, get_node_ip_address=lambda: "10.0.0.1")
        worker = SimpleNamespace(_global_node=None, print_to_stdstream=print)
        self.parents = []
        utils = SimpleNamespace(
            set_kill_on_parent_death_linux=lambda: self.parents.append("ends with it"),
            get_ray_address_file=lambda folder: "/nowhere/ray_current_cluster",
        )
        services = SimpleNamespace(find_gcs_addresses=lambda: {"10.0.0.1:6379", "127.0.0.1:6379"})
        self.Node = type("Node", (Node,), {"started": []})
        node, storage = SimpleNamespace(Node=self.Node), SimpleNamespace(random=random)
        self._private = SimpleNamespace(
            worker=worker, utils=utils, node=node, external_storage=storage, services=services
        )
        config = SimpleNamespace(initialize=lambda text: self.calls.append(("read_variables", text)))
        self._raylet = SimpleNamespace(random=random, Config=config)

    def init(self, **options):
        self.calls.append(("init", options))
        node = self.Node()
        for start in ("start_api_server", "start_log_monitor", "start_raylet"):
            getattr(node, start)()

    def shutdown(self):
        self.calls.append(("shutdown",))

    def kill(self, actor):
        self.calls.append(("kill", actor))

    def put(self, value):
        self.calls.append(("put", value))
        return ObjectRef(value)

    def get(self, ref, timeout=None):
        if ref.error is not None:
            raise ref.error
        return ref.value

    def wait(self, refs, num_returns=1, timeout=None):
        self.calls.append(("wait", list(refs), num_returns, timeout))
        done = [ref for ref in refs if ref.value not in self.silent][:num_returns]
        return done, [ref for ref in refs if ref not in done]

    def nodes(self):
        return self.entries

    def cluster_resources(self):
        return self.resources

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "here", gcs_address="10.0.0.9:1")

    def remote(self, target=None, **options):
        return (lambda target: Remote(self, target, options)) if target is None else Remote(self, target, options)


def install(monkeypatch):
    """Replace ray, and all imports from ray, during a test."""
    internals = importlib.import_module("drl_cli.runtime.place.ray_internals")  # with the real Ray
    fake = FakeRay()
    modules = {"ray": fake, "ray.util": fake.util, "ray.util.scheduling_strategies": fake.util.scheduling_strategies}
    modules |= {f"ray._private.{name}": module for name, module in vars(fake._private).items()}
    modules |= {"ray._private": fake._private, "ray._raylet": fake._raylet}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("handles", "launch", "cluster_nodes", "ray_runtime"):
        monkeypatch.setattr(f"drl_cli.runtime.place.{name}.ray", fake)
    monkeypatch.setattr(internals, "ray", fake)
    return fake
