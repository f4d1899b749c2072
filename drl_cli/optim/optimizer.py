"""Optimizer: averages gradients over trainers, refuses them if they are not finite, clips them, and makes the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drl_cli.chains.present import Recording, recording
from drl_cli.optim.context import Context
from drl_cli.optim.laprop import LaProp
from drl_cli.optim.optimizer_config import Part
from drl_cli.optim.params import Params
from drl_cli.optim.rules import FusedAdam, Rule, filled
from drl_cli.optim.torch_optim import TorchOptim, UserRule
from drl_cli.utils.lazy import Tensor, torch


class NotFinite(Exception):
    """A loss or gradient is NaN or infinite. With trainer.on_nonfinite=skip, the trainer then skips the update."""


class Optimizer:
    """Makes gradient steps: averages the gradients over all trainers, clips them, and changes the parameters.

    The options `optimizer` of the config set the rule (such as Adam), the schedule of the learning rates, and the
    clipping. `lrs` has a learning rate for each part of `params`. A `Part` in place of a learning
    rate sets more options of this part. The gradient of a part with its own `max_norm` is clipped to this norm. The
    gradients of all other parts are clipped together, to the norm `optimizer.max_norm`. `rule`, a class derived from
    torch.optim.Optimizer, replaces `optimizer.name`. Raise ValueError if a part has no learning rate, if a learning
    rate has no part, or if the rule lacks `weight_decay` or `betas` that a part sets.
    """

    def __init__(
        self,
        params: Params,
        lrs: Mapping[str, float | Part],
        context: Context,
        rule: type[torch.optim.Optimizer] | None = None,
    ) -> None:
        missing, unknown = params.slices.keys() - lrs.keys(), lrs.keys() - params.slices.keys()
        if missing or unknown:
            problems = [f"'{name}' has no learning rate" for name in sorted(missing)]
            problems += [f"'{name}' is no part, but has a learning rate" for name in sorted(unknown)]
            raise ValueError(f"the parts are {', '.join(params.slices)}; {'; '.join(problems)}")
        self.params, self.context, self.config = params, context, context.optimizer
        self.parts = {name: filled(lr, self.config) for name, lr in lrs.items()}
        self.lrs = {name: part.lr for name, part in self.parts.items()}
        self.limits = {name: part.max_norm for name, part in self.parts.items() if part.max_norm is not None}
        self.rule: Rule
        if rule is not None or ":" in self.config.name:  # my_mod:MyOptimizer
            self.rule = UserRule(params, self.parts, self.config, rule or self.config.kind)
        elif self.config.name in ("adam", "adamw"):
            self.rule = FusedAdam(params, self.parts, self.config)
        elif self.config.name == "laprop":
            self.rule = LaProp(params, self.parts, self.config)
        else:
            self.rule = TorchOptim(params, self.parts, self.config)
        self.factor = 1.0  # the schedule's factor of all learning rates
        self.is_constant = self.config.is_constant
        # Without clipping, `metrics` computes the norm later. With `skips`, this would be wrong, because a skipped
        # update may have changed the gradient in the meantime.
        self.clips = self.config.max_norm is not None or bool(self.limits) or context.skips
        self.norm: Tensor | None = None  # of the last step's gradient, before clipping, if `_clip` computed it
        self._part_names = tuple(lrs)
        self._resolved: dict[tuple[str, ...], tuple[str, ...]] = {(): self._part_names}  # results of `_names`

    def schedule(self, position: int) -> None:
        """Set the learning rates for this position of the run, in environment steps or updates."""
        if not self.is_constant:
            self.factor = self.config.factor(position, self.context.clock.total)

    def zero_grad(self, parts: Sequence[str] | None = None) -> None:
        """Set the gradients of all parameters, or of some parts, to 0 before `loss.backward()`."""
        for name in self._names(parts or ()):
            self.params[name].grad.zero_()

    def minimize(self, loss: Tensor, *parts: str) -> None:
        """Compute the gradient of `loss` with autograd, and make one gradient step.

        The step changes all parameters, or only `parts`. Other parts do not change, even if the loss
        depends on them. As in plain torch, raise RuntimeError if a step has changed parameters after the loss was
        computed from them: compute each loss after the steps before it. Raise LookupError if there is no such part,
        ValueError as `Params.leaves` does, and NotFinite as `step` does.
        """
        names = self._resolved.get(parts) or self._names(parts)
        self.params.collect()
        self.params.differentiate(loss, names)
        self._step(names, (loss.detach(),))

    def step(self, *losses: Tensor, parts: Sequence[str] = ()) -> None:
        """Make one gradient step of all parameters, or only of `parts`, with `params.grad`.

        `params.grad` is averaged over the trainers and clipped in place. Other parts and gradients stay the same.
        With trainer.on_nonfinite=skip, raise NotFinite and change no parameter if the gradient, averaged over the
        trainers, is not finite, or if a trainer has a loss in `losses` that is not finite.
        """
        self.params.collect()
        self._step(self._names(parts), losses)

    def _step(self, names: tuple[str, ...], losses: Sequence[Tensor]) -> None:
        if names == self._part_names:
            grads = [self.params.grad]  # one tensor with the gradients of all parts
        else:
            grads = [self.params[name].grad for name in names]
            grads = [grad for grad in grads if len(grad)]  # a part may have no parameters
        recorder = recording()
        factor = self.factor if recorder is None else self._factor(recorder)
        if self.context.skips:
            _add_nan(grads[0], losses)
        if self.context.group.size > 1:
            for grad in grads:
                self.context.group.mean_(grad)
        if self.context.skips:
            self._check_finite(grads)
        if self.clips:
            self._clip(names, grads)
        self.rule.step(names, factor)
        self.params.changed(names)

    def _names(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the parts in the order of `params`, with its parts in place of a group; () means all."""
        names = {*self.params.names(parts)} or self._part_names
        for name in {*names}.difference(self._part_names):
            self.params[name]  # raises LookupError, because there is no such part
        found = self._resolved[tuple(parts)] = tuple(name for name in self._part_names if name in names)
        return found

    def _check_finite(self, grads: Sequence[Tensor]) -> None:
        """Raise NotFinite if a gradient is not finite. A recorder gets the condition instead, and undoes the update."""
        recorder = recording()
        if recorder is not None:
            recorder.require(torch.stack([grad.isfinite().all() for grad in grads]).all())
        elif not all(grad.isfinite().all() for grad in grads):
            raise NotFinite

    def _factor(self, recorder: Recording) -> float | Tensor:
        """Return the factor of the learning rates for an update that is recorded.

        The factor is a tensor if it changes during the run, so that repeated updates can use other values. If this is
        not possible, tell the recorder, which then gives up the record.
        """
        if recorder.wants_plain and not self.rule.is_plain:
            recorder.fail(f"optimizer={self.config.name} is not one of adam, adamw, laprop, radam, rmsprop and sgd")
        elif not self.is_constant:
            if self.rule.is_plain:
                return recorder.scalar(lambda counts: self.factor)
            recorder.fail("the learning rate of this optimizer is a number in Python")
        return self.factor

    def _clip(self, names: Sequence[str], grads: Sequence[Tensor]) -> None:
        """Store the norm of `grads`, the gradients of the parts `names`, and clip them in place.

        A part with its own limit is clipped alone, and all other parts are clipped together.
        """
        limit = self.config.max_norm
        norm = _norm(grads)
        self.norm = norm
        if self.limits:
            for name in names:
                if name in self.limits:
                    own = [self.params[name].grad]
                    _scale(own, limit=self.limits[name], norm=_norm(own))
            others = [self.params[name].grad for name in names if name not in self.limits]
            if limit is not None and others:
                _scale(others, limit=limit, norm=_norm(others))
        elif limit is not None:
            _scale(grads, limit=limit, norm=norm)

    def metrics(self) -> dict[str, float]:
        """Return `lr`, the present learning rate of the first part, and `grad_norm`, a gradient's norm before clipping.

        If the optimizer clips or skips, this is the gradient of the last step, only of the parts that the step changed.
        Otherwise, it is the present `params.grad`, which has the latest gradients of all parts.
        """
        norm = self.params.grad.norm() if self.norm is None else self.norm
        first_lr = next(iter(self.lrs.values()))
        return {"lr": first_lr * self.factor, "grad_norm": float(norm)}

    def state(self) -> dict[str, Tensor]:
        """Return CPU copies of all tensors to save, in the order of their names."""
        return {name: tensor.detach().cpu().clone() for name, tensor in sorted(self.rule.state().items())}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. If this is of another rule or shape, change nothing and raise ValueError."""
        self.rule.load_state(state)


def _add_nan(grad: Tensor, losses: Sequence[Tensor]) -> None:
    """Add NaN to the first value of a gradient if a loss is not finite. The average over trainers is then NaN, too."""
    for loss in losses:
        grad[0] += 0.0 * loss  # adds 0, or NaN if the loss is NaN or infinite


def _norm(grads: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of all gradients together, `[]`."""
    norms: list[Tensor] = [torch.linalg.vector_norm(grad) for grad in grads]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def _scale(grads: Sequence[Tensor], limit: float, norm: Tensor) -> None:
    """Clip gradients in place to the norm `limit`. `norm` `[]` is their present norm."""
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    for grad in grads:
        grad *= factor
