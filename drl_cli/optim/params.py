"""Params: all parameters of an algorithm in one flat tensor, their gradients in another, and target networks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from drl_cli.errors import Refused
from drl_cli.optim.context import Context
from drl_cli.optim.modules import (
    check_module,
    copied,
    frozen,
    load_tensors,
    prepare,
    share,
    trained,
    untrained,
    views,
)
from drl_cli.utils.lazy import Tensor, torch

if TYPE_CHECKING:
    from torch import nn

    Named = list[tuple[str, Tensor]]


class Group(Protocol):
    """Several modules by name, such as an encoder's torso and memory."""

    parts: dict[str, nn.Module]


@dataclass(frozen=True)
class FlatPart:
    """The parameters of a network or of a part of `Params`, and their gradients: two tensors `[size]`."""

    flat: Tensor
    grad: Tensor


class Params:
    """All parameters of an algorithm in one tensor `flat` `[size]`, and their gradients in another, `grad` `[size]`.

    The parameters are divided into parts with names. A part is a torch.nn.Module, whose parameters and gradients become
    views of the two tensors, or an int, which is the number of parameters of a part without a module:

        params = Params(context, actor=Actor(), critic=Critic(), log_alpha=1)
        params["critic"].flat          # all parameters of the critic, [size]
        params.value("log_alpha")      # a part without a module, as a tensor for autograd, [size]
        params.target("critic")        # a target network: a copy, which is called like the module
        params.generator("noise", 3)   # a random generator with the seed 3

    `state` returns all of these for a checkpoint. A module's buffers and frozen parameters (requires_grad=False) are
    not in the flat tensors. They are saved and sent to the policy, but no optimizer changes them. The constructor moves
    modules to the device. A Group, such as `encoder=drl.encoder(network, spec)`, is replaced by its parts, whose names
    `names` returns. The constructor raises Refused if two modules share a parameter or if `check_module` refuses one.
    """

    def __init__(self, context: Context, **parts: int | nn.Module | Group) -> None:
        self.context, self.device = context, context.device
        self.groups: dict[str, tuple[str, ...]] = {}
        single = self._ungrouped(parts)
        modules = {name: part.to(self.device) for name, part in single.items() if not isinstance(part, int)}
        sizes = {
            name: part if isinstance(part, int) else sum(p.numel() for _, p in trained(part))
            for name, part in single.items()
        }
        self.flat = torch.zeros(sum(sizes.values()), device=self.device)
        self.grad = torch.zeros_like(self.flat)
        ends = accumulate(sizes.values())
        self.slices = {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}
        self.modules: dict[str, nn.Module] = {}
        self.targets: dict[str, Target] = {}
        self.generators: dict[str, torch.Generator] = {}
        # (name, parameter, its view of `flat`, its view of `grad`) of each parameter that autograd knows
        self._adopted: list[tuple[str, nn.Parameter, Tensor, Tensor]] = []
        self._leaves: dict[str, list[nn.Parameter]] = {name: [] for name in single}  # the same parameters by part
        self._frozen: dict[str, nn.Module] = {}  # what the method `frozen` returned before
        for name, module in modules.items():
            self._adopt(name, module)

    def __getitem__(self, name: str) -> FlatPart:
        if name not in self.slices:
            raise LookupError(f"there is no part '{name}'; the parts are {', '.join(self.slices)}")
        return FlatPart(self.flat[self.slices[name]], self.grad[self.slices[name]])

    def value(self, name: str) -> Tensor:
        """Return the parameters `[size]` of a part without a module, as a tensor from which a loss can be computed.

        Raise ValueError if the part is a module.
        """
        part = self[name]
        if name in self.modules:
            raise ValueError(f"part '{name}' is a module; compute the loss from the module's output")
        if not self._leaves[name]:  # this is the first call
            leaf = torch.nn.Parameter(torch.empty_like(part.flat))
            self._add_leaf(part=name, name=name, leaf=leaf, flat=part.flat, grad=part.grad)
        return self._leaves[name][0]

    def leaves(self, names: Sequence[str]) -> list[nn.Parameter]:
        """Return the parameters of the parts `names`, for which autograd computes gradients.

        Raise ValueError for a part without a module if `value` was never called, because no loss can depend on it.
        """
        leaves: list[nn.Parameter] = []
        for name in (inner for part in names for inner in self.groups.get(part, (part,))):
            own, where = self._leaves[name], self.slices[name]
            if not own and where.stop > where.start:
                raise ValueError(f"part '{name}' has no module; compute the loss from params.value('{name}')")
            leaves += own
        return leaves

    def differentiate(self, loss: Tensor, names: Sequence[str]) -> None:
        """Write the gradients of a loss with respect to the parts `names` into `grad`. Call `collect` before.

        Raise ValueError as `leaves` does.
        """
        leaves = self.leaves(names)
        # not with `backward`, which adds gradients to zeros, or copies some of them twice
        grads: Sequence[Tensor | None] = torch.autograd.grad(loss, leaves, allow_unused=True)
        for leaf, grad in zip(leaves, grads, strict=True):
            assert leaf.grad is not None  # a view of `grad`, see `collect`
            if grad is None:  # the loss does not depend on this parameter
                leaf.grad.zero_()
            else:
                leaf.grad.copy_(grad)

    def changed(self, names: Sequence[str]) -> None:
        """Tell autograd that the parameters of the parts `names` have changed.

        A backward pass through a loss that was computed before the change then raises RuntimeError.
        """
        tensors = [leaf for name in names for leaf in self._leaves[name]]
        tensors += [p for name in names if name in self._frozen for p in self._frozen[name].parameters()]
        if tensors:
            torch.autograd.graph.increment_version(tensors)

    def frozen(self, name: str) -> nn.Module:
        """Return a copy of the module `name` that uses the same parameters and buffers, but gives them no gradients."""
        if name not in self._frozen:
            module = copied(self.modules[name]).requires_grad_(False)
            share(self.modules[name], module)
            prepare(module, self.context)
            self._frozen[name] = module
        return self._frozen[name]

    def names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of parts, with the names of its parts in place of each group."""
        return tuple(inner for name in names for inner in self.groups.get(name, (name,)))

    def target(self, name: str) -> Target:
        """Make a target network of the part `name`, with its present values, and return it."""
        self.targets[name] = Target(self[name].flat, self.modules.get(name), self.context)
        return self.targets[name]

    def follow(self, tau: float) -> None:
        """Move all target networks toward the networks that they copy: target += tau * (network - target)."""
        for target in self.targets.values():
            target.follow(tau)

    def generator(self, name: str, seed: int, on_cpu: bool = False) -> torch.Generator:
        """Make a random generator, on the trainer's device or on the CPU, and return it. Checkpoints save its state."""
        self.generators[name] = torch.Generator("cpu" if on_cpu else self.device).manual_seed(seed)
        return self.generators[name]

    def collect(self) -> None:
        """Copy gradients that are no views of `grad` into `grad`, and replace them by views.

        For example, `zero_grad(set_to_none=True)` replaces the views by None, and the next backward pass then makes new
        tensors. None counts as 0. Raise Refused if a parameter is no longer a view of `flat`.
        """
        for name, parameter, flat, grad in self._adopted:
            if parameter.data_ptr() != flat.data_ptr():
                raise Refused(f"parameter {name} was replaced or moved after Params had adopted it")
            present = parameter.grad
            if present is None:
                grad.zero_()
                parameter.grad = grad
            elif present.data_ptr() != grad.data_ptr():
                grad.copy_(present)
                parameter.grad = grad

    def vector(self, names: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return what a policy needs of the parts `names`, as one new float32 vector `[size]`.

        For each part, the vector has the parameters, and then the module's frozen parameters and buffers.
        """
        pieces = [tensor.detach().float().flatten().cpu() for tensor in self._pieces(names)]
        vector: npt.NDArray[np.float32] = torch.cat(pieces).numpy()
        return vector

    def load_vector(self, names: Sequence[str], vector: npt.NDArray[np.float32]) -> None:
        """Load a result of `vector` for the same `names`: copy it into these parts and their target networks.

        Raise ValueError if the vector has another size.
        """
        tensors = list(self._pieces(names))
        sizes = [tensor.numel() for tensor in tensors]
        if vector.shape != (sum(sizes),):
            raise ValueError(f"parameter vector has shape {vector.shape}, the policy needs ({sum(sizes)},)")
        pieces = torch.split(torch.from_numpy(vector.copy()), sizes)  # a copy, because `vector` may be read-only
        with torch.no_grad():
            for tensor, piece in zip(tensors, pieces, strict=True):
                tensor.copy_(piece.view(tensor.shape))
        for name in names:
            if name in self.targets:
                self.targets[name].copy()

    def state(self) -> dict[str, Tensor]:
        """Return CPU copies of all tensors that a checkpoint saves, by name."""
        tensors = self.tensors() | self._generator_states()
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. If a name is missing or a shape differs, change nothing and raise ValueError.

        A generator's state that was saved on another kind of device cannot be restored. The generator then gets a seed
        that is computed from this state.
        """
        generators = {f"generator.{name}": generator for name, generator in self.generators.items()}
        if missing := [name for name in generators if name not in state]:
            raise ValueError(f"the saved state has no '{missing[0]}'")
        load_tensors(self.tensors(), state)
        for name, generator in generators.items():
            if state[name].shape == generator.get_state().shape:
                generator.set_state(state[name])
            else:
                digest = hashlib.sha256(state[name].numpy().tobytes()).digest()
                generator.manual_seed(int.from_bytes(digest[:7], "little"))  # 56 bits are a seed for every device

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that `state` copies (parameters, target networks, buffers), without the generators."""
        tensors = {"params": self.flat} | {f"target.{name}": target.flat for name, target in self.targets.items()}
        for name, module in self.modules.items():
            tensors |= {f"buffer.{name}.{key}": tensor for key, tensor in untrained(module)}
        for name, target in self.targets.items():
            tensors |= {f"buffer.target.{name}.{key}": tensor for key, tensor in target.untrained()}
        return tensors

    def part_of(self, index: int) -> str:
        """Return the name of the part whose parameters include the value at this index of `flat`."""
        return next(name for name, where in self.slices.items() if where.start <= index < where.stop)

    def _ungrouped(self, parts: Mapping[str, int | nn.Module | Group]) -> dict[str, int | nn.Module]:
        """Return the parts, with its parts in place of each group. Note the groups."""
        found: dict[str, int | nn.Module] = {}
        for name, part in parts.items():
            if isinstance(part, (int, torch.nn.Module)):
                found[name] = part
            else:
                self.groups[name] = tuple(part.parts)
                found.update(part.parts)
        return found

    def _generator_states(self) -> dict[str, Tensor]:
        return {f"generator.{name}": generator.get_state() for name, generator in self.generators.items()}

    def _adopt(self, name: str, module: nn.Module) -> None:
        """Copy a module's parameters into `flat`, and make the parameters views of `flat`.

        Raise Refused if a parameter also belongs to another of the modules.
        """
        check_module(name, module, self.context)
        self.modules[name] = module
        part = self[name]
        flats, grads = views(module, part.flat, part.grad)
        with torch.no_grad():
            for (key, parameter), flat, grad in zip(trained(module), flats, grads, strict=True):
                owners = [known for known, other, *_ in self._adopted if other is parameter]
                if owners:
                    raise Refused(f"{name}.{key} is also {owners[0]}; make the shared module a separate part")
                flat.copy_(parameter)
                self._add_leaf(part=name, name=f"{name}.{key}", leaf=parameter, flat=flat, grad=grad)
        prepare(module, self.context)

    def _add_leaf(self, part: str, name: str, leaf: nn.Parameter, flat: Tensor, grad: Tensor) -> None:
        """Make the parameter `leaf` and its gradient use the memory of the views `flat` and `grad`."""
        leaf.data, leaf.grad = flat, grad  # autograd does not notice changes of this memory: see `changed`
        self._leaves[part].append(leaf)
        self._adopted.append((name, leaf, flat, grad))

    def _pieces(self, names: Sequence[str]) -> Iterator[Tensor]:
        """Yield the tensors that `vector` joins, in order."""
        for name in names:
            yield self.flat[self.slices[name]]
            if name in self.modules:
                yield from (tensor for _, tensor in untrained(self.modules[name]))


class Target:
    """A target network: a copy of a part of `Params` that no optimizer changes. `flat` `[size]` has its parameters.

    `source` `[size]` has the parameters of the part. `module` is the copy of the part's module, or None.
    """

    def __init__(self, source: Tensor, module: nn.Module | None, context: Context) -> None:
        self.flat = source.clone()
        self._source, self._source_module = source, module
        self.module: nn.Module | None = None
        self.frozen: Named = []
        if module is not None:
            self.module = copied(module)
            (own_views,) = views(self.module, self.flat)
            for (_, parameter), view in zip(trained(self.module), own_views, strict=True):
                parameter.data = view
            self.frozen = frozen(self.module)  # the next line makes all other parameters frozen, too
            self.module.requires_grad_(False)
            self._changing = list(self.module.parameters())  # what `follow` tells autograd about
            self._has_untrained = len(untrained(module)) > 0
            prepare(self.module, context)

    def __call__(self, *args: Any) -> Tensor:  # Any: the module's arguments
        assert self.module is not None
        out: Tensor = self.module(*args)
        return out

    def follow(self, tau: float) -> None:
        """Move toward the network: target += tau * (network - target). Buffers and frozen parameters are copied.

        Tell autograd that the target network has changed.
        """
        if tau == 1.0:
            self.flat.copy_(self._source)
        else:
            self.flat.lerp_(self._source, tau)
        if self._source_module is not None:
            torch.autograd.graph.increment_version(self._changing)
            if self._has_untrained:
                for (_, own), (_, source) in zip(self.untrained(), untrained(self._source_module), strict=True):
                    own.copy_(source)

    def copy(self) -> None:
        """Copy the network's present values into the target network."""
        self.follow(1.0)

    def untrained(self) -> Named:
        """Return (name, tensor) for each buffer, and for each parameter that is also frozen in the copied network.

        (In the target network, all parameters are frozen.) Return [] without a module.
        """
        return [] if self.module is None else [*self.frozen, *self.module.named_buffers()]
