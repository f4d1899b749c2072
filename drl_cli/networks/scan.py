"""The states of a window in DreamerV3's recurrent model (`Rssm`), with a backward pass by hand.

Windows are few and have many steps, so that automatic differentiation would spend most of its time on small operations.
The backward pass here computes the factors of all steps before its loop, and the gradients of the weights after it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from drl_cli.networks.world_models import UNIFORM, mixed, sample

EPS = 1e-4
"""Of all RMS norms."""


class Weights(NamedTuple):
    """The weights of a step. D, U and Z are the lengths of h, of a hidden layer and of z; D = blocks x W."""

    h: Tensor
    """`[2 U, D]`, of two layers with the input h: the first half for the next h, the second half for the posterior."""
    h_norm: Tensor  # [2, U]
    logits: Tensor  # [Z, U]
    logits_bias: Tensor
    z: Tensor  # [U, Z]
    z_bias: Tensor
    z_norm: Tensor
    shared: Tensor
    """`[D, 2 U]`, of the hidden layer, with the inputs that are computed from h and from z."""
    blocks: Tensor  # [blocks, W, W], of the hidden layer, with the blocks of h as inputs
    norm: Tensor  # [D]
    gates: Tensor  # [blocks, W, 3 W]
    gates_bias: Tensor


def scale_of(x: Tensor) -> Tensor:
    """Return the factor of the RMS norm."""
    return (x.square().mean(-1, keepdim=True) + EPS).rsqrt()


def activation(x: Tensor, weight: Tensor) -> Tensor:
    """Return the SiLU of the RMS norm."""
    return torch.nn.functional.silu(x * scale_of(x) * weight)


class Activation:
    """The derivative of `activation` at x, for all steps at once."""

    def __init__(self, x: Tensor, weight: Tensor) -> None:
        self.scale = scale_of(x)
        self.normed = x * self.scale
        silu = self.normed * weight
        share = silu.sigmoid()
        self.slope = share * (1.0 + silu * (1.0 - share))
        self.factor = self.slope * weight

    def back(self, step: int, grad: Tensor) -> Tensor:
        """Return the gradient of x at a step."""
        normed, grad = self.normed[step], grad * self.factor[step]
        return (grad - normed * (grad * normed).mean(-1, keepdim=True)) * self.scale[step]

    def weight_grad(self, grad: Tensor) -> Tensor:
        """Return the gradient of the norm's weight, given those of the outputs of all steps `[T, N, ...]`."""
        return (grad * self.slope * self.normed).sum((0, 1))


def in_blocks(x: Tensor, blocks: int) -> Tensor:
    """Return `[..., N, D]` as `[..., blocks, N, D / blocks]`."""
    return x.view(*x.shape[:-1], blocks, x.shape[-1] // blocks).transpose(-3, -2)


def from_blocks(x: Tensor) -> Tensor:
    """Return `[..., blocks, N, D / blocks]` as `[..., N, D]`."""
    return x.transpose(-3, -2).flatten(-2)


class Scan(torch.autograd.Function):
    """Computes S = T + 1 states, with the time first.

    The inputs are h `[B, D]`, what is added to the layers of h `[S, B, 2 U]` and to the hidden layer `[T, B, D]`, the
    uniform numbers `[S, B, V]`, and the fields of `Weights`. The outputs are h `[S, B, D]`, samples of z `[S, B, Z]`,
    and their probabilities `[S, B, C, V]`, followed by what the backward pass needs. Gradients flow through the samples
    to the probabilities.
    """

    @staticmethod
    def forward(h: Tensor, of_h: Tensor, of_hidden: Tensor, uniform: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        weights, steps = Weights(*tensors), len(of_hidden)
        blocks, (batch, variables) = len(weights.blocks), uniform.shape[1:]
        kept: list[list[Tensor]] = [[], [], [], [], [], [], []]
        for t in range(steps + 1):
            x_h = torch.addmm(of_h[t], h, weights.h.t()).view(batch, 2, -1)
            features, hidden = activation(x_h, weights.h_norm).unbind(1)
            logits = torch.addmm(weights.logits_bias, hidden, weights.logits.t())
            probs = mixed(logits.view(batch, -1, variables), 1)
            z = sample(probs, uniform[t]).flatten(1)
            for values, value in zip(kept, (h, z, probs, x_h), strict=False):
                values.append(value)
            if t == steps:
                break
            x_z = torch.addmm(weights.z_bias, z, weights.z.t())
            shared = torch.cat([features, activation(x_z, weights.z_norm)], 1)
            of_blocks = torch.bmm(in_blocks(h, blocks), weights.blocks)
            x = torch.addmm(of_hidden[t], shared, weights.shared.t()) + from_blocks(of_blocks)
            gates = torch.baddbmm(weights.gates_bias, in_blocks(activation(x, weights.norm), blocks), weights.gates)
            reset, candidate, update = gates.chunk(3, -1)
            candidate = (reset.sigmoid() * candidate).tanh()
            h = from_blocks(torch.lerp(in_blocks(h, blocks), candidate, (update - 1.0).sigmoid()))
            for values, value in zip(kept[4:], (x_z, x, gates), strict=True):
                values.append(value)
        return tuple(torch.stack(values) for values in kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[3:])
        ctx.save_for_backward(*inputs[4:], *output)

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor, grad_z: Tensor, grad_probs: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        num = len(Weights._fields)
        weights, (h, z, probs, x_h, x_z, x, gates) = Weights(*ctx.saved_tensors[:num]), ctx.saved_tensors[num:]
        steps, blocks = len(x), len(weights.blocks)
        of_h, of_z, of_x = (
            Activation(x_h, weights.h_norm),
            Activation(x_z, weights.z_norm),
            Activation(x, weights.norm),
        )
        h_blocks = in_blocks(h, blocks)
        to_gates, stays = gate_factors(gates, h_blocks[:-1])
        softmax = (probs - UNIFORM / probs.shape[2]) / (1.0 - UNIFORM)
        transposed = weights.blocks.transpose(1, 2), weights.gates.transpose(1, 2)
        zero = torch.zeros_like(of_h.normed[0, :, 0])
        carried, after_z, features = torch.zeros_like(h[0]), torch.zeros_like(z[0]), zero
        kept: list[list[Tensor]] = [[], [], [], [], [], [], []]
        for t in reversed(range(steps + 1)):
            if t < steps:
                grad = in_blocks(carried, blocks)
                g_gates = (grad.unsqueeze(2) * to_gates[t]).flatten(2)
                g_norm = from_blocks(torch.bmm(g_gates, transposed[1]))
                g_x = of_x.back(t, g_norm)
                carried = from_blocks(grad * stays[t] + torch.bmm(in_blocks(g_x, blocks), transposed[0]))
                features, g_z = (g_x @ weights.shared).chunk(2, 1)
                g_x_z = of_z.back(t, g_z)
                after_z = g_x_z @ weights.z
                for values, value in zip(kept[3:], (g_gates, g_norm, g_x, torch.cat([g_z, g_x_z], 1)), strict=True):
                    values.append(value)
            g_probs = (1.0 - UNIFORM) * (grad_probs[t] + (grad_z[t] + after_z).view_as(probs[t]))
            g_logits = (softmax[t] * (g_probs - (softmax[t] * g_probs).sum(1, keepdim=True))).flatten(1)
            g_act = torch.stack([features, g_logits @ weights.logits], 1)
            g_x_h = of_h.back(t, g_act).flatten(1)
            carried = torch.addmm(carried + grad_h[t], g_x_h, weights.h)
            for values, value in zip(kept, (g_logits, g_act, g_x_h), strict=False):
                values.append(value)
        g_logits, g_act, g_x_h, g_gates, g_norm, g_x, both = (torch.stack(values[::-1]) for values in kept)
        g_z, g_x_z = both.chunk(2, 2)
        act_h, act_z = activation(x_h, weights.h_norm), activation(x_z, weights.z_norm)
        act_x, shared = activation(x, weights.norm), torch.cat([act_h[:-1, :, 0], act_z], 2)
        flat_gates = g_gates.transpose(0, 1).flatten(1, 2)
        grads = Weights(
            h=product(g_x_h, h),
            h_norm=of_h.weight_grad(g_act),
            logits=product(g_logits, act_h[:, :, 1]),
            logits_bias=g_logits.sum((0, 1)),
            z=product(g_x_z, z[:-1]),
            z_bias=g_x_z.sum((0, 1)),
            z_norm=of_z.weight_grad(g_z),
            shared=product(g_x, shared),
            blocks=torch.bmm(by_block(h[:-1], blocks).transpose(1, 2), by_block(g_x, blocks)),
            norm=of_x.weight_grad(g_norm),
            gates=torch.bmm(by_block(act_x, blocks).transpose(1, 2), flat_gates),
            gates_bias=flat_gates.sum(1, keepdim=True),
        )
        return (carried, g_x_h, g_x, None, *grads)


def gate_factors(gates: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the next h: by the gates `[T, blocks, B, 3, W]`, and by h `[T, blocks, B, W]`."""
    reset, candidate, update = gates.chunk(3, -1)
    reset, update = reset.sigmoid(), (update - 1.0).sigmoid()
    new = (reset * candidate).tanh()
    by_product = update * (1.0 - new.square())
    by_reset = by_product * candidate * reset * (1.0 - reset)
    return torch.stack([by_reset, by_product * reset, (new - h) * update * (1.0 - update)], -2), 1.0 - update


def product(grad: Tensor, inputs: Tensor) -> Tensor:
    """Return the gradient of a layer's weight: the sum over steps and rows."""
    return grad.flatten(0, 1).t() @ inputs.flatten(0, 1)


def by_block(x: Tensor, blocks: int) -> Tensor:
    """Return `[T, B, D]` as `[blocks, T B, D / blocks]`."""
    return in_blocks(x.flatten(0, 1), blocks)
