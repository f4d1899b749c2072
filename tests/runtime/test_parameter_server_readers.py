import os
import signal

import numpy as np
import pytest
from graphs import COUNTER, at
from handles import by_name

from drl_cli.errors import RoleLost
from drl_cli.run_folder.checkpoint import load_model
from drl_cli.runtime.place.handles import get
from drl_cli.runtime.place.ray_runtime import RayRuntime

OFTEN = ("orchestrator.sample_load_ratio=1", "checkpoint.period=100000")


def watch(graph):
    """Return a list that receives the newest version at each pull."""
    ask_parts, pulled = graph.learning.server.ask_parts, []

    def note(num, method, *args):
        if method.__name__ == "pull":
            pulled.append(graph.learning.params_header.version)
        return ask_parts(num, method, *args)

    graph.learning.server.ask_parts = note
    return pulled


@pytest.mark.ray
def test_a_killed_worker_returns_with_the_newest_version(build_graph):
    graph = build_graph(COUNTER, "mode=async", "worker.num=2", "total_env_steps=3000", *OFTEN, on_ray=True)
    published, headers, on_published = {}, [], graph.learning._on_published

    def note_version(ref, params):
        published[get(ref).version] = get(params).tobytes()
        on_published(ref, params)

    graph.learning._on_published = note_version
    pulled, victim = watch(graph), graph.pool.members[1]
    at(graph, 1000, lambda: os.kill(get(victim.handle.ping()), signal.SIGKILL))
    answer = graph.pool.answer

    def note_header(ref):
        member, header, restarts = answer(ref)
        if header is not None and header.blocks[0].incarnation == 1:
            headers.append((header, get(by_name(victim.handle, "state"))["params"].tobytes()))
        return member, header, restarts

    graph.pool.answer = note_header
    graph.run()
    assert (graph.progress.worker_restarts, len(pulled)) == (1, 1)
    header, params = headers[0]
    assert header.blocks[0].version == pulled[0] > 0
    assert params == published[pulled[0]]


class Far:
    """A role on another node."""

    def rows(self, count):
        return np.ones(count)


def saved_by_the_rescue(graph):
    """Kill the trainer; yield the newest version and its parameters, then those of the rescued checkpoint."""
    at(graph, 500, lambda: os.kill(get(graph.trainers["trainer"].ping()), signal.SIGKILL))
    with pytest.raises(RoleLost, match="trainer died"):
        graph.run()
    yield graph.learning.params_header.version, get(graph.learning.pull()).tobytes()  # the server has it from now on
    graph.rescue()
    graph.close("failed")
    models = map(load_model, (graph.folder / "checkpoints").glob("step_*"))
    yield max((manifest["version"], params.tobytes()) for params, manifest in models)


@pytest.mark.ray
@pytest.mark.exhaustive
def test_after_a_killed_trainer_the_newest_model_is_saved(build_graph):
    graph = build_graph(COUNTER, "mode=async", "total_env_steps=100000", *OFTEN, on_ray=True)
    newest, saved = saved_by_the_rescue(graph)
    assert saved == newest
    assert newest[0] > 0


@pytest.mark.ray
def test_parameters_that_went_with_their_node_are_saved_from_the_server(build_graph, ray_cluster, second_node, caplog):
    graph = build_graph(COUNTER, "mode=async", "total_env_steps=100000", *OFTEN, on_ray=True)
    rescue = saved_by_the_rescue(graph)
    newest = next(rescue)
    far = RayRuntime(str(graph.folder)).spawn("far", Far, node=second_node.node_id)
    graph.learning.params = by_name(far, "rows", 10**6)
    get(far.ping())  # by now they are there, and only there
    ray_cluster.remove_node(second_node, allow_graceful=False)
    assert (next(rescue), graph.manage.restarts) == (newest, 0)
    assert "manage" not in caplog.text
