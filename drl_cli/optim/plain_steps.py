"""Steps of torch.optim's classes as separate tensor operations, which can be recorded and compiled with an update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drl_cli.chains import untaped
from drl_cli.utils.lazy import Tensor, torch


def _sgd(group: Mapping[str, Any], memory: dict[str, Any], flat: Tensor, grad: Tensor, lr: float | Tensor) -> None:
    """Make a step of torch.optim.SGD without dampening, with plain operations."""
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * flat
    if momentum := group["momentum"]:
        buffer = _zeros(memory, "momentum_buffer", flat)
        buffer.copy_(momentum * buffer + grad)
        grad = grad + momentum * buffer if group["nesterov"] else buffer
    flat.copy_(flat - lr * grad)


def _rmsprop(group: Mapping[str, Any], memory: dict[str, Any], flat: Tensor, grad: Tensor, lr: float | Tensor) -> None:
    """Make a step of torch.optim.RMSprop with plain operations."""
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * flat
    alpha = group["alpha"]
    _zeros(memory, "step", flat[:0]).add_(1.0)
    square = _zeros(memory, "square_avg", flat)
    square.copy_(alpha * square + (1.0 - alpha) * grad * grad)
    variance: Tensor = square
    if group["centered"]:
        mean = _zeros(memory, "grad_avg", flat)
        mean.copy_(alpha * mean + (1.0 - alpha) * grad)
        variance = square - mean * mean
    change = grad / (variance.sqrt() + group["eps"])
    if group["momentum"]:
        buffer = _zeros(memory, "momentum_buffer", flat)
        buffer.copy_(group["momentum"] * buffer + change)
        change = buffer
    flat.copy_(flat - lr * change)


def _radam(group: Mapping[str, Any], memory: dict[str, Any], flat: Tensor, grad: Tensor, lr: float | Tensor) -> None:
    """Make a step of torch.optim.RAdam (Liu et al. 2019, arXiv 1908.03265) with plain operations."""
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * flat
    beta1, beta2 = group["betas"]
    step = _zeros(memory, "step", flat[:0]).add_(1.0).double()
    mean, square = _zeros(memory, "exp_avg", flat), _zeros(memory, "exp_avg_sq", flat)
    mean.copy_(beta1 * mean + (1.0 - beta1) * grad)
    square.copy_(beta2 * square + (1.0 - beta2) * grad * grad)
    # The names in the paper (algorithm 2): `longest` is rho_inf, `length` is rho_t, `rectified` is r_t.
    longest, correction = 2.0 / (1.0 - beta2) - 1.0, 1.0 - beta2**step
    length = longest - 2.0 * step * beta2**step / correction
    safe = length.clamp_min(5.0)
    rectified = ((safe - 4.0) * (safe - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * safe)).sqrt()
    adaptive = (rectified * correction.sqrt()).float() / (square.sqrt() + group["eps"])
    size = (lr / (1.0 - beta1**step)).float()
    flat.copy_(flat - size * mean * torch.where(length > 5.0, adaptive, 1.0))


def _zeros(memory: dict[str, Any], name: str, like: Tensor) -> Tensor:
    """Return the tensor `name` of an optimizer's state; create it with zeros in the shape of `like` at the first step.

    If `like` is empty, the tensor is a single number.
    """
    if memory.get(name) is None:
        with untaped():
            memory[name] = torch.zeros_like(like) if len(like) else torch.zeros(())
    kept: Tensor = memory[name]
    return kept


PLAIN = {"sgd": _sgd, "rmsprop": _rmsprop, "radam": _radam}
"""By `optimizer.name`: step(options, state of the optimizer, parameters, gradient, learning rate)."""
