"""Slots: the number of jobs that this machine or a cluster can run at once, and the function that starts a job."""

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from math import ceil
from pathlib import Path
from typing import NamedTuple

from drl_cli.errors import LOST, MISSING, ClusterUnfit, UsageError
from drl_cli.metrics.display import announce, erase
from drl_cli.runtime.config import Config
from drl_cli.runtime.place.cluster import Node
from drl_cli.settings.device import check_gpus, gain
from drl_cli.sweeps.launcher import Process, Slot, Start, start_here
from drl_cli.utils import gpu
from drl_cli.utils.machine import cores, free_memory

PROCESS_BYTES = 300 * 2**20
"""Bytes of memory of each process of a job, without replay."""
JOBS_PER_GPU = 4
"""Maximum number of jobs that share a GPU. Each job takes about 0.5 GB of its memory, and they run in turns."""
PASSED_ON = ("DRL_", "WANDB_")
"""Prefixes of the environment variables that are copied to a job on a node. The node sets all other variables."""


class Slots(NamedTuple):
    """A slot for each job that can run at once, and the function that starts a job."""

    slots: list[Slot]
    asked: int  # the value of sweep.jobs, or 0 for auto
    start: Start


def check_cluster(configs: Sequence[Config], folder: Path) -> None:
    """Join the jobs' cluster, if any. Raise UsageError if a node can't run the jobs or read the sweep's folder."""
    addresses = {config.ray.address for config in configs}
    if len(addresses) > 1:
        raise UsageError("ray.address: all jobs of a sweep run on one cluster: give one value")
    (address,) = addresses
    if address is None:
        return
    from drl_cli.preflight.pace import pace_problems
    from drl_cli.runtime.place.launch import Cluster
    from drl_cli.runtime.place.nodes import node_gpus, unshared
    from drl_cli.settings.fill import fill

    announce(sys.stdout, f"asking the nodes of the cluster at {address}")
    try:
        modules = sorted({name for config in configs for name in config.outside_modules})
        cluster = Cluster(address, configs[0].env, modules, folder=os.getcwd())
    except ClusterUnfit as error:
        raise UsageError(error.problems, error.exit_code) from error
    if problems := [problem for config in configs for problem in pace_problems(fill(config, cluster.nodes))]:
        raise UsageError(list(dict.fromkeys(problems)))
    if named := [config for config in configs if config.device == "cuda"]:
        found = node_gpus(cluster.nodes)
        for config in named:
            check_gpus(config, found, "in the cluster")
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    lacking = [f"{node} has no drl-cli: install it there" for node in cluster.lacking]
    if problems := lacking or unshared(cluster.nodes, existing, Path.cwd()):
        raise UsageError(problems, MISSING)
    erase(sys.stdout)


def job_slots(configs: Sequence[Config]) -> Slots:
    """Return the slots for jobs with these configs. Raise UsageError if the cluster has no node."""
    from drl_cli.settings.fill import fill

    if not configs:
        return Slots([Slot()], 0, start_here)
    config = configs[0]
    asked = 0 if config.sweep.jobs == "auto" else config.sweep.jobs
    if config.ray.address:
        from drl_cli.runtime.place.nodes import live_nodes

        if not (nodes := live_nodes()):
            raise UsageError(f"ray.address: the cluster at {config.ray.address} has no node with a CPU any more", LOST)
        count, start = cluster_slots(nodes, [fill(config, nodes) for config in configs])
        return Slots([Slot()] * min(count, asked or count), asked, start)
    filled = [fill(config) for config in configs]
    need, memory = max(map(busy_processors, filled)), max(map(memory_bytes, filled))
    visible, most = gpu_shares(filled), free_memory() // max(1, memory)
    shares = share_processors(cores(), need, min(most, len(visible)) if visible else most, asked)
    return Slots([*map(Slot, shares, chain(visible, repeat("")))], asked, start_here)


def gpu_shares(configs: Sequence[Config]) -> list[str]:
    """Return CUDA_VISIBLE_DEVICES for each job that can run at once on the GPUs here; [] if no job takes a GPU.

    A job that names its GPU by number sees all GPUs.
    """
    if not any(gpu.expects_gpu(config.device) and takes_gpu(config) for config in configs):
        return []
    ids, num = [one.id for one in gpu.gpus() if not one.problem], max(config.trainer.num for config in configs)
    groups = [",".join(ids[first : first + num]) for first in range(0, len(ids) - num + 1, num)]
    return (groups if not any(":" in config.device for config in configs) else [""] * len(groups)) * JOBS_PER_GPU


def share_processors(processors: Sequence[int], need: int, most: int, asked: int = 0) -> list[frozenset[int]]:
    """Share the processors among jobs that need `need` each. `most`, and `asked` if not 0, limit the number of jobs."""
    count = max(1, min(len(processors) // max(1, need), most, asked or len(processors)))
    if count == 1:
        return [frozenset()]
    share = len(processors) // count
    return [frozenset(processors[i * share : (i + 1) * share]) for i in range(count)]


def cluster_slots(nodes: Sequence[Node], configs: Sequence[Config]) -> tuple[int, Start]:
    """Return the number of jobs that fit on the nodes (at least 1), and a function that starts a job on a free node."""
    from drl_cli.runtime.place.nodes import NodeProcess

    # a job with mode=single runs on one node; any other job uses an equal share of every node
    parts = 1 if any(config.is_one_process for config in configs) else len(nodes)
    cpus, memory = (ceil(max(map(need, configs)) / parts) for need in (busy_processors, memory_bytes))
    count = sum(min(int(node.cpus) // cpus, node.memory // memory) for node in nodes) // parts
    gpus = [gpu_share(config) for config in configs if takes_gpu(config)] if any(node.gpus for node in nodes) else []
    if gpus:
        count = min(count, int(sum(node.gpus for node in nodes) / max(gpus)))
    own = min(gpus, default=0)
    reserved = own if own < 1 else 0  # Ray reserves the whole GPUs of the trainers
    largest = max(nodes, key=lambda node: (node.cpus, node.memory))
    cpus, memory = min(cpus, int(largest.cpus)), min(memory, largest.memory)  # a larger job would wait for ever

    def start(slot: Slot, arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
        passed_on = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        return NodeProcess(arguments, passed_on | dict(variables), log, cpus, memory, reserved)

    return max(1, count), start


def gpu_share(config: Config) -> float:
    """Return how many GPUs of a cluster a job takes: one for each trainer that Ray starts, else a share of one."""
    return config.trainer.num if config.trains_apart else 1 / JOBS_PER_GPU


def busy_processors(config: Config) -> int:
    """Return the number of processors that a job keeps busy."""
    threads = config.trainer.threads if isinstance(config.trainer.threads, int) else 1
    return threads if config.is_one_process else config.num_workers + config.trainer.num * threads


def memory_bytes(config: Config) -> int:
    """Return the bytes of memory that a job needs for its processes, Ray's processes and replay."""
    from drl_cli.preflight.environment import environment_spec
    from drl_cli.settings.fill import replay_bytes, with_capacity

    processes, spec = 5 if config.is_one_process else 6 + config.num_workers, environment_spec(config)
    return processes * PROCESS_BYTES + replay_bytes(with_capacity(config, spec), spec)


def takes_gpu(config: Config) -> bool:
    """Return whether the run takes a GPU where there is one."""
    if config.device != "auto":
        return config.device != "cpu"
    from drl_cli.preflight.environment import environment_spec  # slow to import

    return gain(config, environment_spec(config)) is not None
