"""Matrix products for the MLPs of trainers. `trainer.products` chooses the library, `precision` float32 or bfloat16."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.machine import describe_processor, is_amd, is_zen_5

log = logging.getLogger(__name__)


class Products:
    """Matrix products in float32 with torch's default library: MKL on a CPU, cuBLAS on a GPU."""

    def chosen(self) -> Mapping[str, Any]:
        """Return, for run.json, the name of the library and the smallest sizes for which it is used."""
        return {"library": "torch"}

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return `x weight + bias`, `[B, out]`; x is `[B, in]`, weight is `[in, out]`, and bias is `[out]`."""
        # MKL computes such a layer up to four times faster transposed on AMD's processors.
        if 1 < weight.shape[1] <= 8 and x.numel() >= 2**14 and x.device.type == "cpu" and is_amd():
            return torch.mm(weight.t(), x.t()).t().add_(bias)
        return torch.addmm(bias, x, weight)


class OneDNN(Products):
    """Matrix products in float32 with oneDNN. Small products use torch's library, because oneDNN is slower for them.

    oneDNN computes a product if the batch has at least `rows` rows, the weight has at least `width` inputs and at least
    `width` outputs, and the product needs at least `multiplications` multiplications.
    """

    def __init__(self, rows: int = 1, width: int = 64, multiplications: int = 0) -> None:
        self.rows, self.width, self.multiplications = rows, width, multiplications

    def chosen(self) -> Mapping[str, Any]:
        least = {"from_rows": self.rows, "from_width": self.width, "from_multiplications": self.multiplications}
        return {"library": "onednn", **least, "else": "torch"}

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows, (inputs, outputs) = x.shape[0], weight.shape
        is_wide = min(inputs, outputs) >= self.width and rows >= self.rows
        is_large = is_wide and rows * inputs * outputs >= self.multiplications
        return self._large(x, weight, bias) if is_large else super().linear(x, weight, bias)

    def _large(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return `linear(x, weight, bias)`, computed by oneDNN. torch.compile cannot use oneDNN with these weights."""
        if torch.compiler.is_compiling():
            return super().linear(x, weight, bias)
        out: Tensor = _layer().apply(self._product, x, weight, bias)
        return out

    def _product(self, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return `a b`, or `a b + bias`, for matrices a and b."""
        # The operator takes a weight `[out, in]`. The last three arguments mean that no activation follows.
        product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
        return product


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

    def _large(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        is_onednn = self.is_cpu and not self.is_emulated and not torch.compiler.is_compiling()
        return super()._large(x, weight, bias) if is_onednn else self._product(x, weight, bias)

    def _product(self, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        a, b = a.bfloat16(), b.bfloat16()
        if self.is_emulated:
            product = torch.mm(a.float(), b.float()).bfloat16()  # rounds as a product in bfloat16 does
        elif self.is_cpu and not torch.compiler.is_compiling():
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


@cache
def _layer() -> Any:
    """Return a torch.autograd.Function whose matrix products, forward and backward, are those of a given function."""

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, product: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # Any: autograd's
            ctx.product = product
            ctx.save_for_backward(x, weight)
            out: Tensor = product(x, weight, bias)
            return out

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:  # Any: as in `forward`
            x, weight = ctx.saved_tensors
            _, needs_x, needs_weight, needs_bias = ctx.needs_input_grad
            d_x = ctx.product(d, weight.t()) if needs_x else None
            d_weight = ctx.product(x.t(), d) if needs_weight else None
            return None, d_x, d_weight, d.sum(0) if needs_bias else None

    return Layer


def has_bf16() -> bool:
    """Return whether the CPU has instructions for matrix products in bfloat16."""
    return re.search(r"\b(avx512_bf16|amx_bf16)\b", describe_processor()) is not None


def _has_onednn() -> bool:
    return bool(torch._C._has_mkldnn)
