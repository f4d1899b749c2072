"""Optimizer: from gradients to parameters; the only place that averages over trainers and skips what is not finite."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Protocol

from drl_cli.optim.group import Context
from drl_cli.optim.optimizer_config import OPTIMIZERS, OptimizerConfig
from drl_cli.optim.params import Params, load_tensors, trained
from drl_cli.utils.lazy import torch


class NotFinite(Exception):
    """A loss or gradient of an update is NaN or infinite, and such updates are to be left out."""


class Rule(Protocol):
    """Changes the parameters of some parts, given their gradients."""

    def step(self, names: Sequence[str], factor: float) -> None:
        """Once, with the learning rates times this factor."""

    def state(self) -> "dict[str, torch.Tensor]":
        """Everything to go on from: the tensors themselves."""

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Go on from `state()`; raises ValueError when names or shapes differ."""


class Optimizer:
    """Steps all parts of `params`, or some, by the run's optimizer; `lrs` are the learning rates of all parts.

    The gradient is averaged over the trainers first, and then, where `optimizer.max_norm` says so, scaled down to that
    length, over all parts of the step together.
    """

    def __init__(self, params: Params, lrs: Mapping[str, float], context: Context) -> None:
        assert lrs.keys() == params.slices.keys()
        self.params, self.context, self.config, self.lrs = params, context, context.optimizer, dict(lrs)
        rule = FusedAdam if self.config.name in ("adam", "adamw") else TorchOptim
        self.rule: Rule = rule(params, lrs, self.config)
        self.factor = 1.0
        self.norm: torch.Tensor | None = None
        self._all = tuple(lrs)

    def schedule(self, env_steps: int) -> None:
        """Set the learning rates for this moment of the run."""
        self.factor = self.config.factor(env_steps, self.context.total_env_steps)

    def zero_grad(self, parts: Sequence[str] | None = None) -> None:
        """Set the gradients of these parts, or of all, to 0, which `loss.backward()` adds to."""
        for name in parts or self._all:
            self.params[name].grad.zero_()

    def minimize(self, loss: "torch.Tensor", *parts: str) -> None:
        """One step of these parts, or of all, down the gradient of a loss that autograd knows.

        Only their gradients are computed, although the loss may depend on other parts too.
        """
        self.params.collect()
        self.zero_grad(parts)
        modules = [module for name, module in self.params.modules.items() if name in (parts or self._all)]
        torch.autograd.backward(loss, inputs=[p for module in modules for _, p in trained(module)])
        self.step(loss.detach(), parts=parts)

    def step(self, *losses: "torch.Tensor", parts: Sequence[str] = ()) -> None:
        """One step of these parts, or of all, from their gradients.

        With trainer.on_nonfinite=skip it raises NotFinite, having changed nothing, where one of anyone's `losses` or
        the averaged gradient is not finite.
        """
        self.params.collect()
        names = tuple(parts) or self._all
        grads = self._gradients(names)
        if self.context.skips:
            grads[0][0] += 0.0 * sum(losses)  # NaN for all trainers where one is not finite
        for grad in grads:
            self.context.group.mean_(grad)
        if self.context.skips and not all(grad.isfinite().all() for grad in grads):
            raise NotFinite
        limit = self.config.max_norm
        if limit is not None or self.context.skips:
            self.norm = norm = _length(grads)
            if limit is not None:
                for grad in grads:
                    grad *= (limit / (norm + 1e-6)).clamp(max=1.0)
        self.rule.step(names, self.factor)

    def metrics(self) -> "dict[str, float]":
        """The learning rate of the first part, and the length of the last step's gradient before it was clipped."""
        norm = self.params.grad.norm() if self.norm is None else self.norm
        return {"lr": next(iter(self.lrs.values())) * self.factor, "grad_norm": float(norm)}

    def state(self) -> "dict[str, torch.Tensor]":
        """Everything to go on from, copies on the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.rule.state().items()}

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Go on from `state()`; raises ValueError when names or shapes differ."""
        self.rule.load_state(state)

    def _gradients(self, names: tuple[str, ...]) -> "list[torch.Tensor]":
        if names == self._all:
            return [self.params.grad]
        return [grad for name in names if len(grad := self.params[name].grad)]


def _length(grads: "Sequence[torch.Tensor]") -> "torch.Tensor":
    norms: list[torch.Tensor] = [torch.linalg.vector_norm(grad) for grad in grads]
    if len(norms) == 1:
        return norms[0]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


class FusedAdam:
    """Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019): one fused call per learning rate."""

    def __init__(self, params: Params, lrs: Mapping[str, float], config: OptimizerConfig) -> None:
        self.params, self.lrs, self.config = params, lrs, config
        self.mean, self.square = torch.zeros_like(params.flat), torch.zeros_like(params.flat)
        self.count = torch.zeros(len(lrs), device=params.device)  # of each part: they may step at different times
        self.beta1, self.beta2 = config.kwargs.get("betas", (0.9, 0.999))
        self.eps = config.kwargs.get("eps", 1e-8)
        self._views: dict[Sequence[str], dict[float, list[list[torch.Tensor]]]] = {}

    def step(self, names: Sequence[str], factor: float) -> None:
        views = self._views.get(names) or self._make_views(names)
        if len(names) == len(self.lrs):
            self.count += 1
        else:
            self.count[[list(self.lrs).index(name) for name in names]] += 1
        fused = torch._fused_adam_ if self.config.name == "adam" else torch._fused_adamw_
        for lr, (flat, grad, mean, square, count) in views.items():
            fused(
                flat,
                grad,
                mean,
                square,
                [],
                count,
                lr=lr * factor,
                beta1=self.beta1,
                beta2=self.beta2,
                weight_decay=self.config.weight_decay,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )

    def state(self) -> "dict[str, torch.Tensor]":
        return {"optimizer.mean": self.mean, "optimizer.square": self.square, "optimizer.count": self.count}

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        load_tensors(self.state(), state)

    def _make_views(self, names: Sequence[str]) -> "dict[float, list[list[torch.Tensor]]]":
        """By learning rate: of each tensor those of its parts."""
        views: dict[float, list[list[torch.Tensor]]] = {}
        for lr in dict.fromkeys(self.lrs[name] for name in names):
            mine = [name for name in names if self.lrs[name] == lr]
            tensors = (self.params.flat, self.params.grad, self.mean, self.square)
            views[lr] = [[tensor[self.params.slices[name]] for name in mine] for tensor in tensors]
            views[lr].append([self.count[list(self.lrs).index(name)] for name in mine])
        self._views[names] = views
        return views


class TorchOptim:
    """Any other class of torch.optim: one of them for each part."""

    def __init__(self, params: Params, lrs: Mapping[str, float], config: OptimizerConfig) -> None:
        self.lrs, self.name, self.kind = lrs, config.name, getattr(torch.optim, OPTIMIZERS[config.name])
        self.options = dict(config.kwargs)
        if "weight_decay" in inspect.signature(self.kind).parameters:
            self.options["weight_decay"] = config.weight_decay
        self.optimizers, self.flat = {}, {}
        for name, lr in lrs.items():
            part = params[name]
            if len(part.flat):
                part.flat.grad = part.grad
                self.flat[name] = part.flat
                self.optimizers[name] = self.kind([part.flat], lr=lr, **self.options)

    def step(self, names: Sequence[str], factor: float) -> None:
        for name in names:
            if name in self.optimizers:
                self.optimizers[name].param_groups[0]["lr"] = self.lrs[name] * factor
                self.optimizers[name].step()

    def state(self) -> "dict[str, torch.Tensor]":
        """Nothing of a part before its first step."""
        parts = self.optimizers.items()
        return {f"optimizer.{n}.{key}": value for n, one in parts for key, value in _memory(one, self.flat[n]).items()}

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        known, loaded = self._names(), dict[str, dict[str, torch.Tensor]]()
        for name in self.optimizers:
            prefix = f"optimizer.{name}."
            own = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            if own and own.keys() != known:
                has = ", ".join(f"'{prefix}{key}'" for key in sorted(own))
                raise ValueError(f"saved are {has}; {self.name} has {', '.join(sorted(known)) or 'nothing to save'}")
            for key, value in own.items():
                if value.ndim and value.shape != self.flat[name].shape:
                    shapes = tuple(value.shape), tuple(self.flat[name].shape)
                    raise ValueError(f"saved '{prefix}{key}' has shape {shapes[0]}, needed is {shapes[1]}")
            loaded[name] = own
        strange = [key for key in state if key.startswith("optimizer.") and key.split(".")[1] not in self.optimizers]
        if strange:
            raise ValueError(f"saved '{min(strange)}' is of another optimizer")
        for name, own in loaded.items():
            groups = self.optimizers[name].state_dict()["param_groups"]
            self.optimizers[name].load_state_dict({"state": {0: own} if own else {}, "param_groups": groups})

    def _names(self) -> set[str]:
        """What it remembers of a part from the first step on, as a step of one value shows."""
        value = torch.zeros(1)
        value.grad = torch.zeros(1)
        optimizer = self.kind([value], lr=1.0, **self.options)
        optimizer.step()
        return set(_memory(optimizer, value))


def _memory(optimizer: "torch.optim.Optimizer", value: "torch.Tensor") -> "dict[str, torch.Tensor]":
    """What an optimizer of torch remembers of one of its values."""
    memory = optimizer.state.get(value, {})
    return {key: memory[key] for key in sorted(memory) if isinstance(memory[key], torch.Tensor)}
