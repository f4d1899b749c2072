"""Matrix products for the MLPs of trainers. `trainer.products` chooses the library, `precision` float32 or bfloat16."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.machine import describe_processor, is_zen_5

log = logging.getLogger(__name__)


class Products:
    """Matrix products in float32 with torch's default library: MKL on a CPU, cuBLAS on a GPU."""

    def chosen(self) -> Mapping[str, Any]:
        """Return, for run.json, the name of the library and the smallest sizes for which it is used."""
        return {"library": "torch"}

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return `x weight + bias`, `[B, out]`; x is `[B, in]`, weight is `[in, out]`, and bias is `[out]`."""
        if _is_faster_transposed(x, weight.shape[1]):
            transposed = torch.mm(weight.t(), x.t())  # [out, B]
            return transposed.t().add_(bias)
        return torch.addmm(bias, x, weight)

    def weight_gradient(self, x: Tensor, d: Tensor, out: Tensor) -> None:
        """Write the gradient of a loss with respect to the weight of `linear`, `x^T d`, into `out` `[in, out]`.

        `x` `[B, in]` is the input of `linear`, and `d` `[B, out]` is the gradient with respect to its result.
        """
        if _is_faster_transposed(x, d.shape[1]):
            transposed = torch.mm(d.t(), x)  # [out, in]
            out.copy_(transposed.t())
        else:
            torch.mm(x.t(), d, out=out)

    def input_gradient(self, d: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of a loss with respect to the input of `linear`: `d weight^T`, `[B, in]`.

        `d` `[B, out]` is the gradient with respect to the result of `linear`, and `weight` is `[in, out]`.
        """
        return torch.mm(d, weight.t())


class OneDNN(Products):
    """Matrix products in float32 with oneDNN. Small products use torch's library, because oneDNN is slower for them.

    oneDNN computes a product if the batch has at least `rows` rows, the weight has at least `width` inputs and at least
    `width` outputs, and the product needs at least `multiplications` multiplications.
    """

    def __init__(self, rows: int = 1, width: int = 64, multiplications: int = 0) -> None:
        self.rows, self.width, self.multiplications = rows, width, multiplications
        _register_operator()
        self.differentiable = _differentiable()

    def chosen(self) -> Mapping[str, Any]:
        least = {"from_rows": self.rows, "from_width": self.width, "from_multiplications": self.multiplications}
        return {"library": "onednn", **least, "else": "torch"}

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self._product(x, weight, bias) if self._is_large(x, weight) else super().linear(x, weight, bias)

    def weight_gradient(self, x: Tensor, d: Tensor, out: Tensor) -> None:
        if self._is_large(d, out):
            out.copy_(self._product(x.t(), d))
        else:
            super().weight_gradient(x, d, out)

    def input_gradient(self, d: Tensor, weight: Tensor) -> Tensor:
        return self._product(d, weight.t()) if self._is_large(d, weight) else super().input_gradient(d, weight)

    def _is_large(self, batch: Tensor, weight: Tensor) -> bool:
        """Return whether oneDNN computes the products of a weight `[in, out]` and a batch `[B, in]` or `[B, out]`."""
        rows = batch.shape[0]
        inputs, outputs = weight.shape
        is_wide = inputs >= self.width and outputs >= self.width
        return is_wide and rows >= self.rows and rows * inputs * outputs >= self.multiplications

    def _product(self, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return `a b`, or `a b + bias`, for matrices a and b."""
        if torch.compiler.is_compiling():  # torch.compile needs an operator, but a plain call is 10 us faster
            product: Tensor = self.differentiable(a, b, bias)
            return product
        return _onednn(a, b, bias)


class BFloat16(OneDNN):
    """Matrix products in bfloat16, which some CPUs and GPUs compute faster than float32.

    Weights, biases and the optimizer's state stay float32. Layers with fewer than 64 inputs or outputs are computed in
    float32. Therefore short observations, and the outputs of networks with few outputs, are not rounded. A CPU without
    bfloat16 products emulates them, and a warning is logged.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.is_cpu = device.type == "cpu"
        self.is_emulated = self.is_cpu and not (_has_onednn() and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        if self.is_emulated:
            log.warning("this CPU has no bfloat16 products: precision=bf16 rounds, and is slower than float32")

    def chosen(self) -> Mapping[str, Any]:
        library = "onednn" if self.is_cpu and not self.is_emulated else "torch"
        return {**super().chosen(), "library": library, "precision": "bfloat16"}

    def _product(self, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        a, b = a.bfloat16(), b.bfloat16()
        if self.is_emulated:
            product = torch.mm(a.float(), b.float()).bfloat16()  # rounds as a product in bfloat16 does
        elif self.is_cpu:
            product = super()._product(a, b)
        else:
            product = torch.mm(a, b)
        return product.float() if bias is None else product.float().add_(bias)


def make_products(library: str, precision: str, device: torch.device, is_repeatable: bool = True) -> Products:
    """Return the Products for the options `trainer.products` (`library`) and `precision`.

    With `precision` bf16, `library` has no effect. GPUs always use torch. With `auto`, AMD's Zen 5 with AVX-512 uses
    oneDNN for large products, and other processors use torch. If `is_repeatable`, products are large from 256 rows,
    inputs and outputs, so that a seed gives the same weights as in earlier versions. Otherwise, they are large from
    about 2 million multiplications, where oneDNN becomes faster. On a CPU, raise ValueError if `library` is onednn and
    torch lacks it.
    """
    if precision == "bf16":
        return BFloat16(device)
    if device.type != "cpu" or library == "torch":
        return Products()
    if library == "onednn":
        if not _has_onednn():
            raise ValueError(
                "trainer.products=onednn, but this torch was built without oneDNN; say trainer.products=auto"
            )
        return OneDNN()
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if not (_has_onednn() and has_avx512 and is_zen_5()):
        return Products()
    return OneDNN(rows=256, width=256) if is_repeatable else OneDNN(multiplications=2**21)


def _onednn(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Return `a b + bias`, `[B, out]`, by oneDNN; a is `[B, in]`, b is `[in, out]`, and bias is `[out]` or None (0)."""
    # The operator takes a weight `[out, in]`. The last three arguments mean that no activation follows.
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
    return product


@cache
def _register_operator() -> torch.library.Library:
    """Register the operator `torch.ops.drl_cli.onednn`, which computes `_onednn`, for compiled functions.

    torch.compile can use oneDNN without this operator, but then it assumes constant weights. The operator exists as
    long as the result, which the cache keeps.
    """

    def shape_of_result(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        return a.new_empty(a.shape[0], b.shape[1])

    library = torch.library.Library("drl_cli", "DEF")  # type: ignore[no-untyped-call]
    library.define("onednn(Tensor a, Tensor b, Tensor? bias) -> Tensor")  # type: ignore[no-untyped-call]
    library.impl("onednn", _onednn, "CPU")  # type: ignore[no-untyped-call]
    torch.library.register_fake("drl_cli::onednn", shape_of_result, lib=library)
    return library


@cache
def _differentiable() -> Any:
    """Return a function of (a, b, bias) that computes `_onednn`, and that compiled code can differentiate."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
            product: Tensor = torch.ops.drl_cli.onednn(a, b, bias)
            return product

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            a, b, bias = inputs
            ctx.save_for_backward(a, b)
            ctx.has_bias = bias is not None

        @staticmethod
        def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            a, b = ctx.saved_tensors
            d_a = torch.ops.drl_cli.onednn(d, b.t(), None)
            d_b = torch.ops.drl_cli.onednn(a.t(), d, None)
            d_bias = d.sum(0) if ctx.has_bias else None
            return d_a, d_b, d_bias

    return Product.apply


def _is_faster_transposed(x: Tensor, outputs: int) -> bool:
    """Return whether the product of a layer and `x` is computed by MKL, and up to four times faster transposed."""
    return x.device.type == "cpu" and 1 < outputs <= 8 and x.numel() >= 2**14


def has_bf16() -> bool:
    """Return whether the CPU has instructions for matrix products in bfloat16."""
    return re.search(r"\b(avx512_bf16|amx_bf16)\b", describe_processor()) is not None


def _has_onednn() -> bool:
    return bool(torch._C._has_mkldnn)
