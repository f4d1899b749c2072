"""Group: the learners that go through the same updates together, each with its rows of every batch."""

import datetime
from dataclasses import dataclass, field
from typing import Any

from drl_cli.utils.lazy import torch


class PeerLost(Exception):
    """Another learner of the group is gone, or did not take part in time."""


class Group:
    """Learner `rank` of `size`. One of several has to `join` before its first update; one alone has nobody to ask."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.store: Any = None  # Any: torch.distributed.TCPStore, which torch's type stubs leave out

    def listen(self, host: str, timeout_s: float) -> int:
        """Wait for the others at a free port of this host, for rank 0; returns the port."""
        self.store = _store(host, 0, is_master=True, timeout_s=timeout_s)
        port: int = self.store.port
        return port

    def join(self, host: str, port: int, timeout_s: float, device: "torch.device") -> None:
        """Meet the others where rank 0 listens; no member waits longer than timeout_s for another, now or later.

        Raises PeerLost when they do not come.
        """
        try:
            if self.store is None:
                self.store = _store(host, port, is_master=False, timeout_s=timeout_s)
            torch.distributed.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=self.store,
                rank=self.rank,
                world_size=self.size,
                timeout=_seconds(timeout_s),
            )
        except RuntimeError as error:
            raise PeerLost(f"learner {self.rank} of {self.size} found no group: {error}") from error

    def mean_(self, tensor: "torch.Tensor") -> None:
        """Replace a tensor by its mean over the group, in place; raises PeerLost when a member is missing."""
        if self.size == 1:
            return
        try:
            torch.distributed.all_reduce(tensor)
        except RuntimeError as error:
            raise PeerLost(f"learner {self.rank} of {self.size} lost another: {error}") from error
        tensor /= self.size


@dataclass(frozen=True)
class Learner:
    """Where an algorithm learns, and with whom."""

    device: "torch.device"
    group: Group = field(default_factory=Group)

    def randn(self, rows: int, size: int, generator: "torch.Generator") -> "torch.Tensor":
        """Standard normal noise `[rows, size]`: for these rows what one learner alone would draw for all rows.

        Every member's generator has to have the same seed.
        """
        rank, num = self.group.rank, self.group.size
        noise = torch.randn(num * rows, size, generator=generator, device=self.device)
        return noise[rank * rows : (rank + 1) * rows]


def _store(host: str, port: int, is_master: bool, timeout_s: float) -> Any:  # Any: as above
    return torch.distributed.TCPStore(  # type: ignore[attr-defined]
        host, port, None, is_master, _seconds(timeout_s), wait_for_workers=False
    )


def _seconds(value: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=value)
