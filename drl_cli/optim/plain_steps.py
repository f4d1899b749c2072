"""Steps of torch.optim's classes as simple tensor operations, which can be recorded and compiled with an update.

Each function changes the parameters `flat` `[size]` and the optimizer's `state` in place. `group` has the
optimizer's options by name. All names in `state` and `group` are those of the torch class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drl_cli.chains.present import untaped
from drl_cli.utils.lazy import Tensor, torch


def _sgd(group: Mapping[str, Any], state: dict[str, Any], flat: Tensor, grad: Tensor, lr: float | Tensor) -> None:
    """Change the parameters `flat` `[size]` by a step of torch.optim.SGD without dampening."""
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * flat
    if momentum := group["momentum"]:
        buffer = _zeros(state, "momentum_buffer", flat)
        buffer.copy_(momentum * buffer + grad)
        grad = grad + momentum * buffer if group["nesterov"] else buffer
    flat.copy_(flat - lr * grad)


def _rmsprop(group: Mapping[str, Any], state: dict[str, Any], flat: Tensor, grad: Tensor, lr: float | Tensor) -> None:
    """Change the parameters `flat` `[size]` by a step of torch.optim.RMSprop."""
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * flat
    alpha = group["alpha"]
    _number(state, "step").add_(1.0)  # only for the checkpoint, as in torch
    square = _zeros(state, "square_avg", flat)
    square.copy_(alpha * square + (1.0 - alpha) * grad * grad)
    variance: Tensor = square
    if group["centered"]:
        mean = _zeros(state, "grad_avg", flat)
        mean.copy_(alpha * mean + (1.0 - alpha) * grad)
        variance = square - mean * mean
    change = grad / (variance.sqrt() + group["eps"])
    if group["momentum"]:
        buffer = _zeros(state, "momentum_buffer", flat)
        buffer.copy_(group["momentum"] * buffer + change)
        change = buffer
    flat.copy_(flat - lr * change)


def _radam(group: Mapping[str, Any], state: dict[str, Any], flat: Tensor, grad: Tensor, lr: float | Tensor) -> None:
    """Change the parameters `flat` by a step of torch.optim.RAdam (Liu et al. 2019, arXiv 1908.03265, algorithm 2)."""
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * flat
    beta1, beta2 = group["betas"]
    step = _number(state, "step").add_(1.0).double()  # in float32, 1 - 0.999 would have only four correct digits
    mean, square = _zeros(state, "exp_avg", flat), _zeros(state, "exp_avg_sq", flat)
    mean.copy_(beta1 * mean + (1.0 - beta1) * grad)
    square.copy_(beta2 * square + (1.0 - beta2) * grad * grad)
    rho_inf = 2.0 / (1.0 - beta2) - 1.0
    correction = 1.0 - beta2**step
    rho = rho_inf - 2.0 * step * beta2**step / correction
    at_least_5 = rho.clamp_min(5.0)  # avoids NaN in `r`, which has no effect if rho <= 5
    r = ((at_least_5 - 4.0) * (at_least_5 - 2.0) * rho_inf / ((rho_inf - 4.0) * (rho_inf - 2.0) * at_least_5)).sqrt()
    adaptive = (r * correction.sqrt()).float() / (square.sqrt() + group["eps"])
    step_size = (lr / (1.0 - beta1**step)).float()
    flat.copy_(flat - step_size * mean * torch.where(rho > 5.0, adaptive, 1.0))  # torch has 5, the paper 4


def _zeros(state: dict[str, Any], name: str, like: Tensor) -> Tensor:
    """Return the tensor `name` of an optimizer's state. The first step creates zeros in the shape of `like`.

    A record of the first step leaves the creation out, so that a repeated step does not set the tensor to 0.
    """
    if state.get(name) is None:
        with untaped():
            state[name] = torch.zeros_like(like)
    tensor: Tensor = state[name]
    return tensor


def _number(state: dict[str, Any], name: str) -> Tensor:
    """Return the number `name` of an optimizer's state, a tensor `[]`, which the first step creates as in `_zeros`."""
    if state.get(name) is None:
        with untaped():
            state[name] = torch.zeros(())
    tensor: Tensor = state[name]
    return tensor


PLAIN = {"sgd": _sgd, "rmsprop": _rmsprop, "radam": _radam}
"""The functions above by `optimizer.name`."""
