"""The rules by which an optimizer changes parameters: Adam, the classes of torch.optim, and the user's classes."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from drl_cli.chains import recording
from drl_cli.optim.modules import load_tensors
from drl_cli.optim.optimizer_config import OptimizerConfig, Part, takes
from drl_cli.optim.params import Params
from drl_cli.optim.plain_steps import PLAIN
from drl_cli.utils.lazy import Tensor, torch


class Rule(Protocol):
    """Changes the parameters of the parts `names` by their gradients. `factor` multiplies the learning rates.

    If `is_plain`, a recorded step (drl_cli.chains) consists of separate tensor operations, and `factor` may be a
    tensor.
    """

    @property
    def is_plain(self) -> bool: ...
    def step(self, names: Sequence[str], factor: float | Tensor) -> None: ...
    def state(self) -> dict[str, Tensor]: ...
    def load_state(self, state: Mapping[str, Tensor]) -> None: ...


def filled(part: float | Part, config: OptimizerConfig) -> Part:
    """Return a part's options, with None replaced by the values in `config`. A number is a learning rate."""
    own = part if isinstance(part, Part) else Part(part)
    if own.weight_decay is None:
        own = replace(own, weight_decay=config.weight_decay)
    if own.betas is None and "betas" in config.kwargs:
        own = replace(own, betas=tuple(config.kwargs["betas"]))
    return own


def arguments(name: str, part: Part, kind: Any, config: OptimizerConfig) -> dict[str, Any]:  # Any: a class, its options
    """Return the arguments of a part's torch optimizer; raise ValueError if it does not take an option."""
    options: dict[str, Any] = {"lr": part.lr, **config.kwargs}  # Any: arguments of the torch class
    taken = takes(kind)
    if "weight_decay" in taken:
        options["weight_decay"] = part.weight_decay
    elif part.weight_decay:
        raise ValueError(f"part '{name}': {kind.__name__} has no weight_decay")
    if part.betas is not None:
        if "betas" not in taken:
            raise ValueError(f"part '{name}': {kind.__name__} has no betas")
        options["betas"] = part.betas
    return options


class FusedAdam:
    """Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019). Parts with equal options share one fused kernel.

    torch.optim.Adam(fused=True) gives the same bits, but a run makes fewer updates per second: 27% fewer with a small
    DQN, 20% fewer with PPO, and 2% fewer with SAC and two layers of 256 units.
    """

    def __init__(self, params: Params, parts: Mapping[str, Part], config: OptimizerConfig) -> None:
        self.params, self.parts, self.config = params, parts, config
        self.mean, self.square = torch.zeros_like(params.flat), torch.zeros_like(params.flat)
        self.count = torch.zeros(len(parts), device=params.device)  # number of steps of each part
        self.options = {"eps": config.kwargs.get("eps", 1e-8), "amsgrad": False, "maximize": False}
        # names -> [(options, the kernel's five lists of tensors)]. A list has one view for each part of these options.
        self._views: dict[Sequence[str], list[tuple[Part, list[list[Tensor]]]]] = {}

    is_plain = True

    def step(self, names: Sequence[str], factor: float | Tensor) -> None:
        if (views := self._views.get(names)) is None:
            views = self._views[names] = self._views_of(names)
        if len(names) == len(self.parts):
            self.count += 1
        else:  # not by an index, which would be copied to the GPU in every step
            for _, (*_, counts) in views:
                for steps in counts:
                    steps += 1
        if (tape := recording()) and tape.wants_plain:
            for part, tensors in views:
                for own in zip(*tensors, strict=True):
                    self._plain_step(part, factor, *own)
            return
        fused = torch._fused_adam_ if self.config.name == "adam" else torch._fused_adamw_
        for part, (flat, grad, mean, square, count) in views:
            beta1, beta2 = part.betas or (0.9, 0.999)
            decay = part.weight_decay
            options = {"lr": part.lr * factor, "beta1": beta1, "beta2": beta2, "weight_decay": decay, **self.options}
            fused(flat, grad, mean, square, [], count, **options)

    def _plain_step(
        self,
        part: Part,
        factor: float | Tensor,
        flat: Tensor,
        grad: Tensor,
        mean: Tensor,
        square: Tensor,
        count: Tensor,
    ) -> None:
        """Make the same step as the fused kernel with separate operations, which can be compiled with the gradient."""
        (beta1, beta2), lr = part.betas or (0.9, 0.999), part.lr * factor
        if part.weight_decay and self.config.name == "adam":
            grad = grad + part.weight_decay * flat
        decay = 1.0 - lr * part.weight_decay if part.weight_decay and self.config.name == "adamw" else 1.0
        mean.copy_(beta1 * mean + (1.0 - beta1) * grad)
        square.copy_(beta2 * square + (1.0 - beta2) * grad * grad)
        steps = count.double()  # in float32, 1 - 0.999 would have only four correct digits
        size = (lr / (1.0 - beta1**steps)).float()
        scale = (1.0 - beta2**steps).rsqrt().float()
        flat.copy_(decay * flat - size * mean / (square.sqrt() * scale + self.options["eps"]))

    def _views_of(self, names: Sequence[str]) -> list[tuple[Part, list[list[Tensor]]]]:
        """Group these parts by their options; return (options, [flat, grad, mean, square, count]) for each group."""
        by_options: dict[Part, list[str]] = {}
        for name in names:
            by_options.setdefault(replace(self.parts[name], max_norm=None), []).append(name)
        groups = []
        for options, group in by_options.items():
            slices = [self.params.slices[name] for name in group]
            flats = (self.params.flat, self.params.grad, self.mean, self.square)
            lists = [[flat[where] for where in slices] for flat in flats]
            counts = [self.count[list(self.parts).index(name)] for name in group]
            groups.append((options, [*lists, counts]))
        return groups

    def state(self) -> dict[str, Tensor]:
        return {"optimizer.mean": self.mean, "optimizer.square": self.square, "optimizer.count": self.count}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        load_tensors(self.state(), state)


class OneForEachPart(ABC):
    """A rule with one torch optimizer for each part that has parameters.

    A checkpoint has the optimizer's state of each parameter, `optimizer.<part>.<index>.<name>`, and the state of the
    whole part, `optimizer.<part>.group.<name>`.
    """

    is_plain = False

    def __init__(self, params: Params, parts: Mapping[str, Part], config: OptimizerConfig, kind: Any) -> None:
        self.parts = parts
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            name: kind(self.leaves(params, name), **arguments(name, part, kind, config))
            for name, part in parts.items()
            if len(params[name].flat)
        }

    @staticmethod
    @abstractmethod
    def leaves(params: Params, name: str) -> Sequence[Tensor]:
        """Return the tensors of a part that its optimizer changes, with their gradients in `grad`."""

    def step(self, names: Sequence[str], factor: float | Tensor) -> None:
        for name in names:
            if name in self.optimizers:
                self.optimizers[name].param_groups[0]["lr"] = self.parts[name].lr * factor
                self.optimizers[name].step()

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to save. A number `name` is saved as a tensor without dimensions, `number.<name>`."""
        saved: dict[str, Tensor] = {}
        for name, optimizer in self.optimizers.items():
            for place, memory in _memories(optimizer).items():
                for key, value in memory.items():
                    if isinstance(value, torch.Tensor):
                        saved[f"optimizer.{name}.{place}.{key}"] = value
                    elif isinstance(value, int | float):
                        number = torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)
                        saved[f"optimizer.{name}.{place}.number.{key}"] = number
        return saved

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. If a part or a shape does not fit, change nothing and raise ValueError."""
        loaded = [self._located(name, value) for name, value in state.items() if name.startswith("optimizer.")]
        for optimizer in self.optimizers.values():
            optimizer.state.clear()
            group = optimizer.param_groups[0]
            for key in group.keys() - {"params", "lr"} - optimizer.defaults.keys():
                del group[key]
            group.update({key: value for key, value in optimizer.defaults.items() if key != "lr"})
        for (optimizer, place, key), value in loaded:
            group = optimizer.param_groups[0]
            memory = group if place == "group" else optimizer.state[group["params"][int(place)]]
            if key.startswith("number."):
                memory[key.removeprefix("number.")] = value.item()
            else:  # as in torch.optim, only single values stay on the CPU
                memory[key] = value.clone() if value.ndim == 0 else value.to(group["params"][0].device, copy=True)

    def _located(self, name: str, value: Tensor) -> tuple[tuple[torch.optim.Optimizer, str, str], Tensor]:
        """Find where a saved tensor with the name `optimizer.PART.PLACE.KEY` belongs.

        Return ((optimizer of the part, place, key), value). The place is the index of a parameter, "0", "1", ..., or
        "group" for a value of the optimizer's param group.

        Raise ValueError if no optimizer has this tensor, or if its shape is that of another parameter.
        """
        _, part, *rest = name.split(".", 3)
        if len(rest) == 1:  # earlier versions left out the index if a part had only one parameter
            rest = ["0", *rest]
        place, key = rest if len(rest) == 2 else ("", "")
        optimizer = self.optimizers.get(part)
        parameters = optimizer.param_groups[0]["params"] if optimizer else []
        if optimizer is None or place not in ("group", *map(str, range(len(parameters)))) or not self.knows(key):
            raise ValueError(f"saved '{name}' is of another optimizer")
        expected = value.shape if place == "group" else parameters[int(place)].shape
        has_parameters_shape = value.ndim == len(expected)  # other values, such as a count of steps, are single numbers
        if has_parameters_shape and value.shape != expected:
            raise ValueError(f"saved '{name}' has shape {tuple(value.shape)}, needed is {tuple(expected)}")
        return (optimizer, place, key), value

    def knows(self, key: str) -> bool:
        """Return whether the state of these optimizers can have a tensor or number with this name."""
        return True


class TorchOptim(OneForEachPart):
    """The optimizers of torch.optim, except Adam and AdamW. Each optimizer works on the flat tensor of a part."""

    def __init__(self, params: Params, parts: Mapping[str, Part], config: OptimizerConfig) -> None:
        super().__init__(params, parts, config, config.kind)
        self.name = config.name
        self.is_plain = config.name in PLAIN and not config.kwargs.keys() & {"dampening", "decoupled_weight_decay"}

    @staticmethod
    def leaves(params: Params, name: str) -> Sequence[Tensor]:
        part = params[name]
        part.flat.grad = part.grad
        return [part.flat]

    def step(self, names: Sequence[str], factor: float | Tensor) -> None:
        if not self.is_plain:
            super().step(names, factor)
            return
        for name in names:
            if name in self.optimizers:
                (group,) = self.optimizers[name].param_groups
                (flat,) = group["params"]
                grad = flat.grad if flat.grad is not None else torch.zeros_like(flat)
                memory = self.optimizers[name].state[flat]
                PLAIN[self.name](group, memory, flat, grad, self.parts[name].lr * factor)

    def knows(self, key: str) -> bool:
        return key in self._known

    @cached_property
    def _known(self) -> set[str]:
        """The names of the tensors in an optimizer's state, found by one step of a new optimizer with equal options."""
        used = next(iter(self.optimizers.values()))
        value = torch.zeros(1)
        value.grad = torch.zeros(1)
        names = inspect.signature(type(used)).parameters.keys() & used.defaults.keys()
        optimizer = type(used)([value], **{name: used.defaults[name] for name in names})
        optimizer.step()
        return {key for key, kept in optimizer.state[value].items() if kept is not None}


class OwnRule(OneForEachPart):
    """A user's class, derived from torch.optim.Optimizer. It gets the parameters of a part's module in their shapes."""

    @staticmethod
    def leaves(params: Params, name: str) -> Sequence[Tensor]:
        return params.leaves([name]) if name in params.modules else [params.value(name)]


def _memories(optimizer: torch.optim.Optimizer) -> dict[str, Mapping[str, Any]]:  # Any: tensors, numbers, others
    """Return an optimizer's state: index of the parameter -> its state, and `group` -> the state of the whole part."""
    (group,) = optimizer.param_groups
    memories = {str(i): optimizer.state.get(leaf, {}) for i, leaf in enumerate(group["params"])}
    return memories | {"group": {key: value for key, value in group.items() if _is_changed(optimizer, key, value)}}


def _is_changed(optimizer: torch.optim.Optimizer, key: str, value: Any) -> bool:  # Any: an option of any type
    """Return whether a checkpoint has to save this option: a step of the optimizer added or changed it."""
    if key in ("params", "lr") or not isinstance(value, int | float | torch.Tensor):
        return False
    return key not in optimizer.defaults or value is not optimizer.defaults[key]
