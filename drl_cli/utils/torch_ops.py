"""Torch pieces that every learner shares: flat parameters, the optimizer on them, saving and loading."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from drl_cli.utils.group import Context
from drl_cli.utils.lazy import torch


@dataclass(frozen=True)
class Part:
    """Some parameters and their gradients, two flat tensors of one length."""

    flat: "torch.Tensor"
    grad: "torch.Tensor"


class FlatParams:
    """All that an algorithm trains: parameters in one flat tensor, gradients in another; parts of them by name.

    FlatParams(device, actor=10, critic=20)["actor"] are views of the first 10.
    """

    def __init__(self, device: "torch.device", **sizes: int) -> None:
        self.flat = torch.zeros(sum(sizes.values()), device=device)
        self.grad = torch.zeros_like(self.flat)
        ends = accumulate(sizes.values())
        self.slices = {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    def __getitem__(self, name: str) -> Part:
        return Part(self.flat[self.slices[name]], self.grad[self.slices[name]])


class Adam:
    """Adam (Kingma & Ba 2015) on flat parameters: one fused call per learning rate, no torch.optim around it.

    `lrs` are the learning rates of all parts. The gradient is averaged over the group first, all of it at once, and
    then, where there is a `max_norm`, scaled down to that length.
    """

    def __init__(
        self,
        params: FlatParams,
        lrs: Mapping[str, float],
        context: Context,
        eps: float = 1e-8,
        max_norm: float | None = None,
    ) -> None:
        assert lrs.keys() == params.slices.keys()
        self.grad, self.context, self.eps, self.max_norm = params.grad, context, eps, max_norm
        self.mean, self.square = torch.zeros_like(params.flat), torch.zeros_like(params.flat)
        self.count = torch.zeros((), device=params.flat.device)
        self.views = {}
        for lr in dict.fromkeys(lrs.values()):
            slices = [params.slices[name] for name in lrs if lrs[name] == lr]
            tensors = (params.flat, params.grad, self.mean, self.square)
            self.views[lr] = [[tensor[where] for where in slices] for tensor in tensors]

    def step(self, *losses: "torch.Tensor") -> bool:
        """One update from the gradient, in place; returns whether it was made.

        A learner that skips leaves it out where one of anyone's `losses` or the averaged gradient is not finite.
        """
        if self.context.skips:
            self.grad[0] += 0.0 * sum(losses)  # NaN for the whole group where one is not finite
        self.context.group.mean_(self.grad)
        if self.context.skips and not self.grad.isfinite().all():
            return False
        if self.max_norm is not None:
            self.grad *= (self.max_norm / (self.grad.norm() + 1e-6)).clamp(max=1.0)
        self.count += 1
        for lr, (flat, grad, mean, square) in self.views.items():
            torch._fused_adam_(
                flat,
                grad,
                mean,
                square,
                [],
                [self.count] * len(flat),
                lr=lr,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )
        return True

    def state(self) -> "dict[str, torch.Tensor]":
        """Moments and step count."""
        return {"mean": self.mean, "square": self.square, "count": self.count}


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next update; giving it back costs a page fault per 4 KB.

    At 256 rows and 256 units that is a fifth of an update. Libraries without glibc's mallopt go on as they are.
    """
    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, 2**28)
        mallopt(mmap_threshold, 2**25)


def save_tensors(tensors: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Copies on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def load_tensors(tensors: "Mapping[str, torch.Tensor]", saved: "Mapping[str, torch.Tensor]") -> None:
    """Copy saved values in place; raises ValueError when a name is missing or a shape differs."""
    for name, own in tensors.items():
        if name not in saved:
            raise ValueError(f"the saved state has no '{name}'")
        if saved[name].shape != own.shape:
            raise ValueError(f"saved '{name}' has shape {tuple(saved[name].shape)}, needed is {tuple(own.shape)}")
    for name, own in tensors.items():
        own.copy_(saved[name])


def load_vector(tensors: "Sequence[torch.Tensor]", vector: npt.NDArray[np.float32]) -> None:
    """Copy a flat vector into flat tensors, one after the other; raises ValueError naming both sizes if they differ."""
    sizes = [len(tensor) for tensor in tensors]
    if vector.shape != (sum(sizes),):
        raise ValueError(f"parameter vector has shape {vector.shape}, the policy needs ({sum(sizes)},)")
    for tensor, part in zip(tensors, torch.split(torch.from_numpy(vector.copy()), sizes), strict=True):
        tensor.copy_(part)
