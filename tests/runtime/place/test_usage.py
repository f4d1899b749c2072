"""Usage: whose processor time it was, that of dead processes too; the roles of a real run."""

import subprocess
import sys

import psutil
import pytest
from graphs import COUNTER

from drl_cli.runtime.place.usage import Usage

BURN = "import time; until = time.process_time() + 0.2\nwhile time.process_time() < until: pass\nprint(flush=True)\n"


def child(title):
    """A process with this title that has used 0.2 s, and waits."""
    command = [title, "-c", BURN + "input()"]
    process = subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def end(process):
    process.communicate()
    assert not psutil.pid_exists(process.pid)


def test_time_counts_by_role_and_stays_when_a_process_has_ended():
    usage = Usage()
    first, other = child("ray::worker 97.collect"), child("/bin/gcs_server")
    total = usage.sample()
    once = usage.by_role()
    used = psutil.Process(first.pid).cpu_times()
    end(first)
    second = child("ray::worker 97")
    usage.sample()
    twice = usage.by_role()
    end(second)
    end(other)
    assert 0.2 <= once["worker 97"]["cpu_s"] <= used.user + used.system
    assert once["worker 97"]["peak_rss_mb"] >= 1
    assert once["ray"]["cpu_s"] >= 0.2
    assert total / 2**20 == pytest.approx(sum(role["peak_rss_mb"] for role in once.values()))
    assert once["worker 97"]["cpu_s"] + 0.2 <= twice["worker 97"]["cpu_s"]
    assert twice["worker 97"]["peak_rss_mb"] < 1.8 * once["worker 97"]["peak_rss_mb"]  # they were not there at once


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("ray::parameter server.call", "parameter server"),
        ("ray::trainer", "trainer"),
        ("ray::trainer 1.call", "trainer 1"),
        ("ray::replay 0", "replay 0"),
        ("ray::IDLE", "ray"),
        ("ray::RuntimeEnvAgent", "ray"),
        ("ray::workers_of_others", "ray"),
    ],
)
def test_roles_are_told_by_titles(title, role):
    process = subprocess.Popen([title, "-c", "input()"], executable=sys.executable, stdin=subprocess.PIPE)
    assert Usage().role(psutil.Process(process.pid)) == role
    end(process)


def test_a_run_in_one_process(run_graph):
    processes = run_graph(COUNTER, "mode=async").progress.summary(0.0, 0)["processes"]
    assert processes["main"]["cpu_s"] > 0
    assert processes["main"]["peak_rss_mb"] > 10


@pytest.mark.ray
def test_the_roles_of_a_run_on_ray(run_graph):
    graph = run_graph(COUNTER, "mode=async", "worker.num=2", "worker.proxies=1", "replay.shards=2", on_ray=True)
    processes = graph.progress.summary(0.0, 0)["processes"]
    shards = {"replay 0", "replay 1"}
    roles = {"main", "proxy 0", "worker 0", "worker 1", "trainer", "parameter server", "manage", "ray"} | shards
    assert roles <= set(processes)
    assert all(processes[role]["cpu_s"] > 0 and processes[role]["peak_rss_mb"] > 10 for role in roles)
