import itertools
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from drl_cli.errors import ClusterUnfit, UsageError
from drl_cli.runtime.place import cluster_nodes, launch
from drl_cli.settings.build import build
from drl_cli.settings.compose import mapping
from drl_cli.settings.fill import fill
from drl_cli.sweeps import jobs, launcher
from drl_cli.sweeps.launcher import (
    Launcher,
    Slot,
    check_cluster,
    job_slots,
    local_slots,
    memory_bytes,
    node_share,
    share_processors,
    start_here,
)
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils import gpu
from drl_cli.utils.gpu import Gpu
from drl_cli.utils.machine import Node


class Process:
    """A process that waits for room in its first `begun` looks, and ends with `code` after `ended` looks."""

    def __init__(self, begun, ended, code=0):
        self.begun, self.ended, self.code, self.returncode, self.signals = begun, ended, code, None, []

    def has_begun(self):
        self.begun -= 1
        return self.begun < 0

    def poll(self):
        self.ended -= 1
        if self.ended < 0 and self.returncode is None:
            self.returncode = self.code
        return self.returncode

    def send_signal(self, number):
        self.signals.append(number)
        self.returncode = 130

    def kill(self):
        self.returncode = -9


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(launcher, "POLL_S", 0)


def launched(sweep, processes, tick=list, changed=lambda job: None):
    """Run one job for each process; return the arguments of each start."""
    started = []

    def start(*args):
        started.append(args)
        return processes[len(started) - 1]

    Launcher(sweep, [Slot()] * len(processes), start, changed, lambda: tick() or ()).run(sweep.jobs[: len(processes)])
    return started


def test_a_job_waits_until_its_process_has_room(sweep):
    seen, states = [], []
    started = launched(
        sweep,
        [Process(0, 3), Process(3, 5), Process(9, 2, -9)],
        lambda: states.append([job.status for job in sweep.jobs]),
        lambda job: seen.append((job.number, job.status)),
    )
    assert states[0] == ["running", "waiting", "waiting"]
    assert seen == [(1, "running"), (2, "running"), (3, "killed"), (1, "done"), (2, "done")]
    assert [job.exit_code for job in Sweep.open(sweep.folder).jobs] == [0, 0, -9]
    arguments = ["-m", "drl_cli.cli.train", "--config-name", "train", "env=A", "seed=1"]
    assert started[1] == (Slot(), arguments, {"DRL_JOB_FILE": f"{sweep.folder}/2.json"}, sweep.folder / "2.log")


def test_the_run_of_a_job_is_known_while_it_runs(sweep):
    seen = []

    def tick():
        seen.append(json.loads((sweep.folder / "sweep.json").read_text())["jobs"][0]["run"])
        if len(seen) == 2:
            sweep.file(sweep.jobs[0]).write_text('{"run": "/runs/a"}')

    launched(sweep, [Process(0, 9)], tick)
    assert (seen[:2], set(seen[2:-1])) == ([None, None], {"/runs/a"})
    assert len(seen) > 5


def test_a_job_begins_in_the_slot_of_one_that_has_ended(sweep):
    slots, seen = [Slot(gpus="0"), Slot(gpus="1")], []
    processes = iter([Process(0, 99), Process(0, 0), Process(0, 0)])

    def start(slot, *args):
        seen.append(slot.gpus)
        return next(processes)

    Launcher(sweep, slots, start).run(sweep.jobs)
    assert seen == ["0", "1", "1"]


def test_a_signal_reaches_all_jobs_and_no_other_job_starts(sweep):
    processes, looks = [Process(0, 99), Process(99, 99)], itertools.count()
    running = Launcher(
        sweep,
        [Slot()] * 2,
        lambda *args: processes[int(args[1][-1][-1])],
        tick=lambda: os.kill(os.getpid(), signal.SIGINT) or () if next(looks) == 2 else (),
    )
    with pytest.raises(SystemExit) as ended:
        running.run(sweep.jobs)
    assert (ended.value.code, [process.signals for process in processes]) == (130, [[signal.SIGINT]] * 2)
    assert [job.status for job in sweep.jobs] == ["interrupted", "interrupted", "waiting"]


def test_a_signal_is_passed_on_once_while_a_job_saves(sweep):
    class Saving(Process):
        def send_signal(self, number):
            self.signals.append(number)

    process, looks = Saving(0, 6, 130), itertools.count()
    with pytest.raises(SystemExit):
        launched(sweep, [process], lambda: signal.raise_signal(signal.SIGINT) if next(looks) in (0, 3) else None)
    assert next(looks) > 5
    assert process.signals == [signal.SIGINT, signal.SIGINT]


def test_a_stopped_job_gets_sigterm(sweep):
    process = Process(0, 99)
    launched(sweep, [process], lambda: sweep.jobs)
    assert process.signals == [signal.SIGTERM]


def test_all_processes_end_after_an_exception(sweep):
    process = Process(0, 99)
    with pytest.raises(ZeroDivisionError):
        launched(sweep, [process], lambda: 1 / 0)
    assert process.returncode == -9


@pytest.mark.skipif(sys.platform != "linux", reason="prctl and sched_setaffinity are Linux's")
def test_a_process_on_this_machine(tmp_path, monkeypatch):
    """It has only its processors, and only a job asks to end with its sweep."""
    processors = {min(os.sched_getaffinity(0))}
    shown = "os.sched_getaffinity(0), os.environ['A'], os.environ['CUDA_VISIBLE_DEVICES']"
    code = f"import os, time; time.sleep(0.2); print({shown})"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    for gpus, visible in (("5", "5"), ("", "2,5")):
        process = start_here(Slot(frozenset(processors), gpus), ["-c", code], {"A": "b"}, tmp_path / f"log{gpus}")
        assert process.has_begun()
        assert (process.wait(30), (tmp_path / f"log{gpus}").read_text()) == (0, f"{processors} b {visible}\n")
    asked = []
    library = SimpleNamespace(prctl=lambda *values: asked.append(values))
    monkeypatch.setattr(launcher.ctypes, "CDLL", lambda name: library)
    monkeypatch.delenv("DRL_JOB_FILE", raising=False)
    launcher.end_with_sweep()
    assert asked == []
    monkeypatch.setenv("DRL_JOB_FILE", "1.json")
    launcher.end_with_sweep()
    assert asked == [(1, signal.SIGTERM)]


GB = 2**30
LARGE, SMALL = Node("a1", "10.0.0.1", 8.0, 64 * GB), Node("b1", "10.0.0.2", 4.0, 64 * GB)
LOCAL = ("env=Pendulum-v1", "replay.capacity=10000")


def typed(*args):
    """Return the config of a job as it is typed, on the cluster at a:1."""
    return build(mapping([*LOCAL, "ray.address=a:1", *args]))


@pytest.mark.parametrize(
    ("processors", "need", "most", "asked", "expected"),
    [
        *[([0, 1], 1, 10, 0, [{0}, {1}]), ([0, 1], 2, 10, 0, [set()]), ([2, 3, 5, 7], 2, 10, 0, [{2, 3}, {5, 7}])],
        *[([0, 1, 2, 3, 4], 2, 10, 0, [{0, 1}, {2, 3}]), ([0, 1, 2, 3], 1, 0, 0, [set()])],
        *[([0, 1, 2, 3], 1, 10, 2, [{0, 1}, {2, 3}]), ([0, 1], 1, 10, 1, [set()]), ([0, 1], 1, 10, 8, [{0}, {1}])],
    ],
)
def test_jobs_share_the_processors(processors, need, most, asked, expected):
    assert share_processors(processors, need, most, asked) == expected


@pytest.mark.parametrize(
    ("args", "expected", "asked"),
    [
        (["mode=single"], [{0}, {1}, {2}, {3}], 0),
        (["mode=single", "sweep.jobs=2"], [{0, 1}, {2, 3}], 2),
        (["mode=async", "worker.num=1"], [{0, 1}, {2, 3}], 0),
        (["mode=async", "worker.num=1", "trainer.num=2"], [set()], 0),
        (["mode=sync", "worker.num=3"], [set()], 0),
    ],
)
def test_the_slots_of_this_machine(args, expected, asked):
    config = build(mapping([*LOCAL, *args]))
    slots = local_slots([config, config], [0, 1, 2, 3], 2**40, asked)
    assert slots == [Slot(frozenset(one)) for one in expected]
    assert len(local_slots([config], [0, 1, 2, 3], 3 * memory_bytes(fill(config)), asked)) == min(len(expected), 3)
    assert job_slots([config])[1:] == (asked, start_here)


WIDE = "network.hidden=[512]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "gpus", "visible"),
    [
        ([["device=cuda"]], "ab", ["a", "b"] * 4),
        ([["device=cpu"]], "ab", [""] * 64),
        ([[]], "ab", [""] * 64),  # auto is the CPU for a small network
        ([[], [WIDE]], "ab", ["a", "b"] * 4),
        ([[WIDE]], "", [""] * 64),  # all jobs take the CPU
        ([[WIDE, "sweep.jobs=3"]], "ab", ["a", "b", "a"]),
        ([["device=cuda:0"], ["device=cuda:1"]], "ab", [""] * 8),  # each job sees the GPU that it names
        ([["device=cuda", "mode=async", "worker.num=1", "trainer.num=2"]], "abcde", ["a,b", "c,d"] * 4),
    ],
)
def test_jobs_share_the_gpus(jobs, gpus, visible, monkeypatch):
    found = (*(Gpu(id, "H200") for id in gpus), Gpu("x", "K80", "no kernel image"))
    monkeypatch.setattr(gpu, "gpus", lambda: found)
    monkeypatch.setattr(gpu, "has_driver", lambda: True)
    configs = [build(mapping([*LOCAL, "mode=single", *words])) for words in jobs]
    asked = configs[0].sweep.jobs
    slots = local_slots(configs, range(64), 2**44, 0 if asked == "auto" else asked)
    assert [slot.gpus for slot in slots] == visible
    assert len({slot.processors for slot in slots}) == len(visible)


@pytest.mark.parametrize(
    ("args", "there", "count", "cpus"),
    [
        (["mode=single"], [LARGE, SMALL], 12, 1),
        (["mode=single", "trainer.threads=3"], [LARGE, SMALL], 3, 3),  # two and one; together they would hold four
        (["mode=single", "trainer.threads=16"], [SMALL, LARGE], 1, 8),  # no node has more: it takes a whole one
        (["mode=async", "worker.num=3"], [LARGE, SMALL], 3, 2),  # two of its four processors on each node
        (["mode=sync", "worker.num=3", "trainer.num=2", "trainer.threads=2"], [LARGE, SMALL], 1, 4),
        (["mode=async", "total_env_steps=1e7"], [LARGE, SMALL], 1, 6),  # all processors of both
    ],
)
def test_the_shares_of_a_cluster(args, there, count, cpus):
    config = typed(*args)
    share = node_share(there, [config, config])
    assert (share.num, share.cpus, share.gpus) == (count, cpus, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "gpus", "count", "reserved"),
    [
        ([["mode=single", "device=cuda"]], (1, 0), 4, 0.25),
        ([["mode=single", WIDE]], (1, 1), 8, 0.25),
        ([["mode=single"]], (1, 1), 12, 0),  # auto is the CPU for a small network
        ([["mode=single", WIDE]], (0, 0), 12, 0),
        ([["mode=async", "worker.num=1", "device=cuda"]], (1, 1), 2, 0),  # Ray reserves the GPUs of the trainers
        ([["mode=sync", "worker.num=2", "trainer.num=2", "device=cuda"]], (2, 1), 1, 0),
        ([["mode=sync", "worker.num=2", "device=cuda"]], (1, 0), 3, 0.25),
    ],
)
def test_jobs_share_the_gpus_of_a_cluster(jobs, gpus, count, reserved):
    there = [replace(node, gpus=num) for node, num in zip((LARGE, SMALL), gpus, strict=True)]
    share = node_share(there, [typed(*words) for words in jobs])
    assert (share.num, share.gpus) == (count, reserved)


def test_a_job_on_a_node_gets_memory_and_variables(monkeypatch, tmp_path):
    config, started = typed("mode=single", "worker.num=1", "sweep.jobs=3"), []
    need = memory_bytes(config)
    assert GB < need < 3 * GB
    nodes = [Node("a", "1", 8.0, 3 * need), Node("b", "2", 8.0, need + 1)]
    monkeypatch.setattr(cluster_nodes, "live_nodes", lambda: nodes)
    monkeypatch.setattr(cluster_nodes, "NodeProcess", lambda *args: started.append(args))
    monkeypatch.setattr(launcher.os, "environ", {"DRL_DEBUG": "1", "WANDB_API_KEY": "k", "PATH": "/here"})
    assert node_share(nodes, [config]).num == 4
    slots, asked, start = job_slots([config])
    assert (len(slots), asked) == (3, 3)
    start(Slot(), ["-m", "drl"], {"DRL_JOB_FILE": "1.json"}, tmp_path)
    variables = {"DRL_DEBUG": "1", "WANDB_API_KEY": "k", "DRL_JOB_FILE": "1.json"}
    assert started == [(["-m", "drl"], variables, tmp_path, 1, need, 0)]
    nodes.clear()
    with pytest.raises(UsageError, match="a:1 has no node with a CPU any more") as raised:
        job_slots([config])
    assert raised.value.exit_code == 6


@pytest.mark.parametrize(("args", "processes"), [(["mode=single"], 5), (["mode=async", "worker.num=3"], 6 + 3)])
def test_every_process_of_a_job_needs_memory(monkeypatch, args, processes):
    monkeypatch.setattr("drl_cli.settings.fill.replay_bytes", lambda config, spec: 7)
    assert memory_bytes(typed(*args)) == processes * launcher.PROCESS_BYTES + 7


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of one node. `joined` and `looked` have the arguments of Cluster and unshared."""
    made = SimpleNamespace(joined=[], lacking=[], unseen=[], looked=[], nodes=[LARGE], problem=None)

    def join(*args, folder):
        made.joined.append((*args, folder))
        if made.problem:
            raise ClusterUnfit([made.problem])
        return made

    monkeypatch.setattr(launch, "Cluster", join)
    monkeypatch.setattr(cluster_nodes, "unshared", lambda *args: made.looked.append(args) or made.unseen)
    return made


@pytest.mark.slow
def test_the_nodes_are_asked_before_the_first_job(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    configs = [typed("seed=1"), typed("manage.evaluator=json.decoder:My"), typed("manage.evaluator=json:My")]
    check_cluster(configs, tmp_path / "outputs" / "new")
    assert cluster.joined == [("a:1", configs[0].env, ["json", "json.decoder"], str(tmp_path))]
    assert cluster.looked == [([LARGE], tmp_path, tmp_path)]  # the folder in which the sweep's will be made
    check_cluster([build(mapping([*LOCAL]))], Path("/"))  # without a cluster no node is asked
    assert len(cluster.joined) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "args", "problem", "code"),
    [
        ({"unseen": ["node x does not see /y"]}, (), "node x does not see /y", 3),
        ({"lacking": [SMALL]}, (), "node 10.0.0.2 (b1) has no drl-cli: install it there", 3),
        ({"problem": "no Ray cluster answers"}, (), "no Ray cluster answers", 2),
        (
            {"nodes": [LARGE, SMALL]},
            ("mode=sync", "worker.num=1"),
            "worker.num=1 can't be shared equally by worker.proxies=2",
            2,
        ),
        ({}, ("ray.address=b:1",), "ray.address: all jobs of a sweep run on one cluster: give one value", 2),
    ],
)
def test_a_cluster_that_can_not_run_the_jobs_is_one_line(cluster, tmp_path, change, args, problem, code):
    vars(cluster).update(change)
    first = () if "ray.address=b:1" in args else args
    with pytest.raises(UsageError) as raised:
        check_cluster([typed(*first), typed(*args, "seed=1")], tmp_path)
    assert (raised.value.problems, raised.value.exit_code) == ([problem], code)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "there", "line"),
    [
        (["device=cuda", "mode=async"], [Gpu("0", "H200")], None),
        (["device=cuda", "mode=single"], [Gpu("0", "H200")], None),
        (["device=cuda:1", "mode=single"], [], None),  # the job finds out, because nodes have different GPUs
        (["mode=async", WIDE], [], None),
        (["device=cuda", "mode=async"], [], "device=cuda, but torch finds no CUDA device in the cluster; .*"),
        (["device=cuda", "mode=async"], [Gpu("0", "K80", "old")], "device=cuda: torch can't use K80: old; .*"),
    ],
)
def test_the_gpus_of_the_nodes_count_for_a_sweep(cluster, tmp_path, monkeypatch, words, there, line):
    monkeypatch.setattr(gpu, "gpus", tuple)
    monkeypatch.setattr(cluster_nodes, "node_gpus", lambda nodes: there)
    if line is None:
        check_cluster([typed("device=cpu"), typed(*words)], tmp_path)
        return
    with pytest.raises(UsageError, match=line) as refused:
        check_cluster([typed(*words)], tmp_path)
    assert refused.value.exit_code == 3


@pytest.mark.slow
def test_the_runs_of_a_name_are_noted_once_for_all_jobs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("drl_cli.preflight.preflight.preflight", lambda *args: None)
    for i in range(2):
        best = tmp_path / f"Ant/sac-async/2026010{i}-s0/checkpoints/best"
        best.mkdir(parents=True)
        (best / "manifest.json").write_text("{}")
        (best.parents[1] / "run.json").write_text('{"name": "wide"}')
    made = Sweep(Path(), [])
    made.add([["env=Pendulum-v1", "load_weights=wide", f"seed={i}", f"output_dir={tmp_path}"] for i in range(3)])
    assert len(jobs.check_jobs(made, made.jobs, {})) == 3
    (note,) = capsys.readouterr().err.splitlines()
    assert note == "note: wide is 20260101-s0; 1 other run has this name; to take it, type its id: 20260100-s0"
