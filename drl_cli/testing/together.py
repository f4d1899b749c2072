"""Together: two trainers in threads of one process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from drl_cli.optim.group import ProcessGroup
from drl_cli.utils.lazy import Tensor, torch


class Together(ProcessGroup):
    """A group of two trainers that run in threads and average tensors in memory."""

    def __init__(self, rank: int, members: "list[Together]", barrier: threading.Barrier) -> None:
        super().__init__(rank, 2)
        self.members, self.barrier = members, barrier
        self.given: Tensor | None = None

    @classmethod
    def pair(cls) -> "list[Together]":
        """Return one Together for each of the two trainers."""
        members: list[Together] = []
        barrier = threading.Barrier(2, timeout=60.0)
        members += [cls(rank, members, barrier) for rank in range(2)]
        return members

    def run(self, learn: Callable[[int], None]) -> None:
        """Call `learn(rank)` for both ranks at once; raise the error of a rank that failed."""

        def member(rank: int) -> None:
            try:
                learn(rank)
            except BaseException:
                self.barrier.abort()  # else the other trainer would wait 60 s
                raise

        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(member, rank) for rank in range(2)]
        errors = [error for call in calls if (error := call.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error

    def _all_reduce(self, tensor: Tensor, operation: Any) -> None:  # Any: a torch.distributed.ReduceOp
        self.given = tensor.detach().clone()
        self.barrier.wait()
        both = torch.stack([member.given for member in self.members if member.given is not None])
        self.barrier.wait()
        if operation == torch.distributed.ReduceOp.SUM:
            tensor.copy_(both.sum(0))
        elif operation == torch.distributed.ReduceOp.MAX:
            tensor.copy_(both.max(0).values)
        else:
            raise NotImplementedError(f"{operation} of two trainers")
