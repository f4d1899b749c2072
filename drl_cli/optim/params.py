"""Params: all parameters of an algorithm in one flat tensor, with one flat gradient, and target networks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drl_cli.errors import Refused
from drl_cli.optim.context import Context
from drl_cli.optim.modules import check_module, copied, frozen, kept, load_tensors, prepare, share, trained, views
from drl_cli.utils.lazy import Tensor, torch

if TYPE_CHECKING:
    from torch import nn

    Named = list[tuple[str, Tensor]]


@dataclass(frozen=True)
class FlatPart:
    """Some parameters and their gradients, as two flat tensors of equal length."""

    flat: Tensor
    grad: Tensor


class Params:
    """All parameters of an algorithm in one flat tensor, and their gradients in another. Both consist of named parts.

    A part is a torch.nn.Module, whose parameters and gradients become views of the flat tensors, or it is a number of
    values without a module:

        params = Params(context, actor=Actor(), critic=Critic(), log_alpha=1)
        params["critic"].flat          # all parameters of the critic, [size]
        params.value("log_alpha")      # a part without a module, as a tensor for autograd, [size]
        params.target("critic")        # a target network: a copy, called like the module, saved with everything else
        params.generator("noise", 3)   # a random generator, saved with everything else

    A module's buffers and frozen parameters (requires_grad=False) are not in the flat tensors. They are saved and sent
    to the policy, but no optimizer changes them.
    """

    def __init__(self, context: Context, **parts: int | nn.Module) -> None:
        self.context, self.device = context, context.device
        modules = {name: part.to(self.device) for name, part in parts.items() if not isinstance(part, int)}
        sizes = {
            name: part if isinstance(part, int) else sum(p.numel() for _, p in trained(part))
            for name, part in parts.items()
        }
        self.flat = torch.zeros(sum(sizes.values()), device=self.device)
        self.grad = torch.zeros_like(self.flat)
        ends = accumulate(sizes.values())
        self.slices = {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}
        self.modules: dict[str, nn.Module] = {}
        self.targets: dict[str, Target] = {}
        self.generators: dict[str, torch.Generator] = {}
        self._adopted: list[tuple[str, nn.Parameter, Tensor, Tensor]] = []
        self._frozen: dict[str, nn.Module] = {}
        self._leaves: dict[str, list[nn.Parameter]] = {name: [] for name in parts}
        for name, module in modules.items():
            self._adopt(name, module)

    def __getitem__(self, name: str) -> FlatPart:
        if name not in self.slices:
            raise LookupError(f"there is no part '{name}'; the parts are {', '.join(self.slices)}")
        return FlatPart(self.flat[self.slices[name]], self.grad[self.slices[name]])

    def value(self, name: str) -> Tensor:
        """Return a part without a module as a tensor `[size]` with a gradient. Raise ValueError if it is a module."""
        part = self[name]
        if name in self.modules:
            raise ValueError(f"part '{name}' is a module; compute the loss from the module's output")
        if not self._leaves[name]:
            leaf = torch.nn.Parameter(torch.empty_like(part.flat))
            leaf.data, leaf.grad = part.flat, part.grad
            self._add_leaf(name, name, leaf, part.flat, part.grad)
        return self._leaves[name][0]

    def leaves(self, names: Sequence[str]) -> list[nn.Parameter]:
        """Return the leaf tensors of these parts, for which autograd computes gradients.

        Raise ValueError for a part without a module if `value` was never called, because no loss can depend on it.
        """
        for name in names:
            if len(self[name].flat) and not self._leaves[name]:
                raise ValueError(f"part '{name}' has no module; compute the loss from params.value('{name}')")
        return [leaf for name in names for leaf in self._leaves[name]]

    def changed(self, names: Sequence[str]) -> None:
        """Tell autograd that these parts changed, so that the backward pass of an older graph raises RuntimeError."""
        leaves = [leaf for name in names for leaf in self._leaves[name]]
        leaves += [p for name in names if name in self._frozen for p in self._frozen[name].parameters()]
        if leaves:
            torch.autograd.graph.increment_version(leaves)

    def frozen(self, name: str) -> nn.Module:
        """Return a copy of a part's module that shares its memory, but whose parameters get no gradient."""
        if name not in self._frozen:
            module = copied(self.modules[name]).requires_grad_(False)
            share(self.modules[name], module)
            prepare(module, self.context)
            self._frozen[name] = module
        return self._frozen[name]

    def target(self, name: str) -> Target:
        """Make and return a target network of a part: a copy with the part's present values."""
        self.targets[name] = Target(self[name].flat, self.modules.get(name), self.context)
        return self.targets[name]

    def follow(self, tau: float) -> None:
        """Move all target networks toward their parts: target += tau * (part - target)."""
        for target in self.targets.values():
            target.follow(tau)

    def generator(self, name: str, seed: int, on_cpu: bool = False) -> torch.Generator:
        """Make and return a random generator, on the trainer's device or on the CPU. Checkpoints save its state."""
        self.generators[name] = torch.Generator("cpu" if on_cpu else self.device).manual_seed(seed)
        return self.generators[name]

    def collect(self) -> None:
        """Copy every gradient that is no view of `grad` into `grad`, and make it a view again.

        `zero_grad(set_to_none=True)` and `torch.autograd.backward` replace gradient tensors. Raise Refused if a
        parameter was replaced or moved, because the flat tensors would not contain it.
        """
        for name, parameter, flat, grad in self._adopted:
            if parameter.data_ptr() != flat.data_ptr():
                raise Refused(f"parameter {name} was replaced or moved after Params had adopted it")
            if parameter.grad is None:
                grad.zero_()
            elif parameter.grad.data_ptr() != grad.data_ptr():
                grad.copy_(parameter.grad)
            else:
                continue
            parameter.grad = grad

    def vector(self, names: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return a flat float32 copy: for each part its values, then its module's frozen parameters and buffers."""
        pieces = [piece.detach().float().flatten().cpu() for piece in self._pieces(names)]
        vector: npt.NDArray[np.float32] = torch.cat(pieces).numpy().copy()
        return vector

    def load_vector(self, names: Sequence[str], vector: npt.NDArray[np.float32]) -> None:
        """Load what `vector` returned, also into the parts' target networks; raise ValueError if the sizes differ."""
        tensors = list(self._pieces(names))
        sizes = [tensor.numel() for tensor in tensors]
        if vector.shape != (sum(sizes),):
            raise ValueError(f"parameter vector has shape {vector.shape}, the policy needs ({sum(sizes)},)")
        with torch.no_grad():
            for tensor, piece in zip(tensors, torch.split(torch.from_numpy(vector.copy()), sizes), strict=True):
                tensor.copy_(piece.view(tensor.shape))
        for name in names:
            if name in self.targets:
                self.targets[name].copy()

    def state(self) -> dict[str, Tensor]:
        """Return CPU copies of all tensors to save, by name."""
        return {name: tensor.detach().cpu().clone() for name, tensor in (self.tensors() | self._random()).items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. If names or shapes differ, change nothing and raise ValueError.

        If a generator's state was saved on another kind of device, the generator gets a seed computed from that state.
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
                generator.manual_seed(int.from_bytes(digest[:7], "little"))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors themselves (parameters, target networks, buffers) by name, without the generators."""
        tensors = {"params": self.flat} | {f"target.{name}": target.flat for name, target in self.targets.items()}
        for name, module in self.modules.items():
            tensors |= {f"buffer.{name}.{key}": tensor for key, tensor in kept(module)}
        for name, target in self.targets.items():
            tensors |= {f"buffer.target.{name}.{key}": tensor for key, tensor in target.kept()}
        return tensors

    def part_of(self, index: int) -> str:
        """Return the name of the part that holds the value at this index of `flat`."""
        return next(name for name, where in self.slices.items() if where.start <= index < where.stop)

    def _random(self) -> dict[str, Tensor]:
        return {f"generator.{name}": generator.get_state() for name, generator in self.generators.items()}

    def _adopt(self, name: str, module: nn.Module) -> None:
        check_module(name, module, self.context)
        self.modules[name] = module
        part = self[name]
        with torch.no_grad():
            for (key, parameter), flat, grad in zip(trained(module), *views(module, part.flat, part.grad), strict=True):
                owner = next((known for known, other, *_ in self._adopted if other is parameter), None)
                if owner is not None:
                    raise Refused(f"{name}.{key} is also {owner}; make the shared module a separate part")
                flat.copy_(parameter)
                parameter.data, parameter.grad = flat, grad
                self._add_leaf(name, f"{name}.{key}", parameter, flat, grad)
        prepare(module, self.context)

    def _add_leaf(self, part: str, name: str, leaf: nn.Parameter, flat: Tensor, grad: Tensor) -> None:
        self._leaves[part].append(leaf)
        self._adopted.append((name, leaf, flat, grad))

    def _pieces(self, names: Sequence[str]) -> Iterator[Tensor]:
        for name in names:
            yield self[name].flat
            if name in self.modules:
                yield from (tensor for _, tensor in kept(self.modules[name]))


class Target:
    """A target network: a copy of a part that no optimizer changes. `module` is the copy of a part's module."""

    def __init__(self, source: Tensor, module: nn.Module | None, context: Context) -> None:
        self.flat = source.clone()
        self._source, self._source_module = source, module
        self.module: nn.Module | None = None
        self.frozen: Named = []
        if module is not None:
            self.module = copied(module)
            (own,) = views(self.module, self.flat)
            for (_, parameter), view in zip(trained(self.module), own, strict=True):
                parameter.data = view
            self.frozen = frozen(self.module)
            self.module.requires_grad_(False)
            self._changing, self._has_kept = [*self.module.parameters()], bool(kept(module))
            prepare(self.module, context)

    def __call__(self, *args: Any) -> Tensor:  # Any: the module's arguments
        assert self.module is not None
        out: Tensor = self.module(*args)
        return out

    def follow(self, tau: float) -> None:
        """Move toward the part: target += tau * (part - target). Copy the part's buffers and frozen parameters."""
        self.flat.lerp_(self._source, tau)
        self._finish()

    def copy(self) -> None:
        """Copy the part's present values into the target network."""
        self.flat.copy_(self._source)
        self._finish()

    def kept(self) -> Named:
        """Return (name, tensor) for each frozen parameter and buffer, as `modules.kept` does; [] without a module.

        No parameter of a target network needs a gradient. Only those that are frozen in the part, too, are listed.
        """
        return [] if self.module is None else [*self.frozen, *self.module.named_buffers()]

    def _finish(self) -> None:
        """Copy the part's buffers and frozen parameters, and tell autograd that the target network changed."""
        if self._source_module is not None:
            torch.autograd.graph.increment_version(self._changing)
            if self._has_kept:
                for (_, own), (_, source) in zip(self.kept(), kept(self._source_module), strict=True):
                    own.copy_(source)
