"""Products: a compiled program calls the matrix product of torch's BLAS library directly.

AOTInductor calls `at::mm_out` and `at::addmm_out`. For 64 x 64 numbers, their checks and the views of their arguments
take as long as the product. This module edits the C++ code that AOTInductor writes, so that it calls `SGEMM` with the
same arguments as torch would: the results are equal bit by bit. Where this is not possible, the code stays as it is.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CALL = re.compile(r"AOTI_TORCH_ERROR_CODE_CHECK\(aoti_torch_cpu_(mm|addmm)_out\((.*)\)\);")
VIEW = re.compile(r"wrap_with_raii_handle_if_needed\(reinterpret_tensor_wrapper\((.*)\)\)")
NAMESPACE = "namespace torch::aot_inductor {"

CODE = r"""
// The integers have 64 bits, of which a BLAS library with 32 bits reads the lower half.
extern "C" void SGEMM(const char*, const char*, const int64_t*, const int64_t*, const int64_t*, const float*,
                      const float*, const int64_t*, const float*, const int64_t*, const float*, float*, const int64_t*);

namespace drl {

struct View {
    float* data;
    const int64_t* sizes;
    const int64_t* strides;
    bool is_float;
};

static inline View view(AtenTensorHandle tensor) {
    void* data = nullptr;
    int64_t *sizes = nullptr, *strides = nullptr;
    int32_t type = -1;
    aoti_torch_get_data_ptr(tensor, &data);
    aoti_torch_get_sizes(tensor, &sizes);
    aoti_torch_get_strides(tensor, &strides);
    aoti_torch_get_dtype(tensor, &type);
    return {static_cast<float*>(data), sizes, strides, type == aoti_torch_dtype_float32()};
}

static inline View view(
    AtenTensorHandle tensor, int64_t, const int64_t* sizes, const int64_t* strides, int64_t offset) {
    View whole = view(tensor);
    return {whole.data + offset, sizes, strides, whole.is_float};
}

// Find the leading dimension of a matrix that lies in rows or in columns.
static inline bool order(const View& x, char& how, int64_t& leading) {
    bool is_in_rows = x.strides[1] == 1 && x.strides[0] >= x.sizes[1];
    how = is_in_rows ? 'N' : 'T';
    leading = is_in_rows ? x.strides[0] : x.strides[1];
    return x.is_float && x.sizes[0] > 0 && x.sizes[1] > 0 &&
           (is_in_rows || (x.strides[0] == 1 && x.strides[1] >= x.sizes[0]));
}

// Write a b + beta out to `out`, or return false. SGEMM has matrices in columns, so it computes b^T a^T.
static inline bool mm(const View& out, const View& a, const View& b, float beta = 0.0f) {
    char how_out, how_a, how_b;
    int64_t leading_out, leading_a, leading_b;
    const float one = 1.0f;
    if (!order(out, how_out, leading_out) || how_out != 'N') return false;
    if (!order(a, how_a, leading_a) || !order(b, how_b, leading_b)) return false;
    SGEMM(&how_b, &how_a, &out.sizes[1], &out.sizes[0], &a.sizes[1], &one, b.data, &leading_b, a.data, &leading_a,
          &beta, out.data, &leading_out);
    return true;
}

// Write a b + bias to `out`, or return false.
static inline bool addmm(const View& out, const View& bias, const View& a, const View& b, double beta, double alpha) {
    const int64_t columns = out.sizes[1];
    char how;
    int64_t leading;
    if (beta != 1.0 || alpha != 1.0 || !bias.is_float || bias.strides[0] != 1 || bias.sizes[0] != columns ||
        !order(out, how, leading) || how != 'N' || !order(a, how, leading) || !order(b, how, leading))
        return false;
    for (int64_t row = 0; row < out.sizes[0]; ++row)
        std::memcpy(out.data + row * out.strides[0], bias.data, columns * sizeof(float));
    return mm(out, a, b, 1.0f);
}

}  // namespace drl

"""


def call_directly() -> None:
    """Edit the code of all later compilations of this process, if torch's library has SGEMM."""
    from torch._inductor import codecache

    compiler: Any = getattr(codecache, "AotCodeCompiler", None)
    if compiler is None or not _has_sgemm():
        return
    compile_code: Callable[..., Any] = compiler.compile.__func__

    def compile_edited(cls: Any, graph: Any, wrapper_code: str, *args: Any, **kwargs: Any) -> Any:
        return compile_code(cls, graph, edited(wrapper_code), *args, **kwargs)

    compiler.compile = classmethod(compile_edited)


def edited(code: str) -> str:
    """Return AOTInductor's C++ code with direct matrix products."""
    changed = CALL.sub(_direct, code)
    return changed if changed == code else changed.replace(NAMESPACE, CODE + NAMESPACE, 1)


def _direct(call: re.Match[str]) -> str:
    """Return the direct call of a product, with torch's own call for matrices that it refuses."""
    name, arguments = call[1], _arguments(call[2])
    matrices, factors = {"mm": (3, 0), "addmm": (4, 2)}[name]
    if len(arguments) != matrices + factors:
        return call[0]
    direct = ", ".join([*map(_view, arguments[:matrices]), *arguments[matrices:]])
    torchs = f"aoti_torch_cpu_{name}_out({call[2]})"
    return f"AOTI_TORCH_ERROR_CODE_CHECK(drl::{name}({direct}) ? AOTI_TORCH_SUCCESS : {torchs});"


def _view(argument: str) -> str:
    view = VIEW.fullmatch(argument)
    return f"drl::view({view[1] if view else argument})"


def _arguments(text: str) -> list[str]:
    """Split the arguments of a call at the commas that are in no parentheses."""
    arguments, depth = [""], 0
    for character in text:
        depth += (character in "({") - (character in ")}")
        if character == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += character
    return [argument.strip() for argument in arguments]


def _has_sgemm() -> bool:
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return library.is_file() and hasattr(ctypes.CDLL(str(library)), "SGEMM")
