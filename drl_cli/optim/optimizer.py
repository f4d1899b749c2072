"""Optimizer: averages gradients over trainers, rejects gradients that are not finite, and updates the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drl_cli.chains import recording
from drl_cli.optim.context import Context
from drl_cli.optim.optimizer_config import Part
from drl_cli.optim.params import Params
from drl_cli.optim.rules import FusedAdam, OwnRule, Rule, TorchOptim, filled
from drl_cli.utils.lazy import Tensor, torch

if TYPE_CHECKING:
    from torch import optim


class NotFinite(Exception):
    """With trainer.on_nonfinite=skip, a loss or gradient is NaN or infinite. The trainer skips the update."""


class Optimizer:
    """Updates parameters from their gradients, with the rule, schedule and clipping that the `optimizer` options set.

    `lrs` has the learning rate of every part of `params`, or a `Part` with more options of the part. Each step averages
    the gradient over all trainers. A part with its own `max_norm` is clipped alone. The gradients of all other parts
    together are clipped to the norm `optimizer.max_norm`. `rule` is a class derived from torch.optim.Optimizer that
    replaces `optimizer.name`. Raise ValueError if a part has no learning rate, or a learning rate has no part.
    """

    def __init__(
        self,
        params: Params,
        lrs: Mapping[str, float | Part],
        context: Context,
        rule: type[optim.Optimizer] | None = None,
    ) -> None:
        if lrs.keys() != params.slices.keys():
            missing, strange = params.slices.keys() - lrs.keys(), lrs.keys() - params.slices.keys()
            raise ValueError(
                f"the parts are {', '.join(params.slices)}; "
                + "; ".join(
                    [f"'{name}' has no learning rate" for name in sorted(missing)]
                    + [f"'{name}' is no part, but has a learning rate" for name in sorted(strange)]
                )
            )
        self.params, self.context, self.config = params, context, context.optimizer
        self.parts = {name: filled(lr, self.config) for name, lr in lrs.items()}
        self.lrs = {name: part.lr for name, part in self.parts.items()}
        self.limits = {name: part.max_norm for name, part in self.parts.items() if part.max_norm is not None}
        self.rule: Rule
        if rule is not None or ":" in self.config.name:
            self.rule = OwnRule(params, self.parts, self.config, rule or self.config.kind)
        else:
            is_adam = self.config.name in ("adam", "adamw")
            self.rule = (FusedAdam if is_adam else TorchOptim)(params, self.parts, self.config)
        self.factor = 1.0
        self.norm: Tensor | None = None
        self._all = tuple(lrs)

    def schedule(self, position: int) -> None:
        """Set the learning rates to their scheduled values at this position (environment steps or updates)."""
        self.factor = self.config.factor(position, self.context.clock.total)

    def zero_grad(self, parts: Sequence[str] | None = None) -> None:
        """Set the gradients of these parts (default: all parts) to 0. Call it before `loss.backward()`, which adds."""
        for name in parts or self._all:
            self.params[name].grad.zero_()

    def minimize(self, loss: Tensor, *parts: str) -> None:
        """Make one step of these parts (default: all parts) to reduce `loss`, with a gradient computed by autograd.

        Other parts get no gradient, even if the loss depends on them. As in plain torch, raise RuntimeError if a
        step changed parameters after the loss was computed from them. Raise LookupError if there is no such part.
        """
        self.params.collect()
        self.zero_grad(parts)
        torch.autograd.backward(loss, inputs=self.params.leaves(parts or self._all))
        self.step(loss.detach(), parts=parts)

    def step(self, *losses: Tensor, parts: Sequence[str] = ()) -> None:
        """Make one step of these parts (default: all parts) with the gradients in `params.grad`.

        With trainer.on_nonfinite=skip, raise NotFinite and change no parameter if the averaged gradient is not finite,
        or if a loss in `losses` is not finite in any trainer.
        """
        self.params.collect()
        names = tuple(parts) or self._all
        if names == self._all:
            grads = [self.params.grad]
        else:
            grads = [grad for name in names if len(grad := self.params[name].grad)]
        factor, tape = self._factor(), recording()
        if self.context.skips:
            _spoil(grads[0], losses)
        for grad in grads:
            self.context.group.mean_(grad)
        if self.context.skips and tape is not None:
            tape.require(torch.stack([grad.isfinite().all() for grad in grads]).all())
        elif self.context.skips and not all(grad.isfinite().all() for grad in grads):
            raise NotFinite
        self._clip(names, grads)
        self.rule.step(names, factor)
        self.params.changed(names)

    def _factor(self) -> float | Tensor:
        """Return the factor of the learning rates. A recorded update reads a changing factor from a tensor."""
        tape = recording()
        if tape is None:
            return self.factor
        if tape.wants_plain and not self.rule.is_plain:
            tape.fail(f"optimizer={self.config.name} is not one of adam, adamw, radam, rmsprop and sgd")
        elif not (self.config.is_constant or self.rule.is_plain):
            tape.fail("the learning rate of this optimizer is a number in Python")
        elif not self.config.is_constant:
            return tape.scalar(lambda counts: self.factor)
        return self.factor

    def _clip(self, names: Sequence[str], grads: Sequence[Tensor]) -> None:
        """Store the norm of the gradient in `norm`, and clip the gradients.

        A part with its own limit is clipped alone, and all other parts are clipped together.
        """
        limit = self.config.max_norm
        if limit is not None or self.context.skips or self.limits:
            self.norm = norm = _norm(grads)
        if self.limits:
            for name in names:
                if name in self.limits:
                    own = [self.params[name].grad]
                    _scale(own, self.limits[name], _norm(own))
            grads = [self.params[name].grad for name in names if name not in self.limits]
        if limit is not None and grads:
            _scale(grads, limit, _norm(grads) if self.limits else norm)

    def metrics(self) -> dict[str, float]:
        """Return the learning rate of the first part, and the gradient norm of the last step before clipping."""
        norm = self.params.grad.norm() if self.norm is None else self.norm
        return {"lr": next(iter(self.lrs.values())) * self.factor, "grad_norm": float(norm)}

    def state(self) -> dict[str, Tensor]:
        """Return CPU copies of all tensors to save, in the order of their names."""
        return {name: tensor.detach().cpu().clone() for name, tensor in sorted(self.rule.state().items())}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned; raise ValueError if names or shapes differ."""
        self.rule.load_state(state)


def _spoil(grad: Tensor, losses: Sequence[Tensor]) -> None:
    """Make a gradient NaN if a loss is not finite, so that the average over all trainers is NaN in every trainer."""
    for loss in losses:
        grad[0] += 0.0 * loss  # 0, or NaN if the loss is NaN or infinite


def _norm(grads: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of all gradients together, `[]`."""
    norms: list[Tensor] = [torch.linalg.vector_norm(grad) for grad in grads]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def _scale(grads: Sequence[Tensor], limit: float, norm: Tensor) -> None:
    """Clip gradients: scale them so that their norm, which is `norm` now, is at most `limit`."""
    for grad in grads:
        grad *= (limit / (norm + 1e-6)).clamp(max=1.0)
