"""Shared fixtures: configs composed as drl-train composes them, and one Ray cluster for the whole session."""

import io
import os
import signal
import time
from pathlib import Path

import hypothesis
import pytest
from choices import evenly
from go_on import GoOn
from graphs import TINY, make_config

pytest_plugins = ["commands"]

hypothesis.settings.register_profile(  # a busy machine is no failure, and equal code has equal examples
    "here", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("here")

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # else 15: whatever runs beside starves what the tests wait for

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it for what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--go-on", action="store_true", help="leave out what has passed before and has not changed")
    parser.addoption("--cases", type=int, help="take at most so many cases of each test, evenly spaced")


def pytest_configure(config):
    if config.getoption("--go-on"):
        is_worker = hasattr(config, "workerinput")  # of xdist, whose main process gets all reports
        config.pluginmanager.register(GoOn(config.rootpath, writes=not is_worker))


@pytest.hookimpl(trylast=True)  # after -m, so that only cases that would run are counted
def pytest_collection_modifyitems(config, items):
    most = config.getoption("--cases")
    if most is not None:
        taken = evenly(items, most)
        config.hook.pytest_deselected(items=[item for item in items if item not in taken])
        items[:] = [item for item in items if item in taken]


@pytest.fixture(autouse=True, scope="session")
def state_home(tmp_path_factory):
    """The consents of the tests, and of the commands that they start, are in a folder of their own."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True, scope="session")
def hangup():
    """SIGHUP has its default action, here and in the runs that inherit it, also if nohup started pytest."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(autouse=True)
def handlers():
    """A command or a run that a test starts in this process leaves handlers of signals. The next test has its own."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def ray_cluster():
    """One cluster of one node for all tests that need Ray; tests of several nodes add theirs and remove them again."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    here = Path(__file__).parent  # where the tests' own roles, and what they import, are found
    ours = [here / "support", here / "runtime", *(path for path in (here / "runtime").iterdir() if path.is_dir())]
    paths = [*map(str, ours), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    import ray
    from ray.cluster_utils import Cluster

    health = {"initial_delay_ms": 1000, "period_ms": 500, "failure_threshold": 4}  # a lost node is noticed in seconds
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "include_dashboard": False,
            "object_store_memory": 200 * 2**20,
            "_system_config": {f"health_check_{name}": value for name, value in health.items()},
        },
    )
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def second_node(ray_cluster):
    """A second node of the cluster, with two CPUs, for one test; the test may remove it."""
    node = ray_cluster.add_node(num_cpus=2, object_store_memory=80 * 2**20)
    yield node
    if node in ray_cluster.worker_nodes:
        ray_cluster.remove_node(node)


@pytest.fixture
def alarms(monkeypatch):
    """The timer of hang_limit stands still, so that no speed of the machine is a hang, and no hang takes any time.

    It ticks `alarms(count)` times; whoever sleeps hangs.
    """
    from drl_cli.envs.faults import TICKS

    def tick(count):
        for _ in range(count):
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(signal, "setitimer", lambda *args: (0.0, 0.0))
    monkeypatch.setattr(time, "sleep", lambda seconds: tick(TICKS + 1))
    return tick


@pytest.fixture
def start(tmp_path):
    """Start a drl-train in processes of its own (processes.Run), in tmp_path; all of it is gone after the test."""
    from processes import Run

    runs = []

    def start_it(*args, cwd=tmp_path, **env):
        runs.append(Run(cwd, *args, **env))
        return runs[-1]

    yield start_it
    for run in runs:
        run.kill_all()


@pytest.fixture
def build_graph(tmp_path, request):
    """Make the graph of a command line, in process or (`on_ray=True`) on the session's cluster and these `nodes`.

    Workers come and go with all nodes of the cluster if the graph is `elastic`.

    `change` makes another config of the one that is composed; with `run` it goes on with that folder's last checkpoint.
    The graph's `evaluations` are all that were made. The roles on Ray are killed afterwards.
    """
    spawned = []

    def build_it(*overrides, on_ray=False, nodes=(), elastic=False, change=lambda config: config, run=None):
        from drl_cli.envs.make import read_spec
        from drl_cli.metrics.console import Console
        from drl_cli.run_folder.checkpoint import open_checkpoint
        from drl_cli.run_folder.truncation import cut_back
        from drl_cli.runtime.factories import opened
        from drl_cli.runtime.orchestrator.progress import Progress
        from drl_cli.runtime.place.cluster_nodes import live_nodes
        from drl_cli.runtime.place.ray_runtime import RayRuntime
        from drl_cli.runtime.process_graph import build
        from drl_cli.runtime.restore import first_incarnation, restore

        config = change(make_config(*TINY, f"debug.in_process={not on_ray}", *overrides))
        folder = run or tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "workers").mkdir(exist_ok=True)
        checkpoint = open_checkpoint(folder / "checkpoints" / "last") if run else None
        ray = None
        if on_ray:
            request.getfixturevalue("ray_cluster")
            ray = RayRuntime(str(folder / "workers"), nodes=nodes)
            spawn = ray.spawn
            ray.spawn = lambda *args, **options: (spawned.append(spawn(*args, **options)), spawned[-1])[1]
        console = Console("quiet", io.StringIO(), time.time())
        progress, evaluated, evaluations = Progress(config, time.time()), Progress.evaluated, []
        progress.evaluated = lambda report: (evaluations.append(report), evaluated(progress, report))[1]
        spec = read_spec(config.env) if config.has_env else opened(config).spec
        first = first_incarnation(checkpoint)
        offers = live_nodes if elastic else tuple
        graph = build(config, spec, folder, progress, console, ray=ray, incarnation=first, offers=offers)
        if checkpoint:
            cut_back(folder, checkpoint, config.clock)
            restore(checkpoint, config, graph)
        graph.folder, graph.evaluations = folder, evaluations
        return graph

    yield build_it
    for handle in spawned:
        handle.kill()


@pytest.fixture
def run_graph(build_graph):
    """Build, run and finish; `started` gets the graph before it runs."""

    def run_it(*overrides, started=lambda graph: None, **options):
        graph = build_graph(*overrides, **options)
        started(graph)
        graph.run()
        graph.finish()
        return graph

    return run_it
