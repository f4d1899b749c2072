"""The matrix products of learning: which library makes them, and in which precision."""

import logging
from functools import cache
from pathlib import Path

from drl_cli.utils.lazy import torch


class Products:
    """float32 by torch's own library: MKL on a processor, cuBLAS on a GPU."""

    def linear(self, x: "torch.Tensor", weight: "torch.Tensor", bias: "torch.Tensor") -> "torch.Tensor":
        """`x weight + bias`; x `[B, in]`, weight `[in, out]`, bias `[out]`."""
        if _is_thin(x, weight.shape[1]):
            return torch.mm(weight.t(), x.t()).t().add_(bias)
        return torch.addmm(bias, x, weight)

    def weight_gradient(self, x: "torch.Tensor", d: "torch.Tensor", out: "torch.Tensor") -> None:
        """Write `x^T d` `[in, out]`, the gradient of `linear` with respect to its weight, to `out`; d `[B, out]`."""
        if _is_thin(x, d.shape[1]):
            out.copy_(torch.mm(d.t(), x).t())
        else:
            torch.mm(x.t(), d, out=out)

    def input_gradient(self, d: "torch.Tensor", weight: "torch.Tensor") -> "torch.Tensor":
        """`d weight^T` `[B, in]`, the gradient of `linear` with respect to its input; d `[B, out]`."""
        return torch.mm(d, weight.t())


class OneDNN(Products):
    """float32 by oneDNN where both sides of the weight are wide; small products take longer to hand over than to make.

    On processors of AMD with AVX-512 it was measured to be twice as fast as MKL (docs/performance.md).
    """

    def __init__(self) -> None:
        _operators()

    def linear(self, x: "torch.Tensor", weight: "torch.Tensor", bias: "torch.Tensor") -> "torch.Tensor":
        return self._product(x, weight, bias) if _is_wide(weight) else super().linear(x, weight, bias)

    def weight_gradient(self, x: "torch.Tensor", d: "torch.Tensor", out: "torch.Tensor") -> None:
        if _is_wide(out):
            out.copy_(self._product(x.t(), d))
        else:
            super().weight_gradient(x, d, out)

    def input_gradient(self, d: "torch.Tensor", weight: "torch.Tensor") -> "torch.Tensor":
        return self._product(d, weight.t()) if _is_wide(weight) else super().input_gradient(d, weight)

    def _product(self, a: "torch.Tensor", b: "torch.Tensor", bias: "torch.Tensor | None" = None) -> "torch.Tensor":
        if torch.compiler.is_compiling():  # elsewhere the way through the operator costs 10 us
            product: torch.Tensor = torch.ops.drl_cli.onednn(a, b, bias)
            return product
        return _onednn(a, b, bias)


class BFloat16(OneDNN):
    """Wide products of numbers rounded to bfloat16, of which a processor or GPU makes more in a second.

    All else stays float32: weights, sums, what the optimizer keeps, and the thin products of the first and last layers,
    so that no value and no action is rounded.
    """

    def __init__(self, device: "torch.device") -> None:
        super().__init__()
        self.is_cpu = device.type == "cpu"
        self.is_emulated = self.is_cpu and not (_has_onednn() and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        if self.is_emulated:
            logging.warning(
                "this processor has no bfloat16 products: precision=bf16 rounds, and is slower than float32"
            )

    def _product(self, a: "torch.Tensor", b: "torch.Tensor", bias: "torch.Tensor | None" = None) -> "torch.Tensor":
        a, b = a.bfloat16(), b.bfloat16()
        if self.is_emulated:
            product = torch.mm(a.float(), b.float()).bfloat16()
        else:
            product = super()._product(a, b) if self.is_cpu else torch.mm(a, b)
        return product.float() if bias is None else product.float().add_(bias)


def _onednn(a: "torch.Tensor", b: "torch.Tensor", bias: "torch.Tensor | None") -> "torch.Tensor":
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
    return product


@cache
def _operators() -> "torch.library.Library":
    """OneDNN's product for torch.compile, to be called as it is: its own way there takes weights that never change."""
    library = torch.library.Library("drl_cli", "DEF")  # type: ignore[no-untyped-call]
    library.define("onednn(Tensor a, Tensor b, Tensor? bias) -> Tensor")  # type: ignore[no-untyped-call]
    library.impl("onednn", _onednn, "CPU")  # type: ignore[no-untyped-call]
    torch.library.register_fake("drl_cli::onednn", lambda a, b, bias: a.new_empty(a.shape[0], b.shape[1]), lib=library)
    return library


def make_products(library: str, precision: str, device: "torch.device") -> Products:
    """Products for `trainer.products` and `precision`; raises ValueError when this torch has no oneDNN.

    `auto` follows from the processor and not from a measurement: the same machine gives the same numbers every time.
    """
    if precision == "bf16":
        return BFloat16(device)
    if device.type != "cpu" or library == "torch":
        return Products()
    has_onednn = _has_onednn()
    if library == "onednn" and not has_onednn:
        raise ValueError("trainer.products=onednn, but this torch was built without oneDNN; say trainer.products=auto")
    is_faster = has_onednn and _is_amd() and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return OneDNN() if library == "onednn" or is_faster else Products()


def _is_thin(x: "torch.Tensor", outputs: int) -> bool:
    """Whether the product is faster transposed: MKL takes up to four times longer for one with few columns."""
    return 1 < outputs <= 8 and x.numel() >= 2**14


def _is_wide(weight: "torch.Tensor") -> bool:
    return min(weight.shape) >= 64


def _has_onednn() -> bool:
    return bool(torch._C._has_mkldnn)


def _is_amd() -> bool:
    info = Path("/proc/cpuinfo")
    return info.exists() and "AuthenticAMD" in info.read_text()
