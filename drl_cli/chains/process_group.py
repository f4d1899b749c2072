"""ProcessGroup: the trainers that make each update together. Each trainer uses some of the rows of the batch."""

from __future__ import annotations

import datetime
import os
from typing import Any

from drl_cli.chains.present import recording
from drl_cli.utils import machine
from drl_cli.utils.lazy import Tensor, torch


class PeerLost(Exception):
    """Another trainer has died, or has not answered in time."""


class ProcessGroup:
    """Connects trainer number `rank` to the other trainers. There are `size` trainers in total.

    If `size` > 1, call `join` before the first update. A trainer waits at most `timeout_s` seconds for the other
    trainers. All trainers have to call the same methods in the same order.
    """

    def __init__(self, rank: int = 0, size: int = 1, timeout_s: float = 300.0) -> None:
        self.rank, self.size, self.timeout = rank, size, datetime.timedelta(seconds=timeout_s)
        self.device: torch.device | None = None  # of the messages; `join` sets it
        self.store: Any = None  # Any: torch.distributed.TCPStore, which torch's type stubs leave out
        self.broken: PeerLost | None = None

    def listen(self, host: str) -> int:
        """Listen for the other trainers at a free port of the address `host` alone. Return the port.

        Only rank 0 calls this.
        """
        listener = machine.listener(host)
        port: int = listener.getsockname()[1]
        self.store = self._store(host, port, listener.detach())
        return port

    def join(self, host: str, port: int, device: torch.device) -> None:
        """Connect to the other trainers. `host` and `port` are the address at which the trainer of rank 0 listens.

        All tensors for the other trainers must be on `device`. Raise PeerLost if this fails, or takes longer than the
        timeout.
        """
        self.device = device
        # Without this, NCCL would notice a lost trainer in a thread, which ends the process in place of an exception.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        try:
            if self.store is None:  # rank 0 made its store in `listen`
                self.store = self._store(host, port)
            # Have gloo listen at the interface that leads to `host`. By default, it is the one of the machine's name.
            if interface := machine.interface(machine.own_address(host)):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            torch.distributed.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=self.store,
                rank=self.rank,
                world_size=self.size,
                timeout=self.timeout,
            )
        except (OSError, RuntimeError) as error:
            raise PeerLost(f"trainer {self.rank} of {self.size} found no group: {error}") from error

    def mean_(self, tensor: Tensor) -> None:
        """Replace a tensor by its mean over all trainers, in place.

        Raise PeerLost if a trainer is lost, or was lost in an earlier call.
        """
        if self.size == 1:
            return
        recorder = recording()
        if recorder is None:
            self._mean_(tensor)
        else:  # call `_mean_` now, and again whenever the recorded update is repeated
            recorder.effect(self._mean_, tensor)

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenate the tensors `[N, ...]` of all trainers in order of rank: `[size * N, ...]`.

        Raise PeerLost as `mean_` does.
        """
        if self.size == 1:
            return tensor
        by_rank = tensor.new_zeros(self.size, *tensor.shape)
        by_rank[self.rank] = tensor
        self._all_reduce(by_rank, torch.distributed.ReduceOp.SUM)  # in each row, all other trainers add 0
        return by_rank.flatten(0, 1)

    def spread(self, tensor: Tensor) -> Tensor:
        """Return the maximum minus the minimum over all trainers, for each element of `tensor`.

        Raise PeerLost as `mean_` does.
        """
        extremes = torch.stack([tensor, -tensor])
        if self.size > 1:
            self._all_reduce(extremes, torch.distributed.ReduceOp.MAX)  # now [maximum, -minimum]
        return extremes.sum(0)

    def least(self, value: int) -> int:
        """Return the smallest of the values that the trainers pass; raise PeerLost as `mean_` does."""
        if self.size == 1:
            return value
        negative = torch.tensor([-value], device=self.device)
        self._all_reduce(negative, torch.distributed.ReduceOp.MAX)  # the maximum of -value is the negative minimum
        return -int(negative)

    def _mean_(self, tensor: Tensor) -> None:
        self._all_reduce(tensor, torch.distributed.ReduceOp.SUM)
        tensor /= self.size

    def _all_reduce(self, tensor: Tensor, operation: Any) -> None:  # Any: a torch.distributed.ReduceOp
        if self.broken:  # after a failure, the answer to an earlier all-reduce could still arrive
            raise self.broken
        try:
            torch.distributed.all_reduce(tensor, operation)
        except RuntimeError as error:
            self.broken = PeerLost(f"trainer {self.rank} of {self.size} lost another: {error}")
            raise self.broken from error

    def _store(self, host: str, port: int, listener: int | None = None) -> Any:  # Any: torch.distributed.TCPStore
        return torch.distributed.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            world_size=None,
            is_master=self.rank == 0,
            timeout=self.timeout,
            wait_for_workers=False,
            master_listen_fd=listener,
        )
