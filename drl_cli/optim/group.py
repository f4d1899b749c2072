"""ProcessGroup: the trainers that make each update together, from different rows of one batch."""

from __future__ import annotations

import datetime
from typing import Any

from drl_cli.chains import recording
from drl_cli.utils.lazy import Tensor, torch


class PeerLost(Exception):
    """Another trainer of the group has died or did not answer in time."""


class ProcessGroup:
    """The group of `size` trainers, as seen by trainer `rank`. If `size` > 1, call `join` before the first update.

    A trainer waits at most `timeout_s` seconds for the other trainers.
    """

    def __init__(self, rank: int = 0, size: int = 1, timeout_s: float = 300.0) -> None:
        self.rank, self.size, self.timeout = rank, size, datetime.timedelta(seconds=timeout_s)
        self.store: Any = None  # Any: torch.distributed.TCPStore, which torch's type stubs leave out
        self.broken: PeerLost | None = None

    def listen(self, host: str) -> int:
        """Listen for the other trainers at a free port of `host`; return the port. Only rank 0 calls this."""
        self.store = self._store(host, 0)
        port: int = self.store.port
        return port

    def join(self, host: str, port: int, device: torch.device) -> None:
        """Connect to the other trainers through the address of rank 0; raise PeerLost if this fails or times out."""
        try:
            if self.store is None:
                self.store = self._store(host, port)
            torch.distributed.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=self.store,
                rank=self.rank,
                world_size=self.size,
                timeout=self.timeout,
            )
        except RuntimeError as error:
            raise PeerLost(f"trainer {self.rank} of {self.size} found no group: {error}") from error

    def mean_(self, tensor: Tensor) -> None:
        """Replace a tensor by its mean over all trainers; raise PeerLost if this or an earlier call failed."""
        if self.size == 1:
            return
        if (tape := recording()) is not None:  # repeated updates have to average, too
            tape.effect(self._mean_, tensor)
        else:
            self._mean_(tensor)

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the rows of all trainers `[size * N, ...]` in order of rank, given this trainer's rows `[N, ...]`.

        Raise PeerLost as `mean_` does.
        """
        if self.size == 1:
            return tensor
        rows = tensor.new_zeros(self.size, *tensor.shape)
        rows[self.rank] = tensor
        self._all_reduce(rows, torch.distributed.ReduceOp.SUM)
        return rows.flatten(0, 1)

    def spread(self, tensor: Tensor) -> Tensor:
        """Return, for each element, the maximum minus the minimum over all trainers; raise PeerLost as `mean_` does."""
        ends = torch.stack([tensor, -tensor])
        if self.size > 1:
            self._all_reduce(ends, torch.distributed.ReduceOp.MAX)
        return ends.sum(0)

    def least(self, value: int) -> int:
        """Return the smallest value of all trainers; raise PeerLost as `mean_` does."""
        if self.size == 1:
            return value
        negative = torch.tensor([-value])
        self._all_reduce(negative, torch.distributed.ReduceOp.MAX)
        return -int(negative)

    def _mean_(self, tensor: Tensor) -> None:
        self._all_reduce(tensor, torch.distributed.ReduceOp.SUM)
        tensor /= self.size

    def _all_reduce(self, tensor: Tensor, operation: Any) -> None:  # Any: a torch.distributed.ReduceOp
        if self.broken:  # after a failure, a late answer could belong to an earlier all-reduce
            raise self.broken
        try:
            torch.distributed.all_reduce(tensor, operation)
        except RuntimeError as error:
            self.broken = PeerLost(f"trainer {self.rank} of {self.size} lost another: {error}")
            raise self.broken from error

    def _store(self, host: str, port: int) -> Any:  # Any: torch.distributed.TCPStore
        is_master = self.rank == 0
        return torch.distributed.TCPStore(  # type: ignore[attr-defined]
            host, port, None, is_master, self.timeout, wait_for_workers=False
        )
