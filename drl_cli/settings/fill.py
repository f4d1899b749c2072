"""Fill in the config values that depend on this machine or on the nodes of a cluster."""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

from drl_cli.runtime.config import Config
from drl_cli.runtime.place.cluster import Node
from drl_cli.utils.cores import num_cores

THREAD_PRODUCT = 2**26
"""A trainer gets one thread per this number of multiplications, which take one core about 1.5 ms."""


def fill(config: Config, nodes: Sequence[Node] = ()) -> Config:
    """Return the config with the numbers of workers, proxies and threads for this machine, or for a cluster's nodes."""
    single, proxies, num = config.mode == "single", config.worker.proxies, config.worker.num
    if proxies == "auto":
        proxies = 0 if single else len(nodes)
    if num is None:
        cpus = int(sum(node.cpus for node in nodes)) if nodes else num_cores()
        share = max(1, proxies)
        num = max(share, (1 if single else cpus - config.trainer.num) // share * share)  # equal for all proxies
    config = dataclasses.replace(config, worker=dataclasses.replace(config.worker, num=num, proxies=proxies))
    if config.trainer.threads != "auto":
        return config
    return dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, threads=num_threads(config)))


def num_threads(config: Config) -> int:
    """Return the number of threads of a trainer: one per THREAD_PRODUCT multiplications in the largest hidden layer.

    The maximum is cores / trainers. In mode=async, the workers' cores are subtracted first.
    """
    cores = num_cores() - (config.num_workers if config.mode == "async" else 0)
    rows = config.trainer.batch_size // config.trainer.num
    largest = max((rows * inputs * outputs for inputs, outputs in pairwise(config.network.hidden)), default=0)
    return max(1, min(cores // config.trainer.num, largest // THREAD_PRODUCT))
