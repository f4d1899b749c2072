// Pointers in place of torch's tensors, for the C++ code that AOTInductor writes. See native.py.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// The integers have 64 bits, of which a BLAS library with 32 bits reads the lower half.
extern "C" void SGEMM(const char*, const char*, const int64_t*, const int64_t*, const int64_t*, const float*,
                      const float*, const int64_t*, const float*, const int64_t*, const float*, float*, const int64_t*);

#undef AOTI_TORCH_ERROR_CODE_CHECK
#define AOTI_TORCH_ERROR_CODE_CHECK(call) \
    if ((call) != AOTI_TORCH_SUCCESS) throw std::runtime_error(#call)

namespace drl {

using Handle = AtenTensorHandle;  // torch's

struct Tensor {
    char* data;
    int64_t ndim;
    const int64_t* sizes;
    const int64_t* strides;
    int32_t type;

    void* data_ptr() const { return data; }
    void reset() {}
    const Tensor& release() const { return *this; }
};

// A tensor of torch with the same memory, for torch's own functions.
struct Torchs {
    Handle handle = nullptr;
    explicit Torchs(const Tensor& x) {
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(
            x.data, x.ndim, x.sizes, x.strides, 0, x.type, aoti_torch_device_type_cpu(), 0, &handle));
    }
    Torchs(const Torchs&) = delete;
    ~Torchs() { aoti_torch_delete_tensor_object(handle); }
    operator Handle() const { return handle; }
};

static inline Torchs torchs(const Tensor& x) { return Torchs(x); }
template <class Other>
static inline const Other& torchs(const Other& x) { return x; }

// The memory of intermediate results: an update always allocates the same sizes in the same order.
struct Memory {
    std::vector<std::unique_ptr<char[]>> blocks;
    size_t used = 0;
    char* take(size_t bytes) {
        if (used == blocks.size()) blocks.emplace_back(new char[bytes + 64]);
        auto start = reinterpret_cast<uintptr_t>(blocks[used++].get());
        return reinterpret_cast<char*>((start + 63) & ~uintptr_t(63));
    }
};
static thread_local Memory* memory = nullptr;

struct Inputs {
    const Tensor* like;
    char* const* data;
    const int64_t* steps;
    int64_t update;
    Tensor operator[](size_t i) const {
        Tensor tensor = like[i];
        tensor.data = data[i] + update * steps[i];
        return tensor;
    }
    void clear() {}
};

// Copy the dimensions from `dim` on. From `dense` on, the elements adjoin and have `bytes` together, each of them `size`.
static char* copy(
    char* to, const char* from, const Tensor& x, int64_t dim, int64_t dense, int64_t size, int64_t bytes) {
    if (dim == dense) return static_cast<char*>(std::memcpy(to, from, bytes)) + bytes;
    for (int64_t i = 0; i < x.sizes[dim]; ++i)
        to = copy(to, from + i * x.strides[dim] * size, x, dim + 1, dense, size, bytes);
    return to;
}

struct Output {
    char* data;
    void operator=(const Tensor& x) const {
        const int64_t size = aoti_torch_dtype_element_size(x.type);
        int64_t dense = x.ndim, bytes = size;
        while (dense > 0 && (x.sizes[dense - 1] == 1 || x.strides[dense - 1] * size == bytes))
            bytes *= x.sizes[--dense];
        copy(data, x.data, x, 0, dense, size, bytes);
    }
};

struct Outputs {
    char* const* data;
    const int64_t* steps;
    int64_t update;
    Output operator[](size_t i) const { return {data[i] + update * steps[i]}; }
};

// From here on, names are those in AOTInductor's code.
using AtenTensorHandle = Tensor;
using RAIIAtenTensorHandle = Tensor;

static inline Inputs steal_from_raw_handles_to_raii_handles(const Inputs& inputs, size_t) { return inputs; }
static inline void __check_inputs_outputs(const Inputs&, const Outputs&) {}
static constexpr bool _check_aoti_runtime_check_inputs_env() { return false; }
template <class... Any>
static inline void assert_size_stride(const Tensor&, std::initializer_list<int64_t>, std::initializer_list<int64_t>, Any...) {}
static inline const Tensor& wrap_with_raii_handle_if_needed(const Tensor& x) { return x; }

static inline Tensor reinterpret_tensor_wrapper(
    const Tensor& x, int64_t ndim, const int64_t* sizes, const int64_t* strides, int64_t offset) {
    return {x.data + offset * int64_t(aoti_torch_dtype_element_size(x.type)), ndim, sizes, strides, x.type};
}

static inline AOTITorchError aoti_torch__alloc_from_pool(
    const Tensor& pool, int64_t bytes, int32_t type, int64_t ndim, const int64_t* sizes, const int64_t* strides,
    Tensor* out) {
    *out = {pool.data + bytes, ndim, sizes, strides, type};
    return AOTI_TORCH_SUCCESS;
}

static AOTITorchError aoti_torch_empty_strided(
    int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t type, int32_t, int32_t, Tensor* out) {
    int64_t length = 1;
    for (int64_t i = 0; i < ndim; ++i) length = sizes[i] ? length + (sizes[i] - 1) * strides[i] : 0;
    *out = {memory->take(length * aoti_torch_dtype_element_size(type)), ndim, sizes, strides, type};
    return AOTI_TORCH_SUCCESS;
}

// Find the leading dimension of a matrix that lies in rows or in columns.
static inline bool order(const Tensor& x, char& how, int64_t& leading) {
    bool is_in_rows = x.strides[1] == 1 && x.strides[0] >= x.sizes[1];
    how = is_in_rows ? 'N' : 'T';
    leading = is_in_rows ? x.strides[0] : x.strides[1];
    return x.type == aoti_torch_dtype_float32() && x.sizes[0] > 0 && x.sizes[1] > 0 &&
           (is_in_rows || (x.strides[0] == 1 && x.strides[1] >= x.sizes[0]));
}

#ifdef OWN_PRODUCTS
static inline products::Matrix matrix(const Tensor& x) { return {(float*)x.data, x.strides[0], x.strides[1]}; }
#endif

// Write a b + beta out to `out`, or return false. SGEMM has matrices in columns, so it computes b^T a^T.
static bool mm(const Tensor& out, const Tensor& a, const Tensor& b, float beta = 0.0f) {
    char how_out, how_a, how_b;
    int64_t leading_out, leading_a, leading_b;
    const float one = 1.0f;
    if (!order(out, how_out, leading_out) || how_out != 'N') return false;
    if (!order(a, how_a, leading_a) || !order(b, how_b, leading_b)) return false;
#ifdef OWN_PRODUCTS
    if (out.sizes[0] > 1 && out.sizes[1] > 1) {  // MKL is faster for products with a vector
        products::multiply(matrix(a), matrix(b), matrix(out), out.sizes[0], out.sizes[1], a.sizes[1], beta != 0.0f);
        return true;
    }
#endif
    SGEMM(&how_b, &how_a, &out.sizes[1], &out.sizes[0], &a.sizes[1], &one, (const float*)b.data, &leading_b,
          (const float*)a.data, &leading_a, &beta, (float*)out.data, &leading_out);
    return true;
}

// Write a b + bias to `out`, or return false.
static bool addmm(const Tensor& out, const Tensor& bias, const Tensor& a, const Tensor& b, double beta, double alpha) {
    const int64_t last = bias.ndim - 1, columns = out.sizes[1];
    char how;
    int64_t leading;
    if (beta != 1.0 || alpha != 1.0 || last < 0 || bias.type != out.type || bias.strides[last] != 1 ||
        bias.sizes[last] != columns || !order(out, how, leading) || how != 'N' || !order(a, how, leading) ||
        !order(b, how, leading))
        return false;
    const int64_t step = last && bias.sizes[0] > 1 ? bias.strides[0] * int64_t(sizeof(float)) : 0;
    for (int64_t row = 0; row < out.sizes[0]; ++row)
        std::memmove((float*)out.data + row * out.strides[0], bias.data + row * step, columns * sizeof(float));
    return mm(out, a, b, 1.0f);
}

static inline AOTITorchError aoti_torch_cpu_mm_out(const Tensor& out, const Tensor& a, const Tensor& b) {
    if (mm(out, a, b)) return AOTI_TORCH_SUCCESS;
    return ::aoti_torch_cpu_mm_out(Torchs(out), Torchs(a), Torchs(b));
}

static inline AOTITorchError aoti_torch_cpu_addmm_out(
    const Tensor& out, const Tensor& bias, const Tensor& a, const Tensor& b, double beta, double alpha) {
    if (addmm(out, bias, a, b, beta, alpha)) return AOTI_TORCH_SUCCESS;
    return ::aoti_torch_cpu_addmm_out(Torchs(out), Torchs(bias), Torchs(a), Torchs(b), beta, alpha);
}

}  // namespace drl
