import contextlib
import subprocess
import sys

import psutil
import pytest
from graphs import COUNTER, on_collected

from drl_cli.runtime.messages import ProcessKey, ProcessUse
from drl_cli.runtime.place import usage as module
from drl_cli.runtime.place.handles import ActorDied, LocalRef
from drl_cli.runtime.place.usage import AskedUses, Usage

# os.times counts in the same steps of 10 ms as /proc, which Usage reads.
BURN = "import os\nwhile sum(os.times()[:2]) < 0.06: pass\nprint(flush=True)\n"


def child(title):
    """Start a process with this title that uses at least 0.05 s and then waits."""
    command = [title, "-c", BURN + "input()"]
    process = subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def end(process):
    process.communicate()
    assert not psutil.pid_exists(process.pid)


def test_time_counts_by_role_also_after_a_process_ended():
    usage = Usage()
    first, other = child("ray::worker 97.collect"), child("/bin/gcs_server")
    total, once = usage.sample(), usage.by_role()
    used = psutil.Process(first.pid).cpu_times()
    end(first)
    second = child("ray::worker 97")
    usage.sample()
    twice = usage.by_role()
    end(second)
    end(other)
    assert 0.05 <= once["worker 97"]["cpu_s"] <= used.user + used.system
    assert once["worker 97"]["peak_rss_mb"] >= 1
    assert once["ray"]["cpu_s"] >= 0.05
    assert total / 2**20 == pytest.approx(sum(role["peak_rss_mb"] for role in once.values()))
    assert once["worker 97"]["cpu_s"] + 0.05 <= twice["worker 97"]["cpu_s"]
    assert twice["worker 97"]["peak_rss_mb"] < 1.8 * once["worker 97"]["peak_rss_mb"]  # the two did not run at once


def told(role, pid, cpu_s, mb, host="elsewhere", began=1.0):
    return ProcessUse(role, ProcessKey(host, pid, began), cpu_s, mb * 2**20)


def test_roles_on_other_hosts_report_their_use():
    usage = Usage()
    usage.tell([told("worker 3", 7, 2.0, 90), told("proxy 0", 8, 0.5, 40)])
    first = usage.sample()
    usage.tell([told("worker 3", 7, 5.0, 70)])
    second, table = usage.sample(), usage.by_role()
    assert table["worker 3"] == {"cpu_s": 5.0, "peak_rss_mb": 90.0}
    assert table["proxy 0"] == {"cpu_s": 0.5, "peak_rss_mb": 40.0}
    main = psutil.Process().memory_info().rss / 2**20
    assert [first / 2**20, second / 2**20] == pytest.approx([main + 130, main + 110], rel=0.2)


def test_a_restarted_role_counts_once_with_the_time_of_both_processes():
    usage = Usage()
    usage.tell([told("worker 3", 7, 2.0, 90)])
    usage.sample()
    usage.tell([told("worker 3", 7, 1.0, 50, began=2.0)])  # the same process id, another process
    usage.sample()
    assert usage.by_role()["worker 3"] == {"cpu_s": 3.0, "peak_rss_mb": 90.0}
    assert (usage.now()[0]["worker"]["processes"], usage.now()[0]["worker"]["rss_mb"]) == (1, 50.0)


def test_use_by_node_and_roles_that_are_gone():
    usage = Usage()
    usage.tell([told("worker 2", 7, 2.0, 90), told("worker 3", 8, 1.0, 50), told("proxy 1", 9, 0.5, 40)])
    usage.tell([told("worker 0", 7, 4.0, 60, host="third")])
    usage.sample()
    assert usage.by_node()["elsewhere"] == {
        "proxy": {"processes": 1, "cpu_s": 0.5},
        "worker": {"processes": 2, "cpu_s": 3.0},
    }
    assert usage.by_node()["third"] == {"worker": {"processes": 1, "cpu_s": 4.0}}
    now = usage.now()[1]
    assert set(now) == {"elsewhere", "third", usage.host}
    assert now["elsewhere"]["worker"] == {"processes": 2, "rss_mb": 140.0}
    usage.forget(["worker 2", "worker 3", "proxy 1"])
    usage.sample()
    assert (set(usage.now()[1]), usage.now()[0]["worker"]["processes"]) == ({"third", usage.host}, 1)
    assert usage.by_node()["elsewhere"]["worker"]["cpu_s"] == 3.0  # the summary keeps them


def test_a_process_that_is_seen_does_not_count_twice():
    usage, process = Usage(), child("ray::worker 98")
    usage.sample()
    seen = usage.by_role()["worker 98"]
    usage.tell([told("worker 98", process.pid, 1e6, 1000, host=usage.host)])
    assert usage.by_role()["worker 98"] == seen
    end(process)
    usage.sample()
    usage.tell([told("worker 99", process.pid, 3.0, 10, host=usage.host)])  # another process with the same id
    assert usage.by_role()["worker 99"]["cpu_s"] == 3.0


def test_cores_are_a_mean_over_the_last_samples(monkeypatch):
    clock = iter([100.0, 104.0, *range(200, 211)])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    usage = Usage()
    usage.tell([told("worker 0", 7, 2.0, 90), told("worker 1", 8, 1.0, 90)])
    usage.sample()
    assert "cores" not in usage.now()[0]["worker"]
    usage.tell([told("worker 0", 7, 4.0, 90), told("worker 1", 8, 2.0, 90)])
    usage.sample()
    assert usage.now()[0]["worker"] == {"processes": 2, "rss_mb": 180.0, "cores": 0.75}
    assert 0 <= usage.now()[0]["main"]["cores"] < 3
    for _ in range(module.LOOKS):
        usage.sample()
    assert usage.now()[0]["worker"]["cores"] == 0.0


def test_a_role_that_owes_an_answer_is_not_asked_again():
    class Role:
        def __init__(self, answer):
            self.answer, self.calls = answer, 0

        def uses(self):
            self.calls += 1
            return self.answer

    asked, fast, slow = AskedUses(), Role(LocalRef(["its use"])), Role(object())
    dead = Role(LocalRef(error=ActorDied("killed")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "wait", lambda refs, timeout_s: [ref for ref in refs if isinstance(ref, LocalRef)])
        assert asked.take([fast, slow, dead]) == []
        assert asked.take([fast, slow]) == ["its use"]
    assert (fast.calls, slow.calls, dead.calls) == (2, 1, 1)


@pytest.mark.ray
def test_the_roles_of_a_run_on_ray(build_graph):
    args = ("mode=async", "worker.num=2", "worker.proxies=1", "replay.shards=2", "replay.capacity=500000")
    graph = build_graph(COUNTER, *args, "total_env_steps=1000000", on_ray=True)
    seen, with_torch = set(), {}

    def until_both_have_begun(header):
        seen.update(block.worker for block in header.blocks)
        if seen == {0, 1} and graph.progress.opt_steps:
            with_torch.update(roles_with_torch())
            graph.stop("signal")

    on_collected(graph, until_both_have_begun)
    graph.run()
    graph.finish()
    processes = graph.progress.summary(0.0, 0)["processes"]
    shards = {"replay 0", "replay 1"}
    roles = {"main", "proxy 0", "worker 0", "worker 1", "trainer", "parameter server", "manage", "ray"} | shards
    assert roles <= set(processes)
    assert all(processes[role]["cpu_s"] > 0 and processes[role]["peak_rss_mb"] > 10 for role in roles)
    titles = {"worker 0", "worker 1", "replay 0", "replay 1", "proxy 0", "parameter server", "manage", "trainer"}
    assert titles <= with_torch.keys()
    assert {title for title in titles if with_torch[title]} == {"trainer"}


def roles_with_torch():
    """Return whether the process of each role on Ray has loaded torch's library, by the role's title."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            title = process.cmdline()[0] if process.cmdline() else ""
            if title.startswith("ray::"):
                role = title.removeprefix("ray::").partition(".")[0]
                libraries = [region.path for region in process.memory_maps()]
                found[role] = found.get(role, False) or any("libtorch" in path for path in libraries)
    return found


@pytest.mark.ray
@pytest.mark.exhaustive
def test_the_roles_of_a_run_on_a_cluster(run_graph, monkeypatch, second_node, ray_cluster):
    """No role is a child of the main process, which sees itself alone: the roles report."""
    nodes = [ray_cluster.head_node.node_id, second_node.node_id]
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive=False: [])
    args = ("mode=async", "worker.num=2", "worker.proxies=2", "logger.report_s=0.2", "total_env_steps=4000")
    graph = run_graph("env=Pendulum-v1", *args, on_ray=True, nodes=nodes)
    processes = graph.progress.summary(0.0, 0)["processes"]
    roles = {"main", "proxy 0", "proxy 1", "worker 0", "worker 1", "trainer", "replay 0", "parameter server", "manage"}
    assert set(processes) == roles
    assert all(processes[role]["cpu_s"] > 0 and processes[role]["peak_rss_mb"] > 10 for role in roles)
    shown = graph.reports.console.status.roles
    assert (shown["worker"]["processes"], shown["proxy"]["processes"]) == (2, 2)
    assert shown["worker"]["cores"] > 0
