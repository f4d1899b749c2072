"""The matrix products of learning: which library makes them, and in which precision."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from drl_cli.utils.lazy import torch

ZEN_5 = 0x1A
"""The family of AMD's processors whose units are as wide as AVX-512: oneDNN makes twice as many products as MKL."""
WORTH = 0.9
"""oneDNN is taken where it needs at most this share of the time: in an update caches are colder than in a race."""
RACE_S, LEAST_ROUNDS, MOST_ROUNDS = 0.01, 3, 20
"""Of one race: as many rounds as fit into the seconds, and the one in which they are over."""
Key: TypeAlias = tuple[str, int, int, int]
"""A product: its name, the rows of the batch, and the weight's two sizes."""
Race: TypeAlias = Callable[["Sequence[Products]", "Callable[[Products], object]"], list[float]]


class Products:
    """float32 by torch's own library: MKL on a processor, cuBLAS on a GPU."""

    def chosen(self) -> Mapping[str, Any]:
        """Which library makes what, as json."""
        return {"library": "torch"}

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
    """float32 by oneDNN for batches of at least `rows` and weights that are at least `width` in both directions.

    Small products take longer to hand over than to make.
    """

    def __init__(self, rows: int = 1, width: int = 64) -> None:
        self.rows, self.width = rows, width
        _operators()

    def chosen(self) -> Mapping[str, Any]:
        return {"library": "onednn", "from_rows": self.rows, "from_width": self.width, "else": "torch"}

    def linear(self, x: "torch.Tensor", weight: "torch.Tensor", bias: "torch.Tensor") -> "torch.Tensor":
        return self._product(x, weight, bias) if self._suits(x, weight) else super().linear(x, weight, bias)

    def weight_gradient(self, x: "torch.Tensor", d: "torch.Tensor", out: "torch.Tensor") -> None:
        if self._suits(d, out):
            out.copy_(self._product(x.t(), d))
        else:
            super().weight_gradient(x, d, out)

    def input_gradient(self, d: "torch.Tensor", weight: "torch.Tensor") -> "torch.Tensor":
        return self._product(d, weight.t()) if self._suits(d, weight) else super().input_gradient(d, weight)

    def _suits(self, x: "torch.Tensor", weight: "torch.Tensor") -> bool:
        return min(weight.shape) >= self.width and x.shape[0] >= self.rows

    def _product(self, a: "torch.Tensor", b: "torch.Tensor", bias: "torch.Tensor | None" = None) -> "torch.Tensor":
        if torch.compiler.is_compiling():  # elsewhere the way through the operator costs 10 us
            product: torch.Tensor = torch.ops.drl_cli.onednn(a, b, bias)
            return product
        return _onednn(a, b, bias)


class Measured(Products):
    """Each product by the library that is faster here: the first of its shape is a race on the operands themselves.

    Not where equal seeds have to give equal weights, nor within torch.compile, whose program is made only once.
    """

    def __init__(self, race: "Race | None" = None) -> None:
        self.sides = (Products(), OneDNN())
        self.race = race or least_seconds
        self.faster: dict[Key, Products] = {}
        self.microseconds: dict[str, Mapping[str, float]] = {}

    def chosen(self) -> Mapping[str, Any]:
        return {"library": "measured", "microseconds": self.microseconds}

    def linear(self, x: "torch.Tensor", weight: "torch.Tensor", bias: "torch.Tensor") -> "torch.Tensor":
        key = ("linear", x.shape[0], weight.shape[0], weight.shape[1])
        side = self.faster.get(key) or self._choose(key, lambda side: side.linear(x, weight, bias))
        return side.linear(x, weight, bias)

    def weight_gradient(self, x: "torch.Tensor", d: "torch.Tensor", out: "torch.Tensor") -> None:
        key = ("weight_gradient", d.shape[0], out.shape[0], out.shape[1])
        side = self.faster.get(key) or self._choose(key, lambda side: side.weight_gradient(x, d, out))
        side.weight_gradient(x, d, out)

    def input_gradient(self, d: "torch.Tensor", weight: "torch.Tensor") -> "torch.Tensor":
        key = ("input_gradient", d.shape[0], weight.shape[0], weight.shape[1])
        side = self.faster.get(key) or self._choose(key, lambda side: side.input_gradient(d, weight))
        return side.input_gradient(d, weight)

    def _choose(self, key: Key, product: Callable[[Products], object]) -> Products:
        own, onednn = self.sides
        self.faster[key] = own
        name, rows, inputs, outputs = key
        if min(inputs, outputs) >= onednn.width:
            seconds = self.race(self.sides, product)
            if seconds[1] <= WORTH * seconds[0]:
                self.faster[key] = onednn
            taken = dict(zip(("torch", "onednn"), (round(1e6 * each, 1) for each in seconds), strict=True))
            self.microseconds[f"{name} {rows}x{inputs}x{outputs}"] = taken
        return self.faster[key]


def least_seconds(
    sides: Sequence[Products],
    product: Callable[[Products], object],
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Least seconds of a product by each side, in turn; the first round only makes what later ones use again."""
    for side in sides:
        product(side)
    least, started = [float("inf")] * len(sides), clock()
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and clock() - started > RACE_S:
            break
        for i, side in enumerate(sides):
            begun = clock()
            product(side)
            least[i] = min(least[i], clock() - begun)
    return least


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

    def chosen(self) -> Mapping[str, Any]:
        library = "onednn" if self.is_cpu and not self.is_emulated else "torch"
        return {**super().chosen(), "library": library, "precision": "bfloat16"}

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


def make_products(library: str, precision: str, device: "torch.device", measures: bool = False) -> Products:
    """Products for `trainer.products` and `precision`; raises ValueError when this torch has no oneDNN.

    `auto` is torch but on AMD's processors with AVX-512, whose MKL does not use it well. There it `measures`, or, where
    equal seeds have to give equal weights, follows from processor and shapes: oneDNN for what it was never slower at.
    """
    if precision == "bf16":
        return BFloat16(device)
    if device.type != "cpu" or library == "torch":
        return Products()
    has_onednn = _has_onednn()
    if library == "onednn":
        if not has_onednn:
            raise ValueError(
                "trainer.products=onednn, but this torch was built without oneDNN; say trainer.products=auto"
            )
        return OneDNN()
    family = _amd_family(_processor())
    if not (has_onednn and family and torch.backends.cpu.get_cpu_capability() == "AVX512"):
        return Products()
    if measures:
        return Measured()
    return OneDNN(rows=256, width=256) if family >= ZEN_5 else Products()


def _is_thin(x: "torch.Tensor", outputs: int) -> bool:
    """Whether the product is faster transposed: MKL takes up to four times longer for one with few columns."""
    return 1 < outputs <= 8 and x.numel() >= 2**14


def _has_onednn() -> bool:
    return bool(torch._C._has_mkldnn)


def _processor() -> str:
    """What Linux says of the first processor."""
    info = Path("/proc/cpuinfo")
    return info.read_text().partition("\n\n")[0] if info.exists() else ""


def _amd_family(processor: str) -> int:
    """The family of a processor of AMD's, 0 for any other."""
    found = re.search(r"AuthenticAMD\s+cpu family\s*:\s*(\d+)", processor)
    return int(found[1]) if found else 0
