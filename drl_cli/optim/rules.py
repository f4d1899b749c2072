"""The update rules of an optimizer: Adam, the classes of torch.optim, and the user's classes."""

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
    """An update rule, such as Adam. `step` changes the parameters of some parts with the gradients in `Params.grad`.

    `names` has the names of the parts, such as "critic". `factor` multiplies the learning rates. If `is_plain` is True,
    `factor` may be a tensor, and a step that is recorded for compilation (drl_cli.chains) consists of simple tensor
    operations.
    """

    @property
    def is_plain(self) -> bool: ...
    def step(self, names: Sequence[str], factor: float | Tensor) -> None: ...
    def state(self) -> dict[str, Tensor]: ...
    def load_state(self, state: Mapping[str, Tensor]) -> None: ...


def filled(part: float | Part, config: OptimizerConfig) -> Part:
    """Return the options of one part (such as the critic), with None replaced by the values in `config`.

    `part` has options of the part, or only its learning rate.
    """
    own = part if isinstance(part, Part) else Part(part)
    if own.weight_decay is None:
        own = replace(own, weight_decay=config.weight_decay)
    if own.betas is None and "betas" in config.kwargs:
        own = replace(own, betas=tuple(config.kwargs["betas"]))
    return own


def arguments(name: str, part: Part, kind: Any, config: OptimizerConfig) -> dict[str, Any]:  # Any: a class, its options
    """Return the keyword arguments for an optimizer of the torch class `kind` that optimizes one part.

    `name` is the name of the part, such as "critic", and `part` has its options. Raise ValueError if the class does not
    take one of these options.
    """
    options: dict[str, Any] = {"lr": part.lr, **config.kwargs}  # Any: arguments of the torch class
    known = takes(kind)
    if "weight_decay" in known:
        options["weight_decay"] = part.weight_decay
    elif part.weight_decay:
        raise ValueError(f"part '{name}': {kind.__name__} has no weight_decay")
    if part.betas is not None:
        if "betas" not in known:
            raise ValueError(f"part '{name}': {kind.__name__} has no betas")
        options["betas"] = part.betas
    return options


class FusedAdam:
    """Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019), with torch's fused kernel.

    One call of the kernel changes all parts (such as actor and critic) that have equal options. The class
    torch.optim.Adam(fused=True) gives the same bits, but with it, a run makes fewer updates per second: 27% fewer with
    a small DQN, 20% fewer with PPO, and 2% fewer with SAC and two layers of 256 units.
    """

    is_plain = True

    def __init__(self, params: Params, parts: Mapping[str, Part], config: OptimizerConfig) -> None:
        self.params, self.parts, self.config = params, parts, config
        self.mean, self.square = torch.zeros_like(params.flat), torch.zeros_like(params.flat)
        self.count = torch.zeros(len(parts), device=params.device)  # number of steps of each part
        self.kernel_options = {"eps": config.kwargs.get("eps", 1e-8), "amsgrad": False, "maximize": False}
        # What `_groups_of` returned for these names
        self._groups: dict[Sequence[str], list[tuple[Part, list[list[Tensor]]]]] = {}

    def step(self, names: Sequence[str], factor: float | Tensor) -> None:
        groups = self._groups.get(names)
        if groups is None:
            groups = self._groups[names] = self._groups_of(names)
        self._count_step(names, groups)
        recorder = recording()
        if recorder is not None and recorder.wants_plain:
            for part, lists in groups:
                for tensors_of_part in zip(*lists, strict=True):
                    self._plain_step(part, factor, *tensors_of_part)
            return
        fused = torch._fused_adam_ if self.config.name == "adam" else torch._fused_adamw_
        no_maxima: list[Tensor] = []  # the maxima of the squares, which only amsgrad needs
        for part, (flats, grads, means, squares, counts) in groups:
            beta1, beta2 = part.betas or (0.9, 0.999)
            lr, decay = part.lr * factor, part.weight_decay
            keywords = {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": decay, **self.kernel_options}
            fused(flats, grads, means, squares, no_maxima, counts, **keywords)

    def _count_step(self, names: Sequence[str], groups: Sequence[tuple[Part, list[list[Tensor]]]]) -> None:
        """Add 1 to the number of steps of the parts `names`. `groups` has views of these numbers."""
        if len(names) == len(self.parts):
            self.count += 1
            return
        for _, (*_, counts) in groups:  # views, because a list of indices would be copied to the GPU in every step
            for count in counts:
                count += 1

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
        """Make Adam's step of one part with simple tensor operations, which can be compiled together with the gradient.

        `flat`, `grad`, `mean` and `square` are `[size]`, and `count` is `[]`. The result equals that of the fused
        kernel up to rounding.
        """
        beta1, beta2 = part.betas or (0.9, 0.999)
        lr = part.lr * factor
        decay: float | Tensor = 1.0
        if part.weight_decay and self.config.name == "adam":
            grad = grad + part.weight_decay * flat
        elif part.weight_decay:  # adamw
            decay = 1.0 - lr * part.weight_decay
        mean.copy_(beta1 * mean + (1.0 - beta1) * grad)
        square.copy_(beta2 * square + (1.0 - beta2) * grad * grad)
        steps = count.double()  # in float32, 1 - 0.999 would have only four correct digits
        step_size = (lr / (1.0 - beta1**steps)).float()
        scale = (1.0 - beta2**steps).rsqrt().float()
        flat.copy_(decay * flat - step_size * mean / (square.sqrt() * scale + self.kernel_options["eps"]))

    def _groups_of(self, names: Sequence[str]) -> list[tuple[Part, list[list[Tensor]]]]:
        """Group the parts `names` (such as actor and critic) by their options; return (options, lists) for each group.

        The lists are the kernel's arguments: flat, grad, mean, square and count. Each list has one view for each part
        of the group.
        """
        by_options: dict[Part, list[str]] = {}
        for name in names:
            options = replace(self.parts[name], max_norm=None)  # the optimizer has clipped the gradient before
            by_options.setdefault(options, []).append(name)
        groups = []
        for options, members in by_options.items():
            slices = [self.params.slices[name] for name in members]
            whole = (self.params.flat, self.params.grad, self.mean, self.square)
            lists = [[tensor[where] for where in slices] for tensor in whole]
            counts = [self.count[list(self.parts).index(name)] for name in members]
            groups.append((options, [*lists, counts]))
        return groups

    def state(self) -> dict[str, Tensor]:
        return {"optimizer.mean": self.mean, "optimizer.square": self.square, "optimizer.count": self.count}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        load_tensors(self.state(), state)


class OneForEachPart(ABC):
    """The base of rules that have a separate torch optimizer for each part, such as the critic.

    A checkpoint has the optimizer's state of each parameter as `optimizer.<part>.<index>.<name>`. Options that the
    optimizer has changed are saved as `optimizer.<part>.group.<name>`.
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
        """Return the tensors that the optimizer of the part `name` (such as the critic) changes, with their `grad`."""

    def step(self, names: Sequence[str], factor: float | Tensor) -> None:
        for name in names:
            if name in self.optimizers:
                self.optimizers[name].param_groups[0]["lr"] = self.parts[name].lr * factor
                self.optimizers[name].step()

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint saves, by name.

        A Python number in an optimizer's state is saved as a tensor `[]` with the name `number.<name>`.
        """
        saved: dict[str, Tensor] = {}
        for name, optimizer in self.optimizers.items():
            for place, memory in _memories(optimizer).items():
                for key, value in memory.items():
                    if isinstance(value, torch.Tensor):
                        saved[f"optimizer.{name}.{place}.{key}"] = value
                    elif isinstance(value, int | float):
                        dtype = torch.int64 if isinstance(value, int) else torch.float64
                        saved[f"optimizer.{name}.{place}.number.{key}"] = torch.tensor(value, dtype=dtype)
        return saved

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. If a name or a shape does not fit, change nothing and raise ValueError."""
        loaded = [self._located(name, value) for name, value in state.items() if name.startswith("optimizer.")]
        for optimizer in self.optimizers.values():
            _forget(optimizer)
        for (optimizer, place, key), value in loaded:
            group = optimizer.param_groups[0]
            memory = group if place == "group" else optimizer.state[group["params"][int(place)]]
            if key.startswith("number."):
                memory[key.removeprefix("number.")] = value.item()
            elif value.ndim == 0:  # a number, such as the count of steps, stays on the CPU, as in torch.optim
                memory[key] = value.clone()
            else:
                memory[key] = value.to(group["params"][0].device, copy=True)

    def _located(self, name: str, value: Tensor) -> tuple[tuple[torch.optim.Optimizer, str, str], Tensor]:
        """Find the optimizer to which a saved tensor with the name `optimizer.PART.PLACE.KEY` belongs.

        Return ((optimizer of the part, place, key), value). The place is the index of a parameter, "0", "1", ..., or
        "group" for a value in the optimizer's param group.

        Raise ValueError if no optimizer has such a tensor, or if the shape differs from that of the parameter.
        """
        _, part, *rest = name.split(".", 3)
        if len(rest) == 1:  # earlier versions left out the index if a part had only one parameter
            rest = ["0", *rest]
        place, key = rest if len(rest) == 2 else ("", "")
        optimizer = self.optimizers.get(part)
        parameters = optimizer.param_groups[0]["params"] if optimizer else []
        places = ["group", *map(str, range(len(parameters)))]
        if optimizer is None or place not in places or not self.knows(key):
            raise ValueError(f"saved '{name}' is of another optimizer")
        expected = value.shape if place == "group" else parameters[int(place)].shape
        is_like_parameter = value.ndim == len(expected)  # other values are single numbers, such as a count of steps
        if is_like_parameter and value.shape != expected:
            raise ValueError(f"saved '{name}' has shape {tuple(value.shape)}, needed is {tuple(expected)}")
        return (optimizer, place, key), value

    def knows(self, key: str) -> bool:
        """Return whether `key` can be the name of a tensor or number in the state of these optimizers."""
        return True


class TorchOptim(OneForEachPart):
    """The rules of torch.optim, except Adam and AdamW. Their optimizers get all parameters of a part as one tensor."""

    def __init__(self, params: Params, parts: Mapping[str, Part], config: OptimizerConfig) -> None:
        super().__init__(params, parts, config, config.kind)
        self.name = config.name
        has_other_options = not config.kwargs.keys().isdisjoint({"dampening", "decoupled_weight_decay"})
        self.is_plain = config.name in PLAIN and not has_other_options

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
        """The names of the tensors in an optimizer's state, found with one step of another optimizer of this class."""
        used = next(iter(self.optimizers.values()))
        names = inspect.signature(type(used)).parameters.keys() & used.defaults.keys()
        options = {name: used.defaults[name] for name in names}
        parameter = torch.zeros(1)
        parameter.grad = torch.zeros(1)
        optimizer = type(used)([parameter], **options)
        optimizer.step()
        return {key for key, value in optimizer.state[parameter].items() if value is not None}


class OwnRule(OneForEachPart):
    """The rule of a user's class derived from torch.optim.Optimizer, which gets the parameters as separate tensors."""

    @staticmethod
    def leaves(params: Params, name: str) -> Sequence[Tensor]:
        return params.leaves([name]) if name in params.modules else [params.value(name)]


def _memories(optimizer: torch.optim.Optimizer) -> dict[str, Mapping[str, Any]]:  # Any: tensors, numbers, others
    """Return an optimizer's state: a dict for each parameter by its index, and a dict `group` of changed options."""
    (group,) = optimizer.param_groups
    memories = {str(i): optimizer.state.get(leaf, {}) for i, leaf in enumerate(group["params"])}
    changed = {key: value for key, value in group.items() if _is_changed(optimizer, key, value)}
    return memories | {"group": changed}


def _is_changed(optimizer: torch.optim.Optimizer, key: str, value: Any) -> bool:  # Any: an option of any type
    """Return whether a step of the optimizer has added or changed this option, so that a checkpoint has to save it."""
    if key in ("params", "lr") or not isinstance(value, int | float | torch.Tensor):
        return False
    return key not in optimizer.defaults or value is not optimizer.defaults[key]


def _forget(optimizer: torch.optim.Optimizer) -> None:
    """Clear the optimizer's state, and set its options except the learning rate to their initial values."""
    optimizer.state.clear()
    group = optimizer.param_groups[0]
    for key in group.keys() - {"params", "lr"} - optimizer.defaults.keys():
        del group[key]
    group.update({key: value for key, value in optimizer.defaults.items() if key != "lr"})
