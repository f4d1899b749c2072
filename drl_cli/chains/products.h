// Products of float32 matrices for AMD's Zen 5 with AVX-512, on which MKL takes two to three times as long.
//
// A tile of the result, up to 12 rows of 32 columns, stays in registers while its sums run over the depth. For each 32
// columns, the part of `b` that they need is first copied to consecutive memory (Goto and van de Geijn 2008, "Anatomy of
// High-Performance Matrix Multiplication"), unless there are too few rows to pay for the copy.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace products {

struct Matrix {
    float* data;
    int64_t row, column;  // steps from one row or column to the next
};

constexpr int64_t LANES = 16, ROWS = 12, COLUMNS = 2 * LANES;

// Write to `c`, or add to it, the product of R rows of `a` and a panel `[depth, COLUMNS]`, in its first `width` columns.
// The rows of the panel lie `step` numbers apart.
template <int64_t R>
static void tile(Matrix a, const float* panel, int64_t step, Matrix c, int64_t depth, int64_t width, bool adds) {
    const __mmask16 left_mask = width >= LANES ? 0xFFFF : (1u << width) - 1;
    const __mmask16 right_mask = width <= LANES ? 0 : (1u << (width - LANES)) - 1;
    __m512 left[R], right[R];
#pragma GCC unroll 12
    for (int64_t r = 0; r < R; ++r) {
        const float* from = c.data + r * c.row;
        left[r] = adds ? _mm512_maskz_loadu_ps(left_mask, from) : _mm512_setzero_ps();
        right[r] = adds ? _mm512_maskz_loadu_ps(right_mask, from + LANES) : _mm512_setzero_ps();
    }
    const float* x = a.data;
    for (int64_t k = 0; k < depth; ++k, x += a.column, panel += step) {
        const __m512 l = _mm512_loadu_ps(panel), h = _mm512_loadu_ps(panel + LANES);
#pragma GCC unroll 12
        for (int64_t r = 0; r < R; ++r) {
            const __m512 factor = _mm512_set1_ps(x[r * a.row]);
            left[r] = _mm512_fmadd_ps(factor, l, left[r]);
            right[r] = _mm512_fmadd_ps(factor, h, right[r]);
        }
    }
#pragma GCC unroll 12
    for (int64_t r = 0; r < R; ++r) {
        _mm512_mask_storeu_ps(c.data + r * c.row, left_mask, left[r]);
        _mm512_mask_storeu_ps(c.data + r * c.row + LANES, right_mask, right[r]);
    }
}

// Copy columns `[depth, width]` of `b` to a panel `[depth, COLUMNS]`. The rest of the panel does not matter.
static void pack(Matrix b, float* panel, int64_t depth, int64_t width) {
    if (b.column == 1) {
        for (int64_t k = 0; k < depth; ++k) std::memcpy(panel + k * COLUMNS, b.data + k * b.row, width * sizeof(float));
        return;
    }
    for (int64_t first = 0; first < depth; first += LANES) {  // parts that fit into the fastest cache
        const int64_t end = std::min(first + LANES, depth);
        for (int64_t j = 0; j < width; ++j)
            for (int64_t k = first; k < end; ++k) panel[k * COLUMNS + j] = b.data[j * b.column + k * b.row];
    }
}

// Write `a b`, or add it, to `c`: `[rows, depth]`, `[depth, columns]`, `[rows, columns]`; the columns of `c` adjoin.
static void multiply(Matrix a, Matrix b, Matrix c, int64_t rows, int64_t columns, int64_t depth, bool adds) {
    static constexpr decltype(&tile<1>) TILES[] = {tile<1>, tile<2>, tile<3>, tile<4>,  tile<5>,  tile<6>,
                                                   tile<7>, tile<8>, tile<9>, tile<10>, tile<11>, tile<12>};
    static thread_local std::vector<float> memory;
    if (memory.size() < size_t(depth * COLUMNS)) memory.resize(depth * COLUMNS);
    const int64_t tiles = (rows + ROWS - 1) / ROWS, height = (rows + tiles - 1) / tiles;
    for (int64_t j = 0; j < columns; j += COLUMNS) {
        const int64_t width = std::min(COLUMNS, columns - j);
        const Matrix part = {b.data + j * b.column, b.row, b.column};
        const bool is_copied = tiles > 2 || b.column != 1 || width < COLUMNS;
        if (is_copied) pack(part, memory.data(), depth, width);
        const float* panel = is_copied ? memory.data() : part.data;
        const int64_t step = is_copied ? COLUMNS : b.row;
        for (int64_t i = 0; i < rows; i += height)
            TILES[std::min(height, rows - i) - 1](
                {a.data + i * a.row, a.row, a.column}, panel, step, {c.data + i * c.row + j, c.row, 1}, depth, width, adds);
    }
}

}  // namespace products
