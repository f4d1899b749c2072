"""Functions that check, prepare, copy and load torch modules whose parameters are views of one flat tensor."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from drl_cli.errors import Refused
from drl_cli.optim.context import Context
from drl_cli.optim.products import Products
from drl_cli.utils.lazy import Tensor, torch

if TYPE_CHECKING:
    from torch import nn

    Named = list[tuple[str, Tensor]]


def trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return (name, parameter) for each parameter with requires_grad=True, in the order of `named_parameters`."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def untrained(module: nn.Module) -> Named:
    """Return (name, tensor) for each frozen parameter (requires_grad=False), and then for each buffer."""
    return [*frozen(module), *module.named_buffers()]


def frozen(module: nn.Module) -> Named:
    """Return (name, tensor) for each parameter with requires_grad=False."""
    return [(name, p.data) for name, p in module.named_parameters() if not p.requires_grad]


def views(module: nn.Module, *flats: Tensor) -> list[list[Tensor]]:
    """Split each flat tensor `[size]` into a list of views with the shapes of the trained parameters of `module`."""
    shapes = [p.shape for _, p in trained(module)]
    sizes = [shape.numel() for shape in shapes]
    split_flats = [torch.split(flat, sizes) for flat in flats]
    return [[piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)] for pieces in split_flats]


def check_module(name: str, module: nn.Module, context: Context) -> None:
    """Raise Refused if a trained parameter is not float32, or if several trainers use dropout or batch norm.

    The error message calls the module `name`. Dropout with the probability 0 is not refused.
    """
    for key, parameter in trained(module):
        if parameter.dtype != torch.float32:
            raise Refused(f"parameter {name}.{key} is {parameter.dtype}; parameters have to be float32")
    if context.group.size == 1:
        return
    for key, layer in module.named_modules():
        is_random = isinstance(layer, torch.nn.modules.dropout._DropoutNd) and layer.p > 0
        if is_random or isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            raise Refused(
                f"{name}.{key} is a {type(layer).__name__}, and each trainer would apply it to its own rows only: "
                "say trainer.num=1"
            )


def prepare(module: nn.Module, context: Context) -> None:
    """Apply the context's settings to a module in place: matrix products, `is_bf16`, and torch.compile (`compiles`).

    With `is_bf16`, `forward` computes products in bfloat16 and returns float32. On a CPU, torch.compile is not applied,
    because single modules are slower with it.
    """
    for layer in module.modules():
        if isinstance(getattr(layer, "products", None), Products):
            vars(layer)["products"] = context.products  # the attribute hides the class's `products`
    if context.is_bf16:
        from torch.utils._pytree import tree_map_only

        cast = torch.autocast(context.device.type, torch.bfloat16)
        forward = type(module).forward

        def forward_in_bf16(*args: object, **kwargs: object) -> object:
            with cast:  # torch computes products in bfloat16
                out = forward(module, *args, **kwargs)
            return tree_map_only(torch.Tensor, _in_float32, out)

        module.forward = forward_in_bf16
    if context.compiles and context.device.type != "cpu":
        module.compile()


def share(module: nn.Module, other: nn.Module) -> None:
    """Make `other`, a copy of `module`, use the same memory for its parameters and buffers as `module`."""
    for layer, copied_layer in zip(module.modules(), other.modules(), strict=True):
        for name, parameter in copied_layer.named_parameters(recurse=False):
            parameter.data = layer.get_parameter(name).data
        copied_layer._buffers.update(layer._buffers)


def _in_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def copied(module: nn.Module) -> nn.Module:
    """Return a deep copy of a module, without the bfloat16 `forward` and the compilation that `prepare` added."""
    attributes = vars(module)  # without the next lines, the copy's `forward` would call the original module
    set_by_prepare = attributes.keys() & {"forward", "_compiled_call_impl"}
    prepared = {name: attributes.pop(name) for name in set_by_prepare}
    try:
        return copy.deepcopy(module)
    finally:
        attributes.update(prepared)


def misfit(tensors: Mapping[str, Any], saved: Mapping[str, Any]) -> str | None:  # Any: a tensor, or an array
    """Compare the shapes of `saved` with those of `tensors`, by name. Return an error message, or None if all fit."""
    for name, own in tensors.items():
        if name not in saved:
            return f"the saved state has no '{name}'"
        if saved[name].shape != own.shape:
            return f"saved '{name}' has shape {tuple(saved[name].shape)}, needed is {tuple(own.shape)}"
    return None


def load_tensors(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy `saved` into `tensors`. If a name is missing or a shape differs, change nothing and raise ValueError."""
    if problem := misfit(tensors, saved):
        raise ValueError(problem)
    with torch.no_grad():
        for name, own in tensors.items():
            own.copy_(saved[name])
