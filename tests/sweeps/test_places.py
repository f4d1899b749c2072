"""Places: how many jobs a cluster's nodes hold and what each takes there; a cluster that can't run them is said to."""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from drl_cli.errors import ClusterUnfit, UsageError
from drl_cli.preflight.environment import join_cluster
from drl_cli.runtime.place import launch, nodes
from drl_cli.runtime.place.cluster import Node
from drl_cli.settings.build import build
from drl_cli.settings.compose import mapping
from drl_cli.sweeps import jobs, places
from drl_cli.sweeps.launcher import start_here
from drl_cli.sweeps.sweep import Sweep

GB = 2**30
LARGE, SMALL = Node("a1", "10.0.0.1", 8.0, 64 * GB), Node("b1", "10.0.0.2", 4.0, 64 * GB)


@pytest.fixture
def typed():
    """The config of a job as it is typed, on the cluster at a:1."""
    return lambda *args: build(mapping(["env=Pendulum-v1", "ray.address=a:1", "replay.capacity=10000", *args]))


@pytest.fixture
def started(monkeypatch):
    """What processes are started with, in place of NodeProcess."""
    made = []
    monkeypatch.setattr(nodes, "NodeProcess", lambda *args: made.append(args))
    return made


@pytest.mark.parametrize(
    ("args", "there", "count", "asked", "cpus"),
    [
        (["mode=single"], [LARGE, SMALL], 12, 0, 1),
        (["mode=single", "trainer.threads=3"], [LARGE, SMALL], 3, 0, 3),  # two and one; together they would hold four
        (["mode=single", "sweep.jobs=5"], [LARGE, SMALL], 5, 5, 1),
        (["mode=single", "sweep.jobs=50"], [LARGE, SMALL], 12, 50, 1),
        (["mode=single", "trainer.threads=16"], [SMALL, LARGE], 1, 0, 8),  # no node has more: it takes a whole one
        (["mode=async", "worker.num=3"], [LARGE, SMALL], 3, 0, 2),  # two of its four on each
        (["mode=sync", "worker.num=3", "trainer.num=2", "trainer.threads=2"], [LARGE, SMALL], 1, 0, 4),
        (["mode=async"], [LARGE, SMALL], 1, 0, 6),  # all processors of both
        (["mode=async"], [LARGE], 1, 0, 8),
    ],
)
def test_how_many_jobs_a_cluster_holds(args, there, count, asked, cpus, typed, started, monkeypatch, tmp_path):
    monkeypatch.setattr(nodes, "live_nodes", lambda: there)
    config = typed(*args)
    slots, most, start = places.room([config, config])
    assert (slots, most) == ([set()] * count, asked)
    start(set(), ["-m", "drl"], {"DRL_JOB_FILE": "1.json"}, tmp_path)
    assert started[0][3] == cpus


def test_a_job_takes_memory_and_variables_along(typed, started, monkeypatch, tmp_path):
    config = typed("mode=single", "worker.num=1")
    need = places.memory_needed(config)
    assert GB < need < 3 * GB
    monkeypatch.setattr(nodes, "live_nodes", lambda: [Node("a", "1", 8.0, 3 * need), Node("b", "2", 8.0, need + 1)])
    monkeypatch.setattr(places.os, "environ", {"DRL_DEBUG": "1", "WANDB_API_KEY": "k", "PATH": "/here"})
    slots, _, start = places.room([config])
    assert len(slots) == 4
    start(set(), ["-m", "drl"], {"DRL_JOB_FILE": "1.json"}, tmp_path)
    along = {"DRL_DEBUG": "1", "WANDB_API_KEY": "k", "DRL_JOB_FILE": "1.json"}
    assert started == [(["-m", "drl"], along, tmp_path, 1, need)]
    monkeypatch.setattr(nodes, "live_nodes", lambda: [])
    with pytest.raises(UsageError, match="a:1 has no node with a CPU any more") as raised:
        places.room([config])
    assert raised.value.exit_code == 6


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of one node; `joined` says with what, `unseen` is what the node does not see, `looked` where."""
    made = SimpleNamespace(joined=[], lacking=[], unseen=[], looked=[], nodes=[LARGE], problem=None)

    def join(*args, folder):
        made.joined.append((*args, folder))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if made.problem:
            raise ClusterUnfit([made.problem])
        return made

    def unshared(there, folder, work):
        made.looked.append((there, folder, work))
        return made.unseen

    monkeypatch.setattr(launch, "Cluster", join)
    monkeypatch.setattr(nodes, "unshared", unshared)
    return made


def test_the_nodes_are_asked_before_the_first_job(cluster, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    configs = [typed("seed=1"), typed("manage.evaluator=json.decoder:My"), typed("manage.evaluator=json:My")]
    places.join(configs, tmp_path / "outputs" / "new")
    assert cluster.joined == [("a:1", configs[0].env, ["json", "json.decoder"], str(tmp_path))]
    assert cluster.looked == [([LARGE], tmp_path, tmp_path)]  # the folder in which the sweep's will be made
    assert signal.getsignal(signal.SIGTERM) == handler
    places.join([build(mapping(["env=Pendulum-v1"]))], Path("/"))  # without a cluster nobody is asked
    assert len(cluster.joined) == 1


@pytest.mark.parametrize(
    ("change", "says", "code"),
    [
        ({"unseen": ["node x does not see /y"]}, "node x does not see /y", 3),
        ({"lacking": [SMALL]}, "node 10.0.0.2 (b1) has no drl-cli: install it there", 3),
        ({"problem": "no Ray cluster answers"}, "no Ray cluster answers", 2),
    ],
)
def test_a_cluster_that_can_not_run_the_jobs_is_one_line(cluster, typed, tmp_path, change, says, code):
    vars(cluster).update(change)
    with pytest.raises(UsageError) as raised:
        places.join([typed()], tmp_path)
    assert (raised.value.problems, raised.value.exit_code) == ([says], code)


def test_jobs_are_counted_as_they_were_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    joined = []
    monkeypatch.setattr(jobs, "join", lambda *args: joined.append(args))
    made = Sweep(Path(), [])
    made.add([["env=Pendulum-v1", "mode=async", "output_dir=out"]])
    (config,) = jobs.check_jobs(made, made.jobs, [])
    assert config.worker.num is None  # a cluster has other processors than this machine
    assert joined == [([config], tmp_path / "out")]
    made.make_folder("out")
    jobs.check_jobs(made, made.jobs, [])
    assert joined[1][1] == made.folder


@pytest.mark.parametrize(("start", "what"), [(None, "the cluster"), (start_here, "this machine")])
def test_more_jobs_than_there_is_room_for_are_refused(start, what, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jobs, "room", lambda configs: ([set(), set()], 9, start))
    jobs.run_jobs(Sweep(tmp_path, []), [], [])
    assert capsys.readouterr().out == f"sweep.jobs=9: {what} holds 2 at once; more would be slower, not faster\n"


@pytest.mark.parametrize("mode", ["single", "sync"])
def test_a_job_on_one_node_asks_no_other(cluster, typed, monkeypatch, mode):
    asked = []
    monkeypatch.setattr(launch, "Cluster", lambda *args, only_here: asked.append((args, only_here)))
    config = typed(f"mode={mode}")
    join_cluster(config)
    assert asked == [(("a:1", config.env, []), mode == "single")]


def test_what_the_nodes_of_the_cluster_can_not_share_is_said_once(cluster, typed, tmp_path):
    cluster.nodes = [LARGE, SMALL]
    with pytest.raises(UsageError) as raised:
        places.join([typed("mode=sync", "worker.num=1"), typed("mode=sync", "worker.num=1", "seed=1")], tmp_path)
    assert raised.value.problems == ["worker.num=1 can't be shared equally by worker.proxies=2"]


def test_a_sweep_has_one_cluster(typed):
    with pytest.raises(UsageError, match=r"ray\.address: all jobs of a sweep run on one cluster"):
        places.join([typed(), typed("ray.address=b:1")], Path("/"))
