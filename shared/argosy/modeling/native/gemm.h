// Products of bfloat16 matrices with sums in float32 over AMX, and the layouts that its tiles take.
//
// A left operand [M][K] lies in blocks of 32 × 32, one after the other: [M/32][K/32][32][32]. A right operand [K][N] lies in panels of 32 columns: [N/32][K/2][32][2], pairs of
// successive rows side by side. Rows, columns and depth are multiples of 32; what pads them is 0.
//
// All functions with loops over blocks are called by every thread of a parallel region (orphaned `omp for`). Each block of
// a result is computed by one thread in a fixed order: the number of threads changes no bit.
#pragma once
#include <omp.h>

#include <algorithm>

#include "numbers.h"

namespace {

constexpr int64_t kBlock = 32;  // rows and columns of a block of a result: 2 × 2 tiles

inline int64_t padded(int64_t n) { return (n + kBlock - 1) / kBlock * kBlock; }
inline int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

inline void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) config.row_bytes[i] = 64, config.rows[i] = 16;
  _tile_loadconfig(&config);
}

// --- 32 × 32 of a result ---------------------------------------------------------------------------------------------

inline void start_block() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void load_block(const float* from) {
  _tile_loadd(0, from, kBlock * 4);
  _tile_loadd(1, from + 16, kBlock * 4);
  _tile_loadd(2, from + 16 * kBlock, kBlock * 4);
  _tile_loadd(3, from + 16 * kBlock + 16, kBlock * 4);
}

// `row_step` and `step` lead to a's next row and its next 32 columns. It is streamed past the nearest cache, so that the
// panel stays there for the next rows.
inline void add_to_block(const bf16* a, int64_t row_step, int64_t step, const bf16* panel, int64_t K) {
  for (int64_t k = 0; k < K; k += kBlock, a += step) {
    _tile_stream_loadd(4, a, row_step * 2);
    _tile_loadd(6, panel + k * kBlock, 128);
    _tile_loadd(7, panel + k * kBlock + kBlock, 128);
    _tile_stream_loadd(5, a + 16 * row_step, row_step * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

inline void store_block(float* out, int64_t step) {
  _tile_stored(0, out, step * 4);
  _tile_stored(1, out + 16, step * 4);
  _tile_stored(2, out + 16 * step, step * 4);
  _tile_stored(3, out + 16 * step + 16, step * 4);
}

// Of a row-major left operand.
inline void add_rows_to_block(const bf16* a, int64_t a_step, const bf16* panel, int64_t K) {
  add_to_block(a, a_step, kBlock, panel, K);
}

// 32 rows of a left operand.
inline void block(const bf16* strip, const bf16* panel, int64_t K, float* out) {
  start_block();
  add_to_block(strip, kBlock, kBlock * kBlock, panel, K);
  store_block(out, kBlock);
}

// --- whole products ----------------------------------------------------------------------------------------------------

constexpr int64_t kNearElements = 1 << 19;  // of the left operand, walked over for each panel: a megabyte of L2
constexpr int64_t kDepth = 576;             // of a panel at a time: 36 KiB of the 48 nearest the core
constexpr int64_t kMostStrips = 16;         // of a part's sums, where the depth is cut

// Calls body(rows from, rows to, panels from, panels to) over all blocks of a result.
template <typename F>
void areas(int64_t M, int64_t panels, int64_t K, F body) {
  const int64_t strips = M / kBlock;
  const int64_t near = std::max<int64_t>(1, std::min(kMostStrips, kNearElements / K / kBlock));
  const int64_t parts = pieces(strips, near), size = pieces(strips, parts);
  const int64_t groups = std::min(panels, std::max<int64_t>(1, pieces(8 * omp_get_num_threads(), parts)));
  const int64_t width = pieces(panels, groups);
#pragma omp for collapse(2) schedule(dynamic, 1)
  for (int64_t i = 0; i < parts; ++i)
    for (int64_t j = 0; j < groups; ++j)
      body(i * size * kBlock, std::min(strips, (i + 1) * size) * kBlock, std::min(panels, j * width),
           std::min(panels, (j + 1) * width));
}

// a [M][K] · b; done(m, n, block) gets each 32 × 32 of it.
template <typename F>
void product(const bf16* a, const bf16* b, int64_t M, int64_t N, int64_t K, F done) {
  const int64_t cuts = pieces(K, kDepth), depth = padded(pieces(K, cuts));
  areas(M, N / kBlock, K, [&](int64_t from, int64_t to, int64_t first, int64_t last) {
    alignas(64) float sums[kMostStrips * kBlock * kBlock];
    for (int64_t n = first; n < last; ++n)
      for (int64_t k = 0; k < K; k += depth)
        for (int64_t m = from; m < to; m += kBlock) {
          float* out = sums + (cuts > 1 ? (m - from) * kBlock : 0);
          if (k == 0) start_block();
          else load_block(out);
          add_to_block(a + m * K + k * kBlock, kBlock, kBlock * kBlock, b + (n * K + k) * kBlock, std::min(depth, K - k));
          store_block(out, kBlock);
          if (k + depth >= K) done(m, n * kBlock, out);
        }
  });
}

// Two products with the same left operand; done(m, n, block, other block). The depth isn't cut.
template <typename F>
void product_pair(const bf16* a, const bf16* b, const bf16* c, int64_t M, int64_t N, int64_t K, F done) {
  areas(M, N / kBlock, K, [&](int64_t from, int64_t to, int64_t first, int64_t last) {
    alignas(64) float sums[kMostStrips * kBlock * kBlock], other[kBlock * kBlock];
    for (int64_t n = first; n < last; ++n) {
      for (int64_t m = from; m < to; m += kBlock)
        block(a + m * K, b + n * K * kBlock, K, sums + (m - from) * kBlock);
      for (int64_t m = from; m < to; m += kBlock) {
        block(a + m * K, c + n * K * kBlock, K, other);
        done(m, n * kBlock, sums + (m - from) * kBlock, other);
      }
    }
  });
}

// The place of a number in a left operand of K columns.
inline int64_t at(int64_t m, int64_t k, int64_t K) {
  return (m / kBlock * K + k / kBlock * kBlock + m % kBlock) * kBlock + k % kBlock;
}

// A block's rows into row-major memory, as they are or added to what is there; `rows` of them.
template <typename T>
inline void write_block(const float* from, T* to, int64_t step, int64_t rows = kBlock) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < kBlock; c += kLanes) store16(to + r * step + c, load16(from + r * kBlock + c));
}
inline void add_block(const float* from, float* to, int64_t step, int64_t rows = kBlock) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < kBlock; c += kLanes) {
      float* at = to + r * step + c;
      store16(at, _mm512_add_ps(load16(at), load16(from + r * kBlock + c)));
    }
}

// --- layouts -------------------------------------------------------------------------------------------------------------

// 32 numbers as 16 words of two bfloat16.
inline __m512i words(const bf16* p) { return _mm512_loadu_si512(p); }
inline __m512i words(const float* p) {
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(p + kLanes), _mm512_loadu_ps(p));
}

// Words of the 16 numbers of two rows: the first row's in the lower halves.
inline __m512i joined(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}
inline __m512i joined(__m512 even, __m512 odd) {
  return joined((__m256i)_mm512_cvtneps_pbh(even), (__m256i)_mm512_cvtneps_pbh(odd));
}
inline __m512i pair(const float* even, const float* odd) { return joined(load16(even), load16(odd)); }
inline __m512i pair(const bf16* even, const bf16* odd) {
  return joined(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)),
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
}

// 16 registers of 16 words as a matrix, transposed in place.
inline void transpose16(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(t[i], t[4 + i], 0x88), b = _mm512_shuffle_i32x4(t[i], t[4 + i], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0xdd);
    r[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(a, c, 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(b, d, 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// 32 rows [32][K] → the panel of their transpose. Rows beyond `rows` are 0.
template <typename T>
inline void pack_columns(const T* from, int64_t step, int64_t K, bf16* panel, int64_t rows = kBlock) {
  for (int64_t half = 0; half < 2; ++half)
    for (int64_t k = 0; k < K; k += kBlock) {
      __m512i r[16];
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t row = half * 16 + i;
        r[i] = row < rows ? words(from + row * step + k) : _mm512_setzero_si512();
      }
      transpose16(r);
      for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(panel + (k / 2 + i) * 64 + half * 32, r[i]);
    }
}

// Rows [K][32 columns] → a panel of them. Rows beyond `rows` are 0.
template <typename T>
inline void pack_rows(const T* from, int64_t step, int64_t K, bf16* panel, int64_t rows) {
  for (int64_t k = 0; k < K; k += 2)
    for (int64_t c = 0; c < kBlock; c += kLanes) {
      __m512i found = _mm512_setzero_si512();
      if (k + 1 < rows) found = pair(from + k * step + c, from + (k + 1) * step + c);
      else if (k < rows) found = joined(load16(from + k * step + c), _mm512_setzero_ps());
      _mm512_storeu_si512(panel + k * kBlock + 2 * c, found);
    }
}

// 32 rows × C columns → their transpose [C][32] at a step. Rows beyond `rows` are 0.
inline void transpose_strip(const bf16* from, int64_t step, int64_t C, bf16* to, int64_t to_step, int64_t rows = kBlock) {
  for (int64_t c = 0; c < C; c += kLanes) {
    __m512i r[16];
    for (int64_t i = 0; i < 16; ++i) {
      const bf16 *even = from + 2 * i * step + c, *odd = even + step;
      if (2 * i + 1 < rows) r[i] = pair(even, odd);
      else r[i] = 2 * i < rows ? joined(load16(even), _mm512_setzero_ps()) : _mm512_setzero_si512();
    }
    transpose16(r);
    for (int64_t i = 0; i < kLanes; ++i) _mm512_storeu_si512(to + (c + i) * to_step, r[i]);
  }
}

// All threads together: a weight [N][K] as the right operand of x · weightᵀ, and of slope · weight.
template <typename T>
void pack_weight(const T* weight, int64_t N, int64_t K, bf16* b) {
#pragma omp for schedule(dynamic, 1)
  for (int64_t n = 0; n < N; n += kBlock) pack_columns(weight + n * K, K, K, b + n * K);
}
// K: of the whole operand, of which these are the rows from `first` on.
template <typename T>
void pack_transposed_weight(const T* weight, int64_t N, int64_t E, bf16* b, int64_t K, int64_t first) {
#pragma omp for schedule(dynamic, 1)
  for (int64_t e = 0; e < E; e += kBlock)
    pack_rows(weight + e, E, N, b + e * K + first * kBlock, N);
}
// A left operand [M][N] as the right operand of a product over its rows.
inline void pack_activations(const bf16* a, int64_t M, int64_t N, bf16* b) {
#pragma omp for schedule(dynamic, 1)
  for (int64_t n = 0; n < N; n += kBlock)
    for (int64_t m = 0; m < M; m += kBlock) pack_rows(a + at(m, n, N), kBlock, kBlock, b + (n * M + m * kBlock), kBlock);
}
// A left operand [M][N] → its transpose as one.
inline void transpose(const bf16* a, int64_t M, int64_t N, bf16* to) {
#pragma omp for schedule(dynamic, 1)
  for (int64_t n = 0; n < N; n += kBlock)
    for (int64_t m = 0; m < M; m += kBlock)
      transpose_strip(a + at(m, n, N), kBlock, kBlock, to + at(n, m, M), kBlock);
}

}  // namespace
