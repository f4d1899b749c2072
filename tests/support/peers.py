"""Groups of learners: in threads, or in separate processes, which answer one call at a time."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from drl_cli.testing.case import Together

_mine = {}  # in a peer's process: its group


@contextmanager
def peers(size, timeout_s=60.0):
    """Return an executor per rank; `submit(on_group, function, *args)` calls function(group, *args) there."""
    spawn = multiprocessing.get_context("spawn")
    executors = [ProcessPoolExecutor(1, spawn) for _ in range(size)]
    for started in [peer.submit(_start, rank, size, timeout_s) for rank, peer in enumerate(executors)]:
        started.result()
    port = executors[0].submit(_listen).result()
    for joined in [peer.submit(_join, port) for peer in executors]:
        joined.result()
    try:
        yield executors
    finally:
        for peer in executors:
            peer.shutdown(wait=False, cancel_futures=True)


def together(function, *args):
    """Return function(group, *args) of two learners in threads of this process."""
    groups, results = Together.pair(), {}
    groups[0].run(lambda rank: results.update({rank: function(groups[rank], *args)}))
    return results[0], results[1]


def on_group(function, *args):
    return function(_mine["group"], *args)


def pid(group):
    """Start the process of this peer."""
    return os.getpid()


def _start(rank, size, timeout_s):
    import torch

    from drl_cli.chains.process_group import ProcessGroup

    torch.set_num_threads(1)
    _mine["group"] = ProcessGroup(rank, size, timeout_s)


def _listen():
    return _mine["group"].listen("127.0.0.1")


def _join(port):
    import torch

    _mine["group"].join("127.0.0.1", port, torch.device("cpu"))
