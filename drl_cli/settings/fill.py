"""Fill in the values that depend on this machine or on the nodes of a cluster."""

import dataclasses
from collections.abc import Sequence

from drl_cli.runtime.config import Config
from drl_cli.runtime.place.cluster import Node
from drl_cli.utils.cores import num_cores


def fill(config: Config, nodes: Sequence[Node] = ()) -> Config:
    """Return the config with the number of workers and proxies for this machine, or for the nodes of a cluster."""
    single, proxies, num = config.mode == "single", config.worker.proxies, config.worker.num
    if proxies == "auto":
        proxies = 0 if single else len(nodes)
    if num is None:
        cpus = int(sum(node.cpus for node in nodes)) if nodes else num_cores()
        share = max(1, proxies)
        num = max(share, (1 if single else cpus - config.trainer.num) // share * share)  # proxies have equal shares
    return dataclasses.replace(config, worker=dataclasses.replace(config.worker, num=num, proxies=proxies))
