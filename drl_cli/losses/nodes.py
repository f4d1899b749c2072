"""Losses and samples with hand-written gradients, each as a single node of autograd's graph.

This is faster, because autograd's work for many small operations takes longer than the operations themselves. A second
derivative raises RuntimeError. This file imports torch, so other files import it inside functions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from drl_cli.losses import policy


def differentiable(formula: Callable[..., tuple[Tensor, ...]], x: Tensor, *others: Any) -> Tensor:
    """Return the loss that `formula(x, *others)` computes. Its gradient is the derivative that the formula returns.

    The formula returns (loss, derivative, ...). The loss is `[]`, `[B]` or in the shape of `x`. The derivative with
    respect to `x` is in the shape of `x`. Under torch.compile, or if another argument needs a gradient, autograd
    differentiates the operations of the formula, and the returned derivative is not used.
    """
    if torch.compiler.is_compiling() or _need_gradient(*others) or not _need_gradient(x):
        return formula(x, *others)[0]
    loss: Tensor = _Formula.apply(formula, x, *others)  # type: ignore[no-untyped-call]
    return loss


def tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the results of `policy.tanh_gaussian`, `[B, A]` and `[B]`, as one node of autograd's graph.

    Under torch.compile, or if the noise needs a gradient, autograd differentiates the operations of the formula.
    """
    if torch.compiler.is_compiling() or _need_gradient(noise) or not _need_gradient(mean, log_std):
        return policy.tanh_gaussian(mean, log_std, noise)
    action, log_prob = _TanhGaussian.apply(mean, log_std, noise)  # type: ignore[no-untyped-call]
    return action, log_prob


def _need_gradient(*values: Any) -> bool:  # Any: a tensor, or a value that needs no gradient
    return torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in values)


class _Formula(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, formula: Callable[..., tuple[Tensor, ...]], x: Tensor, *others: Any) -> Tensor:
        loss, ctx.gradient, *_ = formula(x, *others)
        ctx.num_others = len(others)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:  # Any: autograd's context
        num_missing = ctx.gradient.ndim - d_loss.ndim
        d_loss = d_loss.view(*d_loss.shape, *[1] * num_missing)  # such as [B, 1], for a loss [B] and x [B, K]
        return None, ctx.gradient * d_loss, *[None] * ctx.num_others  # for formula, x and others


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
