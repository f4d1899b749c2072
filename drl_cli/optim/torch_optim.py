"""Update rules that call torch optimizers: the classes of torch.optim, and the user's classes."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from drl_cli.optim.optimizer_config import OptimizerConfig, Part, argument_names
from drl_cli.optim.params import Params
from drl_cli.optim.plain_steps import PLAIN
from drl_cli.utils.lazy import Tensor, torch


class OneForEachPart(ABC):
    """The base of rules that have a separate torch optimizer for each part.

    A checkpoint has the optimizer's state of each parameter as `optimizer.<part>.<index>.<name>`. Options that the
    optimizer has changed are saved as `optimizer.<part>.group.<name>`.
    """

    is_plain = False

    def __init__(self, params: Params, parts: Mapping[str, Part], config: OptimizerConfig, kind: Any) -> None:
        self.parts = parts
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            name: kind(self.leaves(params, name), **optimizer_arguments(kind, name, part=part, config=config))
            for name, part in parts.items()
            if len(params[name].flat)  # torch refuses an optimizer without parameters
        }

    @staticmethod
    @abstractmethod
    def leaves(params: Params, name: str) -> Sequence[Tensor]:
        """Return the tensors that the optimizer of the part `name` changes, with their `grad`."""

    def step(self, names: Sequence[str], factor: float | Tensor) -> None:
        for name in names:
            if name in self.optimizers:
                self.optimizers[name].param_groups[0]["lr"] = self.parts[name].lr * factor
                self.optimizers[name].step()

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint saves, by name.

        A Python number in an optimizer's state is saved as a tensor `[]` with the name `number.<name>`. Values that are
        neither tensors nor numbers are not saved.
        """
        saved: dict[str, Tensor] = {}
        for name, optimizer in self.optimizers.items():
            for place, values in _values(optimizer).items():
                for key, value in values.items():
                    if isinstance(value, torch.Tensor):
                        saved[f"optimizer.{name}.{place}.{key}"] = value
                    elif isinstance(value, int | float):
                        dtype = torch.int64 if isinstance(value, int) else torch.float64
                        saved[f"optimizer.{name}.{place}.number.{key}"] = torch.tensor(value, dtype=dtype)
        return saved

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. If a name or a shape does not fit, change nothing and raise ValueError."""
        saved = {name: value for name, value in state.items() if name.startswith("optimizer.")}
        loaded = [(*self._located(name, value), value) for name, value in saved.items()]
        for optimizer in self.optimizers.values():
            _reset(optimizer)
        for optimizer, place, key, value in loaded:
            group = optimizer.param_groups[0]
            values = group if place == "group" else optimizer.state[group["params"][int(place)]]
            if key.startswith("number."):
                values[key.removeprefix("number.")] = value.item()
            elif value.ndim == 0:  # a number, such as the count of steps, stays on the CPU, as in torch.optim
                values[key] = value.clone()
            else:
                values[key] = value.to(group["params"][0].device, copy=True)

    def _located(self, name: str, value: Tensor) -> tuple[torch.optim.Optimizer, str, str]:
        """Find the optimizer to which the saved tensor `value` with the name `optimizer.PART.PLACE.KEY` belongs.

        Return the optimizer of the part, the place and the key. The place is the index of a parameter, "0", "1", ...,
        or "group" for a value in the optimizer's param group. Raise ValueError if no optimizer has such a tensor, or if
        its shape does not fit the parameter.
        """
        _, part, *rest = name.split(".", 3)
        place, key = rest if len(rest) == 2 else ("", "")  # an incomplete name is refused below
        optimizer = self.optimizers.get(part)
        parameters = optimizer.param_groups[0]["params"] if optimizer else []
        places = ["group", *map(str, range(len(parameters)))]
        if optimizer is None or place not in places or not self.knows(key):
            raise ValueError(f"saved '{name}' is of another optimizer")
        expected = value.shape if place == "group" else parameters[int(place)].shape
        is_like_parameter = value.ndim == len(expected)  # other values are single numbers, such as a count of steps
        if is_like_parameter and value.shape != expected:
            raise ValueError(f"saved '{name}' has shape {tuple(value.shape)}, needed is {tuple(expected)}")
        return optimizer, place, key

    def knows(self, key: str) -> bool:
        """Return whether `key` can be the name of a tensor or number in the state of these optimizers."""
        return True


class TorchOptim(OneForEachPart):
    """The rules of torch.optim except Adam and AdamW. Each optimizer gets all parameters of its part as one tensor."""

    def __init__(self, params: Params, parts: Mapping[str, Part], config: OptimizerConfig) -> None:
        super().__init__(params, parts, config, config.kind)
        self.name = config.name
        other_options = config.kwargs.keys() & {"dampening", "decoupled_weight_decay"}  # which PLAIN does not have
        self.is_plain = config.name in PLAIN and not other_options

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
                state = self.optimizers[name].state[flat]
                PLAIN[self.name](group, state, flat=flat, grad=flat.grad, lr=self.parts[name].lr * factor)

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


class UserRule(OneForEachPart):
    """The rule of a user's class derived from torch.optim.Optimizer, which gets the parameters as separate tensors."""

    @staticmethod
    def leaves(params: Params, name: str) -> Sequence[Tensor]:
        return params.leaves([name]) if name in params.modules else [params.value(name)]


def _values(optimizer: torch.optim.Optimizer) -> dict[str, Mapping[str, Any]]:  # Any: tensors, numbers, others
    """Return an optimizer's state: a dict for each parameter by its index, and a dict `group` of changed options."""
    (group,) = optimizer.param_groups
    of_parameters = {str(i): optimizer.state.get(leaf, {}) for i, leaf in enumerate(group["params"])}
    changed = {key: value for key, value in group.items() if _is_changed(optimizer, key, value)}
    return of_parameters | {"group": changed}


def _is_changed(optimizer: torch.optim.Optimizer, key: str, value: Any) -> bool:  # Any: an option of any type
    """Return whether a step of the optimizer may have added or changed this option, so that a checkpoint saves it."""
    if key in ("params", "lr") or not isinstance(value, int | float | torch.Tensor):
        return False
    if isinstance(value, torch.Tensor):
        return True  # a step may have changed it in place, and `defaults` may have the same tensor
    return key not in optimizer.defaults or value is not optimizer.defaults[key]  # a step sets a new object


def _reset(optimizer: torch.optim.Optimizer) -> None:
    """Clear the optimizer's state, and set its options except the learning rate to their initial values."""
    optimizer.state.clear()
    group = optimizer.param_groups[0]
    for key in group.keys() - {"params", "lr"} - optimizer.defaults.keys():
        del group[key]
    group.update({key: value for key, value in optimizer.defaults.items() if key != "lr"})


def optimizer_arguments(kind: Any, name: str, part: Part, config: OptimizerConfig) -> dict[str, Any]:  # Any: a class
    """Return the keyword arguments for an optimizer of the torch class `kind` that optimizes one part.

    `name` is the name of the part, and `part` has its options. Raise ValueError if the part sets
    weight_decay or betas and the class does not take this argument.
    """
    options: dict[str, Any] = {"lr": part.lr, **config.kwargs}  # Any: arguments of the torch class
    known = argument_names(kind)
    if "weight_decay" in known:
        options["weight_decay"] = part.weight_decay
    elif part.weight_decay:
        raise ValueError(f"part '{name}': {kind.__name__} has no weight_decay")
    if part.betas is not None:
        if "betas" not in known:
            raise ValueError(f"part '{name}': {kind.__name__} has no betas")
        options["betas"] = part.betas
    return options
