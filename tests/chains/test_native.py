"""Tests of compiled code that calls kernels with pointers: which code is changed, and what its functions compute."""

import ctypes
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch

from drl_cli.chains import native
from drl_cli.chains.program import Program
from drl_cli.utils import machine

# ruff: noqa: E501  # the lines are AOTInductor's
CODE = """
extern "C"  void  cpp_fused_0(const float* in_ptr0,
                       float* out_ptr0,
                       float* out_ptr1);
class AOTInductorModelKernels : public Kernels {};
void AOTInductorModel::run_impl(
    AtenTensorHandle* input_handles, // a comment
    AOTIProxyExecutorHandle proxy_executor
) {
    __check_inputs_outputs(input_handles, output_handles);
    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 2);
    auto arg0_1 = std::move(inputs[0]);
    auto arg1_1 = std::move(inputs[1]);
    inputs.clear();
    [[maybe_unused]] auto& kernels = static_cast<AOTInductorModelKernels&>(*this->kernels_.get());
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg0_1, {3L, }, {1L, }, "input"); }
    static constexpr int64_t int_array_0[] = {256L, };
    static constexpr int64_t int_array_1[] = {1L, };
    const int64_t int_array_2[] = {3L, };
    const int64_t int_array_3[] = {2L, };
    AtenTensorHandle pool0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_0, int_array_1, cached_torch_dtype_uint8, cached_torch_device_type_cpu, this->device_idx_, &pool0_handle));
    RAIIAtenTensorHandle pool0(pool0_handle);
    AtenTensorHandle tmp_tensor_handle_0;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch__alloc_from_pool(pool0, 64L, cached_torch_dtype_float32, 1, int_array_2, int_array_1, &tmp_tensor_handle_0));
    auto buf0 = RAIIAtenTensorHandle(tmp_tensor_handle_0);
    cpp_fused_0((const float*)(arg0_1.data_ptr()), (float*)(arg1_1.data_ptr()), (float*)(buf0.data_ptr()));
    arg0_1.reset();
    auto buf1 = wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf0, 1, int_array_3, int_array_1, 1L));  // alias
    auto buf2 = std::move(buf1);  // reuse
    output_handles[0] = buf0.release();
    output_handles[1] = buf2.release();
    auto buf3 = wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf0, 1, int_array_3, int_array_3, 0L));  // alias
    output_handles[2] = buf3.release();
} // AOTInductorModel::run_impl
"""
KERNEL = """
extern "C" void cpp_fused_0(const float* x, float* sum, float* out) {
    for (int i = 0; i < 3; ++i) { sum[i] += x[i]; out[i] = 10 * sum[i]; }
}
"""
FUNCTIONS = """
using drl::Tensor;
extern "C" bool multiply(Tensor* out, Tensor* a, Tensor* b) { return drl::mm(*out, *a, *b); }
extern "C" bool affine(Tensor* out, Tensor* bias, Tensor* a, Tensor* b, double beta, double alpha) {
    return drl::addmm(*out, *bias, *a, *b, beta, alpha);
}
extern "C" int any(int which, Tensor* out, Tensor* bias, Tensor* a, Tensor* b) {
    return which == 0   ? drl::aoti_torch_cpu_mm_out(*out, *a, *b)
           : which == 1 ? drl::aoti_torch_cpu_addmm_out(*out, *bias, *a, *b, 2.0, 0.5)
           : which == 2 ? drl::aoti_torch_cpu_bmm_out(*out, *a, *b)
                        : drl::aoti_torch_cpu_baddbmm_out(*out, *bias, *a, *b, 2.0, 0.5);
}
extern "C" void write_output(char* to, Tensor* x) { drl::Output{to} = *x; }
"""
PASSED_ON = native.passed_on(["aoti_torch_cpu_bmm_out", "aoti_torch_cpu_baddbmm_out"])
EXAMPLES = [torch.zeros(3), torch.zeros(3)]


class Pointer(ctypes.Structure):
    _fields_ = (
        *(("data", ctypes.c_void_p), ("ndim", ctypes.c_int64), ("sizes", ctypes.POINTER(ctypes.c_int64))),
        *(("strides", ctypes.POINTER(ctypes.c_int64)), ("type", ctypes.c_int32)),
    )

    @classmethod
    def of(cls, tensor):
        types = {torch.float32: 6, torch.float64: 7}
        sizes, strides = ((ctypes.c_int64 * 3)(*values) for values in (tensor.shape, tensor.stride()))
        return ctypes.byref(cls(tensor.data_ptr(), tensor.ndim, sizes, strides, types[tensor.dtype]))


def built(folder, *flags):
    """Return the library with the code above."""
    torchs = Path(torch.__file__).parent
    (folder / "native.cpp").write_text(native.native(CODE, EXAMPLES) + PASSED_ON + KERNEL + FUNCTIONS)
    paths = [f"-I{torchs / 'include'}", f"-L{torchs / 'lib'}", f"-Wl,-rpath,{torchs / 'lib'}", "-ltorch_cpu"]
    warnings = ["-Wall", "-Wno-unused-variable"]
    command = ["g++", "-std=c++20", "-shared", "-fPIC", *warnings, *flags, "native.cpp", "-o", "native.so"]
    subprocess.run([*command, *paths], cwd=folder, check=True)
    made = ctypes.CDLL(str(folder / "native.so"))
    made.multiply.restype = made.affine.restype = ctypes.c_bool
    made.drl_updates.restype = ctypes.c_char_p
    return made


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not shutil.which("g++") or not native._has_sgemm():
        pytest.skip("needs g++ and torch with SGEMM")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "has_own_products", lambda: False)
        return built(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def own_products(tmp_path_factory):
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if not shutil.which("g++") or not native._has_sgemm() or not has_avx512:
        pytest.skip("needs g++, torch with SGEMM, and AVX-512")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "has_own_products", lambda: True)
        return built(tmp_path_factory.mktemp("own"), "-O1", "-mavx512f")


def numbers(*values):
    return (ctypes.c_int64 * len(values))(*values)


def test_updates_use_their_own_rows_and_the_same_storage(library):
    x, total = torch.arange(12.0).view(4, 3), torch.zeros(3)
    whole, part, gaps = torch.zeros(4, 3), torch.zeros(4, 2), torch.zeros(4, 2)
    assert (
        library.drl_updates(
            *(ctypes.c_int64(4), numbers(x.data_ptr(), total.data_ptr()), numbers(12, 0)),
            *(numbers(*(values.data_ptr() for values in (whole, part, gaps))), numbers(12, 8, 8)),
        )
        is None
    )
    sums = x.cumsum(0)
    assert torch.equal(total, sums[-1])
    assert torch.equal(whole, 10 * sums)
    assert torch.equal(part, 10 * sums[:, 1:])
    assert torch.equal(gaps, 10 * sums[:, ::2])


VALUES = torch.arange(60.0).view(3, 4, 5)


@pytest.mark.parametrize(
    "x",
    [
        *[VALUES, VALUES.double(), VALUES[1:, 1:3], VALUES[:, :, 1:3], VALUES[:, ::2], VALUES.permute(2, 0, 1)],
        *[VALUES[:, :1, 2:3], VALUES[0, 0].expand(2, 3, 5), VALUES[:, :0], VALUES[2, 3, 4]],
    ],
)
def test_results_are_written_without_gaps(library, x):
    out = torch.full((x.numel() + 1,), -1.0, dtype=x.dtype)
    library.write_output(ctypes.c_void_p(out.data_ptr()), Pointer.of(x))
    assert torch.equal(out[:-1], x.flatten())
    assert out[-1] == -1.0


def test_a_repeated_call_writes_to_the_same_results(library):
    """The kernel adds its first input to the second one, which is the column here; the results are ten times the sum."""
    storage, program = torch.ones(3), Program.__new__(Program)
    program._native, program._addresses = library.drl_updates, [storage.data_ptr()]
    program._scalars, program._draws, program._in_place = (), (), None
    program._results = [((size,), torch.float32) for size in (3, 2, 2)]
    call = program.repeated((), num_columns=1)
    for column, value in ((torch.zeros(3), 10.0), (torch.full((3,), 2.0), 30.0)):
        assert [x.tolist() for x in call([column])] == [[value] * 3, [value] * 2, [value] * 2]


def test_what_goes_wrong_in_a_repeated_call_is_raised():
    program = Program.__new__(Program)
    program._native, program._addresses, program._scalars = lambda *args: b"no memory", [], ()
    program._draws, program._results, program._in_place = (), [], None
    with pytest.raises(RuntimeError, match="no memory"):
        program.repeated((), 0)([])


def test_torchs_code_is_compiled_if_the_code_with_pointers_cannot_be(monkeypatch):
    from torch._inductor import codecache

    tried, broken = [], []

    class Compiler:
        @classmethod
        def compile(cls, graph, wrapper_code, kernel_code):
            tried.append((wrapper_code == CODE, kernel_code))
            if broken and wrapper_code != CODE:
                raise RuntimeError("g++")
            return "library"

    monkeypatch.setattr(codecache, "AotCodeCompiler", Compiler)
    native.call_natively(EXAMPLES)
    assert (Compiler.compile(None, CODE, "kernels"), tried) == ("library", [(False, "kernels")])
    broken.append("g++")
    assert Compiler.compile(None, CODE, "kernels") == "library"
    assert tried[1:] == [(False, "kernels"), (True, "kernels")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("AOTInductorModel::run_impl", "AOTInductorModel::other"),
        ("arg0_1.reset();", "aoti_torch_cpu_sort(arg0_1, &buf5_handle);"),
        ("arg0_1.reset();", "auto constant0 = constants_->at(0);"),
        ("arg0_1.reset();", "this->run();"),
        ("arg0_1.reset();", "aoti_torch_proxy_executor_call_function(proxy_executor, 0);"),
        ("arg0_1.reset();", "kernels.cpp_fused_1();"),
    ],
)
def test_code_that_calls_something_else_is_left_to_torch(old, new):
    assert native.native(CODE, EXAMPLES) is not None
    assert native.native(CODE.replace(old, new), EXAMPLES) is None


def matrix(rows, columns, in_rows):
    return torch.randn(rows, columns) if in_rows else torch.randn(columns, rows).t()


@pytest.mark.parametrize(("a_in_rows", "b_in_rows"), [*product([True, False], repeat=2)])
@pytest.mark.parametrize("sizes", [(32, 8, 64), (5, 7, 3), (64, 64, 1), (64, 1, 64), (1, 9, 4), (1, 1, 1)])
def test_products_equal_those_of_torch_bit_by_bit(library, sizes, a_in_rows, b_in_rows):
    rows, inner, columns = sizes
    a, b = matrix(rows, inner, a_in_rows), matrix(inner, columns, b_in_rows)
    out = torch.full((rows, columns), torch.nan)
    assert library.multiply(Pointer.of(out), Pointer.of(a), Pointer.of(b))
    assert torch.equal(out, a @ b)
    one = ctypes.c_double(1.0)
    for bias in (torch.randn(columns), torch.randn(1, columns), torch.randn(rows, columns)):
        assert library.affine(Pointer.of(out), Pointer.of(bias), Pointer.of(a), Pointer.of(b), one, one)
        assert torch.equal(out, torch.addmm(bias, a, b))


@pytest.mark.parametrize(("a_in_rows", "b_in_rows"), [*product([True, False], repeat=2)])
def test_own_products_equal_those_in_double_precision(own_products, a_in_rows, b_in_rows):
    one = ctypes.c_double(1.0)
    for rows, inner, columns in [
        *((rows, 20, 33) for rows in range(1, 28)),
        *((13, 17, width) for width in range(1, 66)),
    ]:
        a, b = matrix(rows, inner, a_in_rows), matrix(inner, columns, b_in_rows)
        out, bias = torch.full((rows + 1, columns + 5), torch.nan), torch.randn(columns)
        part = out[:rows, :columns]
        assert own_products.multiply(Pointer.of(part), Pointer.of(a), Pointer.of(b))
        torch.testing.assert_close(part.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
        assert own_products.affine(Pointer.of(part), Pointer.of(bias), Pointer.of(a), Pointer.of(b), one, one)
        torch.testing.assert_close(part.double(), a.double() @ b.double() + bias, rtol=1e-5, atol=1e-5)
        assert out[rows:].isnan().all()
        assert out[:, columns:].isnan().all()


def test_own_products_are_for_zen_5_with_avx512(monkeypatch):
    for vendor, family, capability, expected in (
        ("AuthenticAMD", 26, "AVX512", True),
        ("AuthenticAMD", 27, "AVX512", True),
        ("AuthenticAMD", 25, "AVX512", False),
        ("AuthenticAMD", 26, "AVX2", False),
        ("GenuineIntel", 26, "AVX512", False),
    ):
        text = f"vendor_id\t: {vendor}\ncpu family\t: {family}\n"
        monkeypatch.setattr(machine, "describe_processor", lambda text=text: text)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        assert native.has_own_products() is expected
        assert ("#define OWN_PRODUCTS" in native.native(CODE, EXAMPLES)) is expected


def test_what_sgemm_cannot_do_is_refused_and_nothing_is_written(library):
    a, b, bias, out = torch.randn(4, 6), torch.randn(6, 5), torch.randn(5), torch.zeros(4, 5)
    pointer, one, two = Pointer.of, ctypes.c_double(1.0), ctypes.c_double(2.0)
    gaps = torch.randn(8, 12)[::2, ::2]
    assert not library.multiply(pointer(out), pointer(gaps), pointer(b))
    assert not library.multiply(pointer(out), pointer(a), pointer(torch.randn(12, 10)[::2, ::2]))
    assert not library.multiply(pointer(torch.zeros(5, 4).t()), pointer(a), pointer(b))
    assert not library.multiply(pointer(out.double()), pointer(a.double()), pointer(b.double()))
    assert not library.multiply(pointer(out), pointer(torch.zeros(4, 0)), pointer(torch.zeros(0, 5)))
    for factors in ((one, two), (two, one)):
        assert not library.affine(pointer(out), pointer(bias), pointer(a), pointer(b), *factors)
    assert not library.affine(pointer(out), pointer(torch.zeros(1)), pointer(a), pointer(b), one, one)
    assert not library.affine(pointer(out), pointer(torch.zeros(10)[::2]), pointer(a), pointer(b), one, one)
    assert not library.affine(pointer(out), pointer(bias.double()), pointer(a), pointer(b), one, one)
    assert not library.affine(pointer(out), pointer(bias), pointer(gaps), pointer(b), one, one)
    assert not library.affine(pointer(out), pointer(bias), pointer(a), pointer(torch.randn(12, 10)[::2, ::2]), one, one)
    assert not out.any()


@pytest.mark.parametrize("which", range(4))
def test_torch_makes_the_other_products(library, which):
    batch = () if which < 2 else (3,)
    a, b, bias = (torch.randn(*batch, *sizes, dtype=torch.float64) for sizes in ((4, 6), (6, 5), (4, 5)))
    out = torch.zeros(*batch, 4, 5, dtype=torch.float64)
    assert library.any(which, *(Pointer.of(x) for x in (out, bias, a, b))) == 0
    torch.testing.assert_close(out, a @ b if which % 2 == 0 else 2 * bias + 0.5 * (a @ b))
