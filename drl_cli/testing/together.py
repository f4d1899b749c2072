"""Together: several learners in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from drl_cli.optim.group import ProcessGroup
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


class Together(ProcessGroup):
    """Learners in threads of one process, which average through memory."""

    def __init__(self, rank: int, members: list[Together]) -> None:
        super().__init__(rank, 2)
        self.members, self.barrier = members, threading.Barrier(2, timeout=60.0)
        self.given: Tensor | None = None

    @classmethod
    def pair(cls) -> list[Together]:
        """Two that know each other."""
        members: list[Together] = []
        members += [cls(rank, members) for rank in range(2)]
        members[1].barrier = members[0].barrier
        return members

    def run(self, learn: Callable[[int], None]) -> None:
        """`learn(rank)` of both at once; raises what one of them raised."""
        errors: list[BaseException] = []

        def member(rank: int) -> None:
            try:
                learn(rank)
            except BaseException as error:
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _all_reduce(self, tensor: Tensor, operation: Any) -> None:  # Any: a torch.distributed.ReduceOp
        self.given = tensor.detach().clone()
        self.barrier.wait()
        both = torch.stack([member.given for member in self.members if member.given is not None])
        self.barrier.wait()
        is_sum = operation == torch.distributed.ReduceOp.SUM
        tensor.copy_(both.sum(0) if is_sum else both.max(0).values)
