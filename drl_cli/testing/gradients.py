"""Whether gradients are those of the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from drl_cli.optim.params import Params
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def check_gradients(
    params: Params,
    loss: Callable[[], Tensor],
    write: Callable[[], object] | None = None,
    directions: int = 4,
    eps: float = 1e-3,
    tolerance: float = 0.02,
) -> None:
    """Raise AssertionError where `params.grad` is not the slope of `loss()`, by central differences in each part.

    `write` writes the gradients; by default `loss().backward()` does. Each direction, of length 1, has a random half
    and one up the gradient; slopes may differ by `tolerance` times the length of the part's gradient: all is float32.
    """
    params.grad.zero_()
    if write is None:
        loss().backward()  # type: ignore[no-untyped-call]
    else:
        write()
    params.collect()
    generator, all_of_it = torch.Generator().manual_seed(11), float(params.grad.norm())
    assert all_of_it > 0.0, "the gradient is 0"
    for name in [name for name in params.slices for _ in range(directions)]:
        part, grad = params[name].flat, params[name].grad
        flat, length = part.clone(), max(float(grad.norm()), 1e-2 * all_of_it)
        step = torch.nn.functional.normalize(torch.randn(len(flat), generator=generator), dim=0) + grad / length
        step /= step.norm()
        ends = []
        for sign in (1.0, -1.0):
            part.copy_(flat + sign * eps * step)
            ends.append(float(loss().detach()))
        part.copy_(flat)
        slope, told = (ends[0] - ends[1]) / (2 * eps), float(grad @ step)
        assert abs(slope - told) <= tolerance * length, (
            f"{name}: the slope is {slope:.6g}, the gradient says {told:.6g}"
        )
