"""Torch pieces that every learner shares."""

from collections.abc import Mapping

from drl_cli.utils.lazy import torch


class Adam:
    """Adam (Kingma & Ba 2015) on one flat tensor: a single fused kernel, without torch.optim's per-step overhead."""

    def __init__(self, flat: "torch.Tensor", grad: "torch.Tensor", lr: float) -> None:
        self.flat, self.grad, self.lr = flat, grad, lr
        self.mean, self.square = torch.zeros_like(flat), torch.zeros_like(flat)
        self.count = torch.zeros((), device=flat.device)

    def step(self) -> None:
        """One update from `grad`, in place."""
        self.count += 1
        torch._fused_adam_(
            [self.flat],
            [self.grad],
            [self.mean],
            [self.square],
            [],
            [self.count],
            lr=self.lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def state(self) -> "dict[str, torch.Tensor]":
        """Moments and step count."""
        return {"mean": self.mean, "square": self.square, "count": self.count}


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
