"""Shared fixtures: configs composed as drl-train composes them, and one Ray cluster for the whole session."""

import io
import os
import time
from pathlib import Path

import pytest
from graphs import TINY, make_config

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


@pytest.fixture(scope="session")
def ray_cluster():
    """One cluster for all tests that need Ray."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    here = Path(__file__).parent  # where the tests' own roles, and what they import, are found
    os.environ["PYTHONPATH"] = f"{here / 'runtime'}{os.pathsep}{here / 'support'}"
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        logging_level="error",
    )
    yield ray
    ray.shutdown()


@pytest.fixture
def build_graph(tmp_path, request):
    """Make the graph of a command line, in process or (`on_ray=True`) on the session's cluster.

    `change` makes another config of the one that is composed.
    """

    def build_it(*overrides, on_ray=False, change=lambda config: config):
        from drl_cli.envs.make import read_spec
        from drl_cli.metrics.console import Console
        from drl_cli.runtime.handles import RayRuntime
        from drl_cli.runtime.program import build
        from drl_cli.runtime.progress import Progress

        config = change(make_config(*TINY, *overrides))
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "workers").mkdir()
        ray = None
        if on_ray:
            request.getfixturevalue("ray_cluster")
            ray = RayRuntime(str(folder / "workers"))
        console = Console(io.StringIO(), "test", config.total_env_steps, None, 1e9)
        progress = Progress(config, time.time())
        graph = build(config, read_spec(config.env), folder, ray, lambda: True, progress, console)
        graph.folder = folder
        return graph

    return build_it


@pytest.fixture
def run_graph(build_graph):
    """Build, run and finish; the roles are ended afterwards."""
    from drl_cli.runtime.handles import RayHandle

    graphs = []

    def run_it(*overrides, **options):
        graph = build_graph(*overrides, **options)
        graphs.append(graph)
        graph.run()
        graph.finish()
        return graph

    yield run_it
    for graph in graphs:
        members = [member.handle for member in graph.pool.members]
        for handle in (*members, *graph.trainers.trainers, *graph.replay.shards, graph.server, graph.manage.handle):
            if isinstance(handle, RayHandle):
                handle.kill()
