"""Formulas with a hand-written gradient as single nodes of autograd's graph.

Autograd takes longer to build and to follow a graph of many small operations than the operations themselves take.
Import this module only where torch is needed anyway.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from drl_cli.losses import policy


def differentiable(formula: Callable[..., tuple[Tensor, ...]], x: Tensor, *others: Any) -> Tensor:
    """Return the loss of `formula(x, *others)`, with the formula's gradient for `x`.

    The formula returns a loss, `[]`, `[B]` or in the shape of `x`, and the derivative of each loss with respect to `x`,
    in the shape of `x`. Autograd follows the formula itself where another argument needs a gradient, and in
    torch.compile.
    """
    if torch.compiler.is_compiling() or _need_gradient(*others) or not _need_gradient(x):
        return formula(x, *others)[0]
    loss: Tensor = _Formula.apply(formula, x, *others)  # type: ignore[no-untyped-call]
    return loss


def tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the actions and log-probabilities of `policy.tanh_gaussian`, differentiable in mean and log_std."""
    if torch.compiler.is_compiling() or _need_gradient(noise) or not _need_gradient(mean, log_std):
        return policy.tanh_gaussian(mean, log_std, noise)
    action, log_prob = _TanhGaussian.apply(mean, log_std, noise)  # type: ignore[no-untyped-call]
    return action, log_prob


def _need_gradient(*values: Any) -> bool:  # Any: a value that is no tensor needs none
    return torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in values)


class _Formula(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, formula: Callable[..., tuple[Tensor, ...]], x: Tensor, *others: Any) -> Tensor:
        loss, ctx.gradient, *_ = formula(x, *others)
        ctx.num = len(others)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:  # Any: autograd's context
        d_loss = d_loss.view(*d_loss.shape, *[1] * (ctx.gradient.ndim - d_loss.ndim))
        return None, ctx.gradient * d_loss, *[None] * ctx.num


class _TanhGaussian(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        action, log_prob = policy.tanh_gaussian(mean, log_std, noise)
        ctx.save_for_backward(action, log_std, noise)
        return action, log_prob

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_action: Tensor, d_log_prob: Tensor) -> tuple[Tensor, Tensor, None]:
        action, log_std, noise = ctx.saved_tensors
        d_mean, d_log_std = policy.tanh_gaussian_backward(action, log_std, noise, d_action, d_log_prob)
        return d_mean, d_log_std, None
