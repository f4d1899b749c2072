"""Params: all that an algorithm trains, in one flat tensor with one flat gradient."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from drl_cli.optim.group import Context
from drl_cli.utils.lazy import torch


class Refused(ValueError):
    """An algorithm can't run as it is configured; the message is for the user."""


@dataclass(frozen=True)
class Part:
    """Some parameters and their gradients, two flat tensors of one length."""

    flat: "torch.Tensor"
    grad: "torch.Tensor"


class Params:
    """Parameters in one flat tensor, gradients in another; parts of them by name, and what has to be saved beside them.

    A part is a number of values, or a torch.nn.Module whose parameters and gradients become views of the flat ones:

        params = Params(context, actor=Actor(), critic=Critic(), log_alpha=1)
        params["critic"].flat          # all of the critic's parameters, [size]
        params.target("critic")        # a copy that learns nothing; called as the module is, saved with the rest
        params.generator("noise", 3)   # a random generator, likewise

    Parameters of a module that need no gradient, and its buffers, are kept apart: they are saved, they travel with the
    policy, and no optimizer changes them.
    """

    def __init__(self, context: Context, **parts: "int | torch.nn.Module") -> None:
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
        self.modules: dict[str, torch.nn.Module] = {}
        self.targets: dict[str, Target] = {}
        self.generators: dict[str, torch.Generator] = {}
        self._adopted: list[tuple[str, torch.nn.Parameter, torch.Tensor, torch.Tensor]] = []
        for name, module in modules.items():
            self._adopt(name, module)

    def __getitem__(self, name: str) -> Part:
        return Part(self.flat[self.slices[name]], self.grad[self.slices[name]])

    def target(self, name: str) -> "Target":
        """A copy of a part with values of its own, those that the part has now."""
        self.targets[name] = Target(self[name].flat, self.modules.get(name), self.context)
        return self.targets[name]

    def follow(self, tau: float) -> None:
        """Move all targets by the share `tau` of the way to what they are copies of."""
        for target in self.targets.values():
            target.follow(tau)

    def generator(self, name: str, seed: int, on_cpu: bool = False) -> "torch.Generator":
        """A generator whose state is saved; on the learner's device, or on the CPU."""
        self.generators[name] = torch.Generator("cpu" if on_cpu else self.device).manual_seed(seed)
        return self.generators[name]

    def collect(self) -> None:
        """See that every adopted parameter and gradient still is a view; gradients that are not are copied in.

        `zero_grad(set_to_none=True)` and `torch.autograd.backward` replace gradients. Raises Refused naming a parameter
        that was replaced or moved: what is saved and averaged would no longer be what learns.
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
        """A float32 copy of these parts on the CPU, each with its module's buffers behind it."""
        pieces = [piece.detach().float().flatten().cpu() for piece in self._pieces(names)]
        vector: npt.NDArray[np.float32] = torch.cat(pieces).numpy().copy()
        return vector

    def load_vector(self, names: Sequence[str], vector: npt.NDArray[np.float32]) -> None:
        """The inverse of `vector`, for their targets too; raises ValueError naming both sizes if they differ."""
        load_vector(list(self._pieces(names)), vector)
        for name in names:
            if name in self.targets:
                self.targets[name].copy()

    def state(self) -> "dict[str, torch.Tensor]":
        """Everything to go on from, copies on the CPU."""
        generators = {f"generator.{name}": generator.get_state() for name, generator in self.generators.items()}
        return {name: tensor.detach().cpu().clone() for name, tensor in (self.tensors() | generators).items()}

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Go on from `state()`; raises ValueError when a name is missing or a shape differs, having changed nothing."""
        generators = {f"generator.{name}": generator.get_state() for name, generator in self.generators.items()}
        load_tensors(self.tensors() | generators, state)
        for name, generator in self.generators.items():
            generator.set_state(generators[f"generator.{name}"])

    def tensors(self) -> "dict[str, torch.Tensor]":
        """What `state` copies, but for the generators: parameters, targets, buffers."""
        tensors = {"params": self.flat} | {f"target.{name}": target.flat for name, target in self.targets.items()}
        for name, module in self.modules.items():
            tensors |= {f"buffer.{name}.{key}": tensor for key, tensor in kept(module)}
        for name, target in self.targets.items():
            tensors |= {f"buffer.target.{name}.{key}": tensor for key, tensor in target.kept()}
        return tensors

    def part_of(self, index: int) -> str:
        """The part that holds the value at this index of `flat`."""
        return next(name for name, where in self.slices.items() if where.start <= index < where.stop)

    def _adopt(self, name: str, module: "torch.nn.Module") -> None:
        check_module(name, module, self.context)
        self.modules[name] = module
        part = self[name]
        with torch.no_grad():
            for (key, parameter), flat, grad in zip(trained(module), *views(module, part.flat, part.grad), strict=True):
                flat.copy_(parameter)
                parameter.data, parameter.grad = flat, grad
                self._adopted.append((f"{name}.{key}", parameter, flat, grad))
        prepare(module, self.context)

    def _pieces(self, names: Sequence[str]) -> "Iterator[torch.Tensor]":
        for name in names:
            yield self[name].flat
            if name in self.modules:
                yield from (tensor for _, tensor in kept(self.modules[name]))


class Target:
    """A copy of a part that learns nothing: its values `flat` `[size]`, as a `module` where the part is one."""

    def __init__(self, source: "torch.Tensor", module: "torch.nn.Module | None", context: Context) -> None:
        self.flat = source.clone()
        self._source, self._source_module = source, module
        self.module: torch.nn.Module | None = None
        self.frozen: list[tuple[str, torch.Tensor]] = []
        if module is not None:
            self.module = copied(module)
            (own,) = views(self.module, self.flat)
            for (_, parameter), view in zip(trained(self.module), own, strict=True):
                parameter.data = view
            self.frozen = [(name, p.data) for name, p in self.module.named_parameters() if not p.requires_grad]
            self.module.requires_grad_(False)
            prepare(self.module, context)

    @property
    def part(self) -> Part:
        """For networks that take a part; nobody reads the gradient."""
        return Part(self.flat, torch.zeros_like(self.flat))

    def __call__(self, *args: Any) -> "torch.Tensor":  # Any: whatever the module takes
        """What the copied module gives."""
        assert self.module is not None
        out: torch.Tensor = self.module(*args)
        return out

    def follow(self, tau: float) -> None:
        """Move by the share `tau` of the way to the part's values; buffers become those of its module."""
        self.flat.lerp_(self._source, tau)
        self._copy_buffers()

    def copy(self) -> None:
        """Become what the part is now."""
        self.flat.copy_(self._source)
        self._copy_buffers()

    def kept(self) -> "list[tuple[str, torch.Tensor]]":
        """As `kept` has it of the part's own module."""
        return [] if self.module is None else [*self.frozen, *self.module.named_buffers()]

    def _copy_buffers(self) -> None:
        if self._source_module is not None:
            for (_, own), (_, theirs) in zip(self.kept(), kept(self._source_module), strict=True):
                own.copy_(theirs)


def trained(module: "torch.nn.Module") -> "list[tuple[str, torch.nn.Parameter]]":
    """Names and parameters that gradients change, in the module's order."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def kept(module: "torch.nn.Module") -> "list[tuple[str, torch.Tensor]]":
    """Names and tensors of a module that no gradient changes: its buffers and frozen parameters."""
    frozen = [(name, p.data) for name, p in module.named_parameters() if not p.requires_grad]
    return [*frozen, *module.named_buffers()]


def views(module: "torch.nn.Module", *flat: "torch.Tensor") -> "list[list[torch.Tensor]]":
    """Views of flat tensors `[size]`, one of each for every parameter of a module, in its shape."""
    shapes = [p.shape for _, p in trained(module)]
    pieces = [torch.split(one, [shape.numel() for shape in shapes]) for one in flat]
    return [[piece.view(shape) for piece, shape in zip(one, shapes, strict=True)] for one in pieces]


def check_module(name: str, module: "torch.nn.Module", context: Context) -> None:
    """Raise Refused where a module can't be adopted: another dtype, or layers that several trainers can't share."""
    for key, parameter in trained(module):
        if parameter.dtype != torch.float32:
            raise Refused(f"parameter {name}.{key} is {parameter.dtype}; parameters have to be float32")
    if context.group.size == 1:
        return
    for key, layer in module.named_modules():
        is_random = isinstance(layer, torch.nn.modules.dropout._DropoutNd) and layer.p > 0
        if is_random or isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            raise Refused(
                f"{name}.{key} is a {type(layer).__name__}, and each trainer would use that on its own rows only: "
                "say trainer.num=1"
            )


def prepare(module: "torch.nn.Module", context: Context) -> None:
    """Have a module's forward run as the learner's precision and trainer.compile ask for."""
    if context.is_bf16:
        cast = torch.autocast(context.device.type, torch.bfloat16)
        forward = type(module).forward

        def rounded(*args: object, **kwargs: object) -> object:
            with cast:
                out = forward(module, *args, **kwargs)
            return out.float() if isinstance(out, torch.Tensor) else out

        module.forward = rounded
    if context.compiles:
        module.compile()


def copied(module: "torch.nn.Module") -> "torch.nn.Module":
    """A deep copy, as it was before `prepare`."""
    forward, compiled = module.__dict__.pop("forward", None), module.__dict__.pop("_compiled_call_impl", None)
    try:
        return copy.deepcopy(module)
    finally:
        if forward is not None:
            module.forward = forward
        if compiled is not None:
            module._compiled_call_impl = compiled


def load_tensors(tensors: "Mapping[str, torch.Tensor]", saved: "Mapping[str, torch.Tensor]") -> None:
    """Copy saved values in place; raises ValueError when a name is missing or a shape differs."""
    for name, own in tensors.items():
        if name not in saved:
            raise ValueError(f"the saved state has no '{name}'")
        if saved[name].shape != own.shape:
            raise ValueError(f"saved '{name}' has shape {tuple(saved[name].shape)}, needed is {tuple(own.shape)}")
    with torch.no_grad():
        for name, own in tensors.items():
            own.copy_(saved[name])


def load_vector(tensors: "Sequence[torch.Tensor]", vector: npt.NDArray[np.float32]) -> None:
    """Copy a flat vector into tensors, one after the other; raises ValueError naming both sizes if they differ."""
    sizes = [tensor.numel() for tensor in tensors]
    if vector.shape != (sum(sizes),):
        raise ValueError(f"parameter vector has shape {vector.shape}, the policy needs ({sum(sizes)},)")
    with torch.no_grad():
        for tensor, piece in zip(tensors, torch.split(torch.from_numpy(vector.copy()), sizes), strict=True):
            tensor.copy_(piece.view(tensor.shape))
