"""Native: changes the C++ code of a compiled graph to a function of pointers, which makes several updates in a call.

AOTInductor's code makes an object of torch for every intermediate result and every view, and copies the list of its
inputs. In networks with 64 units, this takes as long as the matrix products. This module puts the same code into a
namespace in which the names of torch's objects and functions mean pointers. The code still calls the same kernels in
the same order.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drl_cli.utils.machine import is_zen_5

BODY = re.compile(r"::run_impl\([^{]*\{(.*)\n\} // \w+::run_impl", re.DOTALL)
KERNEL = re.compile(r'^extern "C"\s+void\s+\w+\([^)]*\);', re.MULTILINE)
OWN = frozenset(f"aoti_torch_{name}" for name in ("empty_strided", "_alloc_from_pool", "cpu_mm_out", "cpu_addmm_out"))
"""The functions of torch for which `native.h` has a variant with pointers."""


def call_natively(examples: Sequence[Tensor]) -> None:
    """Change torch so that this process compiles graphs to the function `drl_updates`, where possible.

    `examples` have the sizes, strides and types of the graph's inputs. If the changed code cannot be compiled, torch's
    own code is compiled.
    """
    from torch._inductor import codecache

    compiler: Any = getattr(codecache, "AotCodeCompiler", None)
    if compiler is None or not _has_sgemm():
        return
    torchs: Callable[..., Any] = compiler.compile.__func__

    def compile_either(cls: Any, graph: Any, wrapper_code: str, *args: Any, **kwargs: Any) -> Any:
        if (code := native(wrapper_code, examples)) is not None:
            try:
                return torchs(cls, graph, code, *args, **kwargs)
            except Exception:  # the C++ compiler refuses the code of another version of torch
                pass
        return torchs(cls, graph, wrapper_code, *args, **kwargs)

    compiler.compile = classmethod(compile_either)


def native(code: str, examples: Sequence[Tensor]) -> str | None:
    """Return C++ code with the function `drl_updates`, made from AOTInductor's code.

    Return None if the code calls functions of torch that need torch's objects.
    """
    body = BODY.search(code)
    if body is None:
        return None
    lines = [line for line in body[1].split("\n") if "AOTInductorModelKernels" not in line]
    text = "\n".join(lines).replace("this->device_idx_", "0")
    if re.search(r"\bthis\b|\bproxy_executor\b|\bconstants_\b|\bkernels\.", text):
        return None
    others = set(re.findall(r"\baoti_torch_\w+", text)) - OWN
    if not all(re.fullmatch(r"aoti_torch_cpu_\w+_out", name) for name in others):
        return None
    names = sorted(set(re.findall(r"\bcached_torch_(\w+)", text)))
    products = ["#define OWN_PRODUCTS", _text("products.h")] if has_own_products() else []
    parts = [
        *products,
        _text("native.h"),
        *KERNEL.findall(code),
        *(f"static const int32_t cached_torch_{name} = aoti_torch_{name}();" for name in names),
        passed_on(sorted(others)),
        _inputs(examples),
        f"namespace drl {{\nstatic void update(Inputs input_handles, Outputs output_handles) {{{text}\n}}\n}}",
        UPDATES,
    ]
    return "\n".join(parts)


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text()


def has_own_products() -> bool:
    """Return whether programs use the products of `products.h`: on AMD's Zen 5 with AVX-512."""
    return is_zen_5() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def passed_on(names: Sequence[str]) -> str:
    """Return C++ functions that call the functions of torch with these names, after converting pointers to tensors."""
    functions = [
        f"template <class... Any>\nAOTITorchError {name}(const Any&... all) {{ return ::{name}(torchs(all)...); }}"
        for name in names
    ]
    return "\n".join(["namespace drl {", *functions, "}"])


UPDATES = """
// Make updates. The data of update i lies i * step bytes after the pointer. Return what went wrong, or null.
extern "C" const char* drl_updates(
    int64_t num, char* const* data, const int64_t* steps, char* const* outputs, const int64_t* output_steps) {
    static thread_local std::string error;
    drl::Memory memory;
    drl::memory = &memory;
    try {
        for (int64_t i = 0; i < num; ++i) {
            memory.used = 0;
            drl::update({inputs, data, steps, i}, {outputs, output_steps, i});
        }
    } catch (const std::exception& caught) {
        error = caught.what();
        return error.c_str();
    }
    return nullptr;
}
"""


def _inputs(examples: Sequence[Tensor]) -> str:
    """Return C++ code with a table of the inputs' sizes, strides and types."""
    arrays, rows = list[str](), list[str]()
    for i, x in enumerate(examples):
        for name, values in (("sizes", x.shape), ("strides", x.stride())):
            numbers = ", ".join(map(str, (*values, 0)))  # C++ has no arrays without elements
            arrays.append(f"static const int64_t {name}_{i}[] = {{{numbers}}};")
        kind = str(x.dtype).removeprefix("torch.")
        rows.append(f"    {{nullptr, {x.ndim}, sizes_{i}, strides_{i}, aoti_torch_dtype_{kind}()}},")
    return "\n".join([*arrays, "static const drl::Tensor inputs[] = {", *rows, "};"])


def _has_sgemm() -> bool:
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return library.is_file() and hasattr(ctypes.CDLL(str(library)), "SGEMM")
