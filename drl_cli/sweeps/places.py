"""Places: how many jobs of a sweep there is room for, here or on the nodes of a cluster, and what starts them there."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

import psutil

from drl_cli.errors import LOST, MISSING, UsageError
from drl_cli.metrics.display import announce, erase
from drl_cli.runtime.config import Config
from drl_cli.runtime.place.cluster import Node
from drl_cli.sweeps.launcher import Process, Start, slots, start_here
from drl_cli.utils.cores import cores

PROCESS_BYTES = 300 * 2**20
"""Memory of each process of a job, without its rows."""
TAKEN_ALONG = ("DRL_", "WANDB_")
"""How environment variables begin that jobs on a cluster's nodes have from here; the others are those of the node."""


def join(configs: Sequence[Config], folder: Path) -> None:
    """Join the cluster of these jobs, where they have one; raises UsageError where a node of it can't run them.

    `folder` is the sweep's, or where a new one's will be made.
    """
    addresses = {config.ray.address for config in configs}
    if len(addresses) > 1:
        raise UsageError("ray.address: all jobs of a sweep run on one cluster: give one value")
    (address,) = addresses
    if address is None:
        return
    from drl_cli.errors import ClusterUnfit
    from drl_cli.preflight.pace import pace_problems
    from drl_cli.runtime.place.launch import Cluster
    from drl_cli.runtime.place.nodes import unshared
    from drl_cli.settings.fill import fill

    announce(sys.stdout, f"asking the nodes of the cluster at {address}")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        modules = sorted({name for config in configs for name in config.outside_modules})
        cluster = Cluster(address, configs[0].env, modules, folder=os.getcwd())
    except ClusterUnfit as error:
        raise UsageError(error.problems, error.exit_code) from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray puts its own in front
    if problems := [problem for config in configs for problem in pace_problems(fill(config, cluster.nodes))]:
        raise UsageError(list(dict.fromkeys(problems)))
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    lacking = [f"{node} has no drl-cli: install it there" for node in cluster.lacking]
    if problems := lacking or unshared(cluster.nodes, there, Path.cwd()):
        raise UsageError(problems, MISSING)
    erase(sys.stdout)


def room(configs: Sequence[Config]) -> tuple[list[set[int]], int, Start]:
    """The processors of each place for a job, an empty set where it may use all; how many places were asked for, or 0;
    what starts a job on one.

    The configs are those that were typed. Raises UsageError where the cluster has no node any more.
    """
    from drl_cli.settings.fill import fill

    if not configs:
        return [set()], 0, start_here
    config = configs[0]
    most = 0 if config.sweep.jobs == "auto" else config.sweep.jobs
    if config.ray.address:
        from drl_cli.runtime.place.nodes import live_nodes

        if not (nodes := live_nodes()):
            raise UsageError(f"ray.address: the cluster at {config.ray.address} has no node with a CPU any more", LOST)
        count, start = room_on(nodes, [fill(config, nodes) for config in configs])
        return [set()] * min(count, most or count), most, start
    configs = [fill(config) for config in configs]
    need, memory = max(map(processors, configs)), max(map(memory_needed, configs))
    return slots(cores(), need, psutil.virtual_memory().available, memory, most or None), most, start_here


def room_on(nodes: Sequence[Node], configs: Sequence[Config]) -> tuple[int, Start]:
    """How many jobs the nodes of a cluster hold, at least one; and what starts one where Ray finds room for it.

    A job of mode=single is on one node. Others are on all of them, with a share on each, and where the process itself
    goes it takes that share.
    """
    from drl_cli.runtime.place.nodes import NodeProcess

    parts = 1 if any(config.mode == "single" for config in configs) else len(nodes)
    cpus, memory = (ceil(max(map(need, configs)) / parts) for need in (processors, memory_needed))
    count = sum(min(int(node.cpus) // cpus, node.memory // memory) for node in nodes) // parts
    largest = max(nodes, key=lambda node: (node.cpus, node.memory))
    cpus, memory = min(cpus, int(largest.cpus)), min(memory, largest.memory)  # more Ray would wait for, for ever

    def start(slot: set[int], arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
        along = {name: value for name, value in os.environ.items() if name.startswith(TAKEN_ALONG)}
        return NodeProcess(arguments, along | dict(variables), log, cpus, memory)

    return max(1, count), start


def processors(config: Config) -> int:
    """What a job keeps busy."""
    threads = config.trainer.threads if isinstance(config.trainer.threads, int) else 1
    return threads if config.mode == "single" else config.num_workers + config.trainer.num * threads


def memory_needed(config: Config) -> int:
    """Bytes: its processes, Ray's, and replay."""
    from drl_cli.preflight.environment import environment_spec
    from drl_cli.preflight.resources import replay_bytes

    roles = 5 if config.mode == "single" else 6 + config.num_workers
    return roles * PROCESS_BYTES + replay_bytes(config, environment_spec(config))
