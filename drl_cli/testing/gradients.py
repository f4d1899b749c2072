"""check_gradients: compare gradients with numerical slopes of the loss."""

from collections.abc import Callable

from drl_cli.optim.params import Params
from drl_cli.utils.lazy import Tensor, torch


def check_gradients(
    params: Params,
    loss: Callable[[], Tensor],
    write: Callable[[], object] | None = None,
    directions: int = 4,
    eps: float = 1e-3,
    tolerance: float = 0.02,
) -> None:
    """Raise AssertionError if `params.grad` is not the slope of `loss()`; the message names the part of `params`.

    `write` writes the gradients; by default, `loss().backward()` does. For each part, central differences measure the
    slope in `directions` directions. Each direction is a random vector plus the gradient, scaled to length 1. Because
    of float32 rounding, a slope may differ by up to `tolerance` times the norm of the part's gradient.
    """
    params.grad.zero_()
    if write is None:
        loss().backward()  # type: ignore[no-untyped-call]
    else:
        write()
    params.collect()
    generator, norm = torch.Generator().manual_seed(11), float(params.grad.norm())
    assert norm > 0.0, "the gradient is 0"
    for name in [name for name in params.slices for _ in range(directions)]:
        part, grad = params[name].flat, params[name].grad
        flat, length = part.clone(), max(float(grad.norm()), 1e-2 * norm)
        step = torch.nn.functional.normalize(torch.randn(len(flat), generator=generator), dim=0) + grad / length
        step /= step.norm()
        ends = []
        for sign in (1.0, -1.0):
            part.copy_(flat + sign * eps * step)
            ends.append(float(loss().detach()))
        part.copy_(flat)
        slope, written = (ends[0] - ends[1]) / (2 * eps), float(grad @ step)
        is_close = abs(slope - written) <= tolerance * length
        assert is_close, f"{name}: the slope is {slope:.6g}, the gradient says {written:.6g}"
