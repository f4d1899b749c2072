"""Tests of direct matrix products in compiled programs."""

import ctypes
import shutil
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from drl_cli.chains import direct_products

START = "#include <cstdint>\n"
VIEW = "wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper({}, 2, int_array_1, int_array_2, 64L))"


def call(name, *arguments):
    return f"AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_{name}({', '.join(arguments)}));"


def test_a_product_is_called_directly_and_torchs_call_remains_for_what_it_refuses():
    arguments = ("buf0", VIEW.format("arg0_1"), "buf1")
    code = START + direct_products.NAMESPACE + call("mm_out", *arguments)
    direct = "drl::mm(drl::view(buf0), drl::view(arg0_1, 2, int_array_1, int_array_2, 64L), drl::view(buf1))"
    torchs = f"aoti_torch_cpu_mm_out({', '.join(arguments)})"
    expected = f"AOTI_TORCH_ERROR_CODE_CHECK({direct} ? AOTI_TORCH_SUCCESS : {torchs});"
    assert direct_products.edited(code) == START + direct_products.CODE + direct_products.NAMESPACE + expected


def test_a_product_with_a_bias_keeps_its_factors():
    code = direct_products.edited(
        direct_products.NAMESPACE + call("addmm_out", "out", "bias", VIEW.format("x"), "w", "1L", "0.5")
    )
    view = "drl::view(x, 2, int_array_1, int_array_2, 64L)"
    assert f"drl::addmm(drl::view(out), drl::view(bias), {view}, drl::view(w), 1L, 0.5) ?" in code


@pytest.mark.parametrize(
    "other",
    [
        call("bmm_out", "out", "a", "b"),
        call("mm_out", "out", "a", "b", "1L"),
        call("addmm_out", "out", "bias", "a", "b"),
    ],
)
def test_other_code_is_not_changed(other):
    code = START + direct_products.NAMESPACE + other
    assert direct_products.edited(code) == code


STAND_INS = """
#include <cstdint>
#include <cstring>
struct Tensor { void* data; int64_t sizes[2], strides[2]; int32_t type; };
typedef Tensor* AtenTensorHandle;
static int32_t aoti_torch_dtype_float32() { return 6; }
static int aoti_torch_get_data_ptr(AtenTensorHandle t, void** to) { *to = t->data; return 0; }
static int aoti_torch_get_sizes(AtenTensorHandle t, int64_t** to) { *to = t->sizes; return 0; }
static int aoti_torch_get_strides(AtenTensorHandle t, int64_t** to) { *to = t->strides; return 0; }
static int aoti_torch_get_dtype(AtenTensorHandle t, int32_t* to) { *to = t->type; return 0; }
"""
FUNCTIONS = """
using namespace drl;
extern "C" bool multiply(Tensor* out, Tensor* a, Tensor* b) { return mm(view(out), view(a), view(b)); }
extern "C" bool affine(Tensor* out, Tensor* bias, Tensor* a, Tensor* b, double beta, double alpha) {
    return addmm(view(out), view(bias), view(a), view(b), beta, alpha);
}
extern "C" bool shifted(Tensor* out, Tensor* a, Tensor* b, int64_t offset) {
    return mm(view(out), view(a, 2, a->sizes, a->strides, offset), view(b));
}
"""


class Handle(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_int64 * 2),
        ("strides", ctypes.c_int64 * 2),
        ("type", ctypes.c_int32),
    )

    @classmethod
    def of(cls, tensor, kind=6):
        sizes, strides = (ctypes.c_int64 * 2)(*tensor.shape), (ctypes.c_int64 * 2)(*tensor.stride())
        return ctypes.byref(cls(tensor.data_ptr(), sizes, strides, kind))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not shutil.which("g++") or not direct_products._has_sgemm():
        pytest.skip("needs g++ and torch with SGEMM")
    folder, libraries = tmp_path_factory.mktemp("products"), Path(torch.__file__).parent / "lib"
    (folder / "products.cpp").write_text(STAND_INS + direct_products.CODE + FUNCTIONS)
    link = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-ltorch_cpu"]
    command = ["g++", "-shared", "-fPIC", "-Wall", "-Werror", "products.cpp", "-o", "products.so", *link]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "products.so"))


def matrix(rows, columns, in_rows):
    return torch.randn(rows, columns) if in_rows else torch.randn(columns, rows).t()


@pytest.mark.parametrize(("a_in_rows", "b_in_rows"), [*product([True, False], repeat=2)])
@pytest.mark.parametrize("sizes", [(32, 8, 64), (5, 7, 3), (64, 64, 1), (64, 1, 64), (1, 9, 4), (1, 1, 1)])
def test_products_equal_those_of_torch_bit_by_bit(library, sizes, a_in_rows, b_in_rows):
    rows, inner, columns = sizes
    a, b, bias = matrix(rows, inner, a_in_rows), matrix(inner, columns, b_in_rows), torch.randn(columns)
    out = torch.full((rows, columns), torch.nan)
    assert library.multiply(Handle.of(out), Handle.of(a), Handle.of(b))
    assert torch.equal(out, a @ b)
    one = ctypes.c_double(1.0)
    assert library.affine(Handle.of(out), Handle.of(bias), Handle.of(a), Handle.of(b), one, one)
    assert torch.equal(out, torch.addmm(bias, a, b))


def test_a_matrix_can_begin_inside_of_a_tensor_and_have_gaps_between_its_rows(library):
    flat, b, out = torch.randn(100), torch.randn(4, 5), torch.zeros(3, 5)
    a = flat[10:].as_strided((3, 4), (6, 1))
    first = flat.as_strided((3, 4), (6, 1))
    assert library.shifted(Handle.of(out), Handle.of(first), Handle.of(b), ctypes.c_int64(10))
    np.testing.assert_array_equal(out, a @ b)


def test_what_sgemm_cannot_do_is_refused_and_nothing_is_written(library):
    a, b, bias, out = torch.randn(4, 6), torch.randn(6, 5), torch.randn(5), torch.zeros(4, 5)
    handle, one, two = Handle.of, ctypes.c_double(1.0), ctypes.c_double(2.0)
    gaps = torch.randn(8, 12)[::2, ::2]
    assert not library.multiply(handle(out), handle(gaps), handle(b))
    assert not library.multiply(handle(out), handle(a), handle(torch.randn(12, 10)[::2, ::2]))
    assert not library.multiply(handle(torch.zeros(5, 4).t()), handle(a), handle(b))
    assert not library.multiply(handle(out, kind=7), handle(a, kind=7), handle(b, kind=7))
    assert not library.multiply(handle(out), handle(torch.zeros(4, 0)), handle(torch.zeros(0, 5)))
    for factors in ((one, two), (two, one)):
        assert not library.affine(handle(out), handle(bias), handle(a), handle(b), *factors)
    assert not library.affine(handle(out), handle(torch.zeros(1)), handle(a), handle(b), one, one)
    assert not library.affine(handle(out), handle(torch.zeros(10)[::2]), handle(a), handle(b), one, one)
    assert not library.affine(handle(out), handle(bias), handle(gaps), handle(b), one, one)
    assert not library.affine(handle(out), handle(bias), handle(a), handle(torch.randn(12, 10)[::2, ::2]), one, one)
    assert not out.any()
