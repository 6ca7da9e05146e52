// A pass of a Llama-like model on a CPU with AVX-512 (and AMX for bfloat16) in one call without allocations. A row is one
// token of one sequence: a decode step has a row of each, a prefill a row for each token of a piece of a prompt.
// Compiled on the machine that runs it (argosy.native); called through model.py.
//
// Letters: B rows, P = B rounded up to 16, H hidden size, Q = heads × D, D head size, I inner size, V vocabulary,
// L layers, K key/value heads, G = heads / K.
//
// Activations are feature-major: x[feature][row], so that a vector register holds one feature of 16 rows. A weight is
// read once per step, as it lies ([out][in], row-major), straight from memory: y[N][P] = w[N][K] · x[K][P]. That makes
// the weight the left operand of AMX's tile product, which takes it unpacked; only the small x is packed.
//
// Each row's result depends on that row alone, in a fixed order of operations: neither the other rows of the batch nor
// the number of threads changes a bit of it.
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "numbers.h"

namespace {

// --- what a product takes: float [K][P], or pairs of bfloat16 [K/2][P][2] (AMX's right operand) -----------------------
// Both are matrices of 32-bit words with P columns: `pack` writes features f and f+1 of 16 rows.

inline void pack(const float*, uint32_t* x, int64_t f, int64_t P, int64_t p, __m512 even, __m512 odd) {
  _mm512_storeu_ps(reinterpret_cast<float*>(x) + f * P + p, even);
  _mm512_storeu_ps(reinterpret_cast<float*>(x) + (f + 1) * P + p, odd);
}
inline void pack(const bf16*, uint32_t* x, int64_t f, int64_t P, int64_t p, __m512 even, __m512 odd) {
  const __m512i low = _mm512_srli_epi32(rounded_bf16(even), 16);
  const __m512i high = _mm512_and_si512(rounded_bf16(odd), _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  _mm512_storeu_si512(x + f / 2 * P + p, _mm512_or_si512(low, high));
}

// --- y[N][P] (+)= w[N][K] · x ------------------------------------------------------------------------------------------

inline void prefetch_lines(const void* from, int64_t first, int64_t last) {
  const char* p = static_cast<const char*>(from);
  for (int64_t i = first; i < last; ++i) _mm_prefetch(p + i * kLine, _MM_HINT_T1);
}

// R rows of w times C·16 columns of x in registers. `next` is the weight that comes after this block's.
template <int R, int C>
inline void tile_f32(const float* w, int64_t K, const float* x, int64_t P, float* y, bool add, const float* next) {
  __m512 acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) acc[r][c] = add ? load16(y + r * P + c * kLanes) : _mm512_setzero_ps();
  const int64_t lines = R * K * 4 / kLine;
  for (int64_t k = 0; k < K; ++k) {
    if (next != nullptr && k < lines) prefetch_lines(next, k, k + 1);
    __m512 col[C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) col[c] = load16(x + k * P + c * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512 weight = _mm512_set1_ps(w[r * K + k]);
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) acc[r][c] = _mm512_fmadd_ps(weight, col[c], acc[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) store16(y + r * P + c * kLanes, acc[r][c]);
}

template <int R>
inline void rows_f32(const float* w, int64_t K, const float* x, int64_t P, float* y, bool add, const float* next) {
  int64_t p = 0;
  for (; p + 2 * kLanes <= P; p += 2 * kLanes, next = nullptr) tile_f32<R, 2>(w, K, x + p, P, y + p, add, next);
  if (p < P) tile_f32<R, 1>(w, K, x + p, P, y + p, add, next);
}

template <typename F>
inline void blocks(int64_t count, F body) {
  const int64_t chunk = std::max<int64_t>(1, count / (4 * omp_get_num_threads()));
#pragma omp for schedule(dynamic, chunk)
  for (int64_t i = 0; i < count; ++i) body(i);
}

void product(const float* w, int64_t N, int64_t K, const uint32_t* packed, int64_t P, float* y, bool add) {
  constexpr int64_t kRows = 12;  // 24 accumulators, 2 columns and a broadcast fill the 32 registers
  const float* x = reinterpret_cast<const float*>(packed);
  blocks((N + kRows - 1) / kRows, [&](int64_t i) {
    const int64_t n = i * kRows;
    if (n + kRows <= N) {
      const float* next = n + 3 * kRows <= N ? w + (n + 2 * kRows) * K : nullptr;
      rows_f32<kRows>(w + n * K, K, x, P, y + n * P, add, next);
    } else {
      for (int64_t r = n; r < N; ++r) rows_f32<1>(w + r * K, K, x, P, y + r * P, add, nullptr);
    }
  });
}

#ifdef __AMX_BF16__
constexpr int64_t kTileDepth = 32;  // bfloat16 numbers in a tile's row

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) config.row_bytes[i] = 64, config.rows[i] = 16;
  _tile_loadconfig(&config);
}

// 16·R rows of w times 16·C columns of x. Tiles 0–3 sum, 4–5 hold w, 6–7 x.
template <int R, int C>
inline void tile_bf16(const bf16* w, int64_t K, const uint32_t* x, int64_t P, float* y, bool add, const bf16* next) {
  const int64_t y_stride = P * 4, w_stride = K * 2, x_stride = P * 4;
  if (add) {
    _tile_loadd(0, y, y_stride);
    if (C > 1) _tile_loadd(1, y + 16, y_stride);
    if (R > 1) _tile_loadd(2, y + 16 * P, y_stride);
    if (R > 1 && C > 1) _tile_loadd(3, y + 16 * P + 16, y_stride);
  } else {
    _tile_zero(0);
    if (C > 1) _tile_zero(1);
    if (R > 1) _tile_zero(2);
    if (R > 1 && C > 1) _tile_zero(3);
  }
  constexpr int64_t kLinesAStep = R * 16 * kTileDepth * 2 / kLine;
  for (int64_t k = 0, step = 0; k < K; k += kTileDepth, ++step) {
    if (next != nullptr) prefetch_lines(next, step * kLinesAStep, (step + 1) * kLinesAStep);
    _tile_loadd(4, w + k, w_stride);
    _tile_loadd(6, x + k / 2 * P, x_stride);
    _tile_dpbf16ps(0, 4, 6);
    if (C > 1) {
      _tile_loadd(7, x + k / 2 * P + 16, x_stride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (R > 1) {
      _tile_loadd(5, w + 16 * K + k, w_stride);
      _tile_dpbf16ps(2, 5, 6);
      if (C > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, y, y_stride);
  if (C > 1) _tile_stored(1, y + 16, y_stride);
  if (R > 1) _tile_stored(2, y + 16 * P, y_stride);
  if (R > 1 && C > 1) _tile_stored(3, y + 16 * P + 16, y_stride);
}

template <int R>
inline void rows_bf16(const bf16* w, int64_t K, const uint32_t* x, int64_t P, float* y, bool add, const bf16* next) {
  int64_t p = 0;
  for (; p + 32 <= P; p += 32, next = nullptr) tile_bf16<R, 2>(w, K, x + p, P, y + p, add, next);
  if (p < P) tile_bf16<R, 1>(w, K, x + p, P, y + p, add, next);
}

// N ≥ 16; a multiple of 16 if `add` (the last rows are computed again, with what comes before them, to fill a tile).
void product(const bf16* w, int64_t N, int64_t K, const uint32_t* x, int64_t P, float* y, bool add) {
  blocks((N + 31) / 32, [&](int64_t i) {
    const int64_t n = i * 32;
    if (n + 32 <= N) {
      rows_bf16<2>(w + n * K, K, x, P, y + n * P, add, n + 96 <= N ? w + (n + 64) * K : nullptr);
    } else {
      if (n + 16 <= N) rows_bf16<1>(w + n * K, K, x, P, y + n * P, add, nullptr);
      if (N % 16) rows_bf16<1>(w + (N - 16) * K, K, x, P, y + (N - 16) * P, add, nullptr);
    }
  });
}
#endif

}  // namespace

// --- the model, as model.py describes it (ctypes) ------------------------------------------------------------------------

extern "C" {
struct ArgosyLayer {
  const void *qkv, *out, *gate_up, *down;                // [Q + 2·K·D][H], [H][Q], [2·I][H], [H][I]
  const void *qkv_bias, *out_bias;                       // null: none
  const void *input_norm, *post_norm, *q_norm, *k_norm;  // [H], [H], [D], [D]; the last two null: none
  int64_t window;                                        // tokens that a query sees, itself included; 0: all
};
struct ArgosyModel {
  int64_t layers, hidden, heads, kv_heads, head_size, inner, vocab, is_bf16;
  float eps, scale;
  const void *embedding, *norm, *head;  // [V][H], [H], [V][H]
  const float *cos, *sin;               // [positions][D]
  const ArgosyLayer* layer;
};
struct ArgosyPass {
  int64_t rows, threads, most_tokens;    // the last: above every position
  const int64_t *ids, *positions;        // [B]
  void* const* keys;                     // [B]: of the row's sequence, layer 0: [tokens][K][D]
  const int64_t *layer_step, *to_values;  // [B]: numbers from a layer's keys to the next one's, from keys to values
  float* logits;                         // [V][P], written; null: only keys and values are wanted
  float* scratch;                        // argosy_scratch_size floats
};
int64_t argosy_scratch_size(const ArgosyModel* m, int64_t rows, int64_t tokens, int64_t threads);
int argosy_can_bf16();
void argosy_run(const ArgosyModel* m, const ArgosyPass* s);
void argosy_draw(const float* logits, int64_t vocab, int64_t rows, int64_t threads, const float* temperature,
                 const uint8_t* greedy, const double* uniforms, double* scratch, int64_t* tokens, float* log_probs);
}

namespace {

inline int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

struct Scratch {
  float *x, *y, *scores, *heads;
  uint32_t *packed, *attended;
};

Scratch divide(const ArgosyModel& m, float* base, int64_t P, int64_t tokens, int64_t threads) {
  const int64_t Q = m.heads * m.head_size, G = m.heads / m.kv_heads;
  const int64_t wide = std::max({m.hidden, Q, m.inner});
  Scratch s;
  s.x = base;
  s.y = s.x + m.hidden * P;
  s.packed = reinterpret_cast<uint32_t*>(s.y + std::max(Q + 2 * m.kv_heads * m.head_size, 2 * m.inner) * P);
  s.attended = s.packed + wide * P;
  s.scores = reinterpret_cast<float*>(s.attended + Q * P);
  s.heads = s.scores + threads * G * padded(tokens);
  return s;
}

int64_t scratch_size(const ArgosyModel& m, int64_t P, int64_t tokens, int64_t threads) {
  const Scratch s = divide(m, nullptr, P, tokens, threads);
  return (s.heads - static_cast<float*>(nullptr)) + threads * (m.heads / m.kv_heads) * m.head_size;
}

template <typename W>
void embed(const ArgosyModel& m, const ArgosyPass& s, int64_t P, float* x) {
  const W* table = static_cast<const W*>(m.embedding);
#pragma omp for
  for (int64_t f = 0; f < m.hidden; ++f)
    for (int64_t p = 0; p < P; ++p) x[f * P + p] = p < s.rows ? to_float(table[s.ids[p] * m.hidden + f]) : 0.f;
}

// RMSNorm (Zhang and Sennrich 2019) of x [H][P], packed for a product.
template <typename W>
void norm(const float* x, int64_t H, int64_t P, const W* weight, float eps, uint32_t* packed) {
#pragma omp for
  for (int64_t p = 0; p < P; p += kLanes) {
    __m512 even = _mm512_setzero_ps(), odd = even;
    for (int64_t f = 0; f < H; f += 2) {
      const __m512 a = load16(x + f * P + p), b = load16(x + (f + 1) * P + p);
      even = _mm512_fmadd_ps(a, a, even);
      odd = _mm512_fmadd_ps(b, b, odd);
    }
    const __m512 mean = _mm512_div_ps(_mm512_add_ps(even, odd), _mm512_set1_ps(static_cast<float>(H)));
    const __m512 factor =
        _mm512_div_ps(_mm512_set1_ps(1.f), _mm512_sqrt_ps(_mm512_add_ps(mean, _mm512_set1_ps(eps))));
    for (int64_t f = 0; f < H; f += 2) {
      const __m512 a = _mm512_mul_ps(load16(x + f * P + p), factor);
      const __m512 b = _mm512_mul_ps(load16(x + (f + 1) * P + p), factor);
      pack(weight, packed, f, P, p, _mm512_mul_ps(a, _mm512_set1_ps(to_float(weight[f]))),
           _mm512_mul_ps(b, _mm512_set1_ps(to_float(weight[f + 1]))));
    }
  }
}

// SiLU(gate) · up of y [2·I][P], packed for a product.
template <typename W>
void gate(const float* y, int64_t I, int64_t P, uint32_t* packed) {
  const float* up = y + I * P;
  const __m512 one = _mm512_set1_ps(1.f);
  auto silu = [&](int64_t at) {
    const __m512 g = load16(y + at);
    const __m512 e = exp16(_mm512_sub_ps(_mm512_setzero_ps(), g));
    return _mm512_mul_ps(_mm512_div_ps(g, _mm512_add_ps(one, e)), load16(up + at));
  };
#pragma omp for
  for (int64_t f = 0; f < I; f += 2)
    for (int64_t p = 0; p < P; p += kLanes)
      pack(static_cast<const W*>(nullptr), packed, f, P, p, silu(f * P + p), silu((f + 1) * P + p));
}

template <typename W>
void add_bias(float* y, int64_t N, int64_t P, const W* bias) {
  if (bias == nullptr) return;
#pragma omp for
  for (int64_t n = 0; n < N; ++n)
    for (int64_t p = 0; p < P; p += kLanes)
      store16(y + n * P + p, _mm512_add_ps(load16(y + n * P + p), _mm512_set1_ps(to_float(bias[n]))));
}

// One head of one row out of y [D][P]: normalised if there is a weight, turned by its position, times `scale`.
template <typename W>
void take_head(const float* y, int64_t P, int64_t D, const W* weight, float eps, const float* cos, const float* sin,
               float scale, float* head) {
  const __m512i lanes = _mm512_mullo_epi32(
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(static_cast<int>(P)));
  __m512 squares = _mm512_setzero_ps();
  for (int64_t d = 0; d < D; d += kLanes) {
    const __m512 v = _mm512_i32gather_ps(lanes, y + d * P, 4);
    squares = _mm512_fmadd_ps(v, v, squares);
    store16(head + d, v);
  }
  if (weight != nullptr) {
    const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(D);
    const __m512 factor = _mm512_set1_ps(1.f / std::sqrt(mean + eps));
    for (int64_t d = 0; d < D; d += kLanes)
      store16(head + d, _mm512_mul_ps(_mm512_mul_ps(load16(head + d), factor), load16(weight + d)));
  }
  if (cos == nullptr) return;
  const int64_t half = D / 2;  // pairs (d, d + D/2) are turned together (Su 2021, as Llama lays them out)
  for (int64_t d = 0; d < half; ++d) {
    const float a = head[d], b = head[d + half];
    head[d] = (a * cos[d] - b * sin[d]) * scale;
    head[d + half] = (b * cos[d + half] + a * sin[d + half]) * scale;
  }
}

constexpr int64_t kAhead = 16;  // tokens

inline void prefetch_near(const void* from, int64_t lines) {
  const char* p = static_cast<const char*>(from);
  for (int64_t i = 0; i < lines; ++i) _mm_prefetch(p + i * kLine, _MM_HINT_T0);
}

// C queries (heads of one group) against one row's keys and values; scores [C][stride]; out [C][D] in W.
template <typename W, int DB, int C>
void attend(const float* q, const W* keys, const W* values, int64_t step, int64_t begin, int64_t end, float* scores,
            int64_t stride, W* out) {
  constexpr int64_t D = DB * kLanes, kLines = (D * sizeof(W) + kLine - 1) / kLine;
  const int64_t count = end - begin;
  for (int64_t t = 0; t < count; ++t) {
    // A head's numbers of successive tokens lie apart: too far for the hardware to see the pattern.
    if (t + kAhead < count) prefetch_near(keys + (begin + t + kAhead) * step, kLines);
    __m512 key[DB];
#pragma GCC unroll 8
    for (int i = 0; i < DB; ++i) key[i] = load16(keys + (begin + t) * step + i * kLanes);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      __m512 sum = _mm512_mul_ps(key[0], load16(q + c * D));
#pragma GCC unroll 8
      for (int i = 1; i < DB; ++i) sum = _mm512_fmadd_ps(key[i], load16(q + c * D + i * kLanes), sum);
      scores[c * stride + t] = _mm512_reduce_add_ps(sum);
    }
  }
  for (int64_t t = 0; t < std::min(kAhead, count); ++t) prefetch_near(values + (begin + t) * step, kLines);
  float total[C];
  for (int c = 0; c < C; ++c) {
    float* row = scores + c * stride;
    for (int64_t t = count; t < padded(count); ++t) row[t] = -INFINITY;
    __m512 peak = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    for (int64_t t = 0; t < count; t += kLanes) peak = _mm512_max_ps(peak, load16(row + t));
    peak = _mm512_set1_ps(_mm512_reduce_max_ps(peak));
    for (int64_t t = 0; t < count; t += kLanes) {
      const __m512 e = exp16(_mm512_sub_ps(load16(row + t), peak));
      sum = _mm512_add_ps(sum, e);
      store16(row + t, e);
    }
    total[c] = _mm512_reduce_add_ps(sum);
  }
  __m512 acc[C][DB];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c)
#pragma GCC unroll 8
    for (int i = 0; i < DB; ++i) acc[c][i] = _mm512_setzero_ps();
  for (int64_t t = 0; t < count; ++t) {
    if (t + kAhead < count) prefetch_near(values + (begin + t + kAhead) * step, kLines);
    __m512 value[DB];
#pragma GCC unroll 8
    for (int i = 0; i < DB; ++i) value[i] = load16(values + (begin + t) * step + i * kLanes);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const __m512 weight = _mm512_set1_ps(scores[c * stride + t]);
#pragma GCC unroll 8
      for (int i = 0; i < DB; ++i) acc[c][i] = _mm512_fmadd_ps(weight, value[i], acc[c][i]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const __m512 share = _mm512_set1_ps(1.f / total[c]);
#pragma GCC unroll 8
    for (int i = 0; i < DB; ++i) store16(out + c * D + i * kLanes, _mm512_mul_ps(acc[c][i], share));
  }
}

template <typename W, int DB>
void attend_group(int64_t G, const float* q, const W* keys, const W* values, int64_t step, int64_t begin, int64_t end,
                  float* scores, int64_t stride, W* out) {
  constexpr int64_t D = DB * kLanes;
  constexpr int64_t kMost = DB > 4 ? 3 : 4;  // accumulators: at most 24 registers
  for (int64_t g = 0; g < G; g += kMost) {
    const int64_t count = std::min(kMost, G - g);
    auto run = [&](auto one) {
      attend<W, DB, decltype(one)::value>(q + g * D, keys, values, step, begin, end, scores, stride, out + g * D);
    };
    if (count == 1) run(std::integral_constant<int, 1>());
    if (count == 2) run(std::integral_constant<int, 2>());
    if (count == 3) run(std::integral_constant<int, 3>());
    if constexpr (kMost == 4) {
      if (count == 4) run(std::integral_constant<int, 4>());
    }
  }
}

// Store each row's key and value, and attend to what its sequence has up to it; out [P][Q] in W, row-major.
template <typename W>
void attention(const ArgosyModel& m, const ArgosyPass& s, int64_t l, int64_t P, const Scratch& scratch, W* out) {
  const ArgosyLayer& layer = m.layer[l];
  const int64_t D = m.head_size, K = m.kv_heads, G = m.heads / K, Q = m.heads * D, step = K * D;
  const int64_t stride = padded(s.most_tokens);
  float* scores = scratch.scores + omp_get_thread_num() * G * stride;
  float* heads = scratch.heads + omp_get_thread_num() * G * D;
  const W *q_norm = static_cast<const W*>(layer.q_norm), *k_norm = static_cast<const W*>(layer.k_norm);
  auto keys_of = [&](int64_t b, int64_t h) { return static_cast<W*>(s.keys[b]) + l * s.layer_step[b] + h * D; };
  // All keys before any query: rows may be of one sequence.
#pragma omp for
  for (int64_t i = 0; i < s.rows * K; ++i) {
    const int64_t b = i / K, h = i % K, position = s.positions[b];
    W* key = keys_of(b, h) + position * step;
    const float* y = scratch.y + (Q + h * D) * P + b;
    take_head<W>(y, P, D, k_norm, m.eps, m.cos + position * D, m.sin + position * D, 1.f, heads);
    for (int64_t d = 0; d < D; d += kLanes) store16(key + d, load16(heads + d));
    take_head<W>(y + step * P, P, D, nullptr, 0.f, nullptr, nullptr, 1.f, heads);
    for (int64_t d = 0; d < D; d += kLanes) store16(key + s.to_values[b] + d, load16(heads + d));
  }
#pragma omp for schedule(dynamic, 1)
  for (int64_t i = 0; i < s.rows * K; ++i) {
    const int64_t b = i / K, h = i % K, position = s.positions[b];
    for (int64_t g = 0; g < G; ++g)
      take_head<W>(scratch.y + (h * G + g) * D * P + b, P, D, q_norm, m.eps, m.cos + position * D,
                   m.sin + position * D, m.scale, heads + g * D);
    const W *keys = keys_of(b, h), *values = keys + s.to_values[b];
    const int64_t end = position + 1, begin = layer.window > 0 ? std::max<int64_t>(0, end - layer.window) : 0;
    W* target = out + b * Q + h * G * D;
    auto run = [&](auto width) {
      attend_group<W, decltype(width)::value>(G, heads, keys, values, step, begin, end, scores, stride, target);
    };
    switch (D / kLanes) {
      case 1: run(std::integral_constant<int, 1>()); break;
      case 2: run(std::integral_constant<int, 2>()); break;
      case 4: run(std::integral_constant<int, 4>()); break;
      case 6: run(std::integral_constant<int, 6>()); break;
      default: run(std::integral_constant<int, 8>()); break;
    }
  }
}

// Rows of `width` 32-bit words → packed [width][P]; rows beyond B are 0.
void transpose_words(const uint32_t* from, int64_t rows, int64_t width, int64_t P, uint32_t* to) {
#pragma omp for
  for (int64_t w = 0; w < width; w += 16)
    for (int64_t p = 0; p < P; ++p)
      for (int64_t i = w; i < std::min(w + 16, width); ++i) to[i * P + p] = p < rows ? from[p * width + i] : 0;
}

template <typename W>
void run(const ArgosyModel& m, const ArgosyPass& s) {
  const int64_t P = padded(s.rows), H = m.hidden, Q = m.heads * m.head_size, KV = m.kv_heads * m.head_size;
  const Scratch t = divide(m, s.scratch, P, s.most_tokens, s.threads);
  auto as = [](const void* p) { return static_cast<const W*>(p); };
#pragma omp parallel num_threads(s.threads)
  {
#ifdef __AMX_BF16__
    if (sizeof(W) == 2) configure_tiles();
#endif
    embed<W>(m, s, P, t.x);
    for (int64_t l = 0; l < m.layers; ++l) {
      const ArgosyLayer& layer = m.layer[l];
      norm(t.x, H, P, as(layer.input_norm), m.eps, t.packed);
      product(as(layer.qkv), Q + 2 * KV, H, t.packed, P, t.y, false);
      add_bias(t.y, Q + 2 * KV, P, as(layer.qkv_bias));
      attention<W>(m, s, l, P, t, reinterpret_cast<W*>(t.attended));
      transpose_words(t.attended, s.rows, Q * sizeof(W) / 4, P, t.packed);
      product(as(layer.out), H, Q, t.packed, P, t.x, true);
      add_bias(t.x, H, P, as(layer.out_bias));
      norm(t.x, H, P, as(layer.post_norm), m.eps, t.packed);
      product(as(layer.gate_up), 2 * m.inner, H, t.packed, P, t.y, false);
      gate<W>(t.y, m.inner, P, t.packed);
      product(as(layer.down), H, m.inner, t.packed, P, t.x, true);
    }
    if (s.logits != nullptr) {
      norm(t.x, H, P, as(m.norm), m.eps, t.packed);
      product(as(m.head), m.vocab, H, t.packed, P, s.logits, false);
    }
#ifdef __AMX_BF16__
    if (sizeof(W) == 2) _tile_release();
#endif
  }
}

}  // namespace

int64_t argosy_scratch_size(const ArgosyModel* m, int64_t rows, int64_t tokens, int64_t threads) {
  return scratch_size(*m, padded(rows), tokens, threads);
}

int argosy_can_bf16() {
#ifdef __AMX_BF16__
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return 0;
#endif
}

void argosy_run(const ArgosyModel* m, const ArgosyPass* s) {
#ifdef __AMX_BF16__
  if (m->is_bf16) return run<bf16>(*m, *s);
#endif
  run<float>(*m, *s);
}

// Sample one token per row by inverse CDF over logits [V][P], with the log-prob of each.
//
// In two levels: sums of 256 probabilities, then the tokens of the one block in which the cumulative sum passes
// uniform × total.
void argosy_draw(const float* logits, int64_t vocab, int64_t rows, int64_t threads, const float* temperature,
                 const uint8_t* greedy, const double* uniforms, double* scratch, int64_t* tokens, float* log_probs) {
  constexpr int64_t kBlock = 256;
  const int64_t P = padded(rows), count = (vocab + kBlock - 1) / kBlock;
  double* sums = scratch;                                           // [count][P]
  float* peaks = reinterpret_cast<float*>(sums + count * P);        // [count][P]
  int32_t* bests = reinterpret_cast<int32_t*>(peaks + count * P);   // [count][P]
  float* peak = reinterpret_cast<float*>(bests + count * P);        // [P]
  auto score = [&](int64_t v, int64_t p) {
    const __m512 x = load16(logits + v * P + p);
    return temperature == nullptr ? x : _mm512_div_ps(x, load16(temperature + p));
  };
#pragma omp parallel num_threads(threads)
  {
#pragma omp for
    for (int64_t i = 0; i < count; ++i)
      for (int64_t p = 0; p < P; p += kLanes) {
        __m512 best = _mm512_set1_ps(-INFINITY);
        __m512i place = _mm512_set1_epi32(static_cast<int>(i * kBlock));
        for (int64_t v = i * kBlock; v < std::min(vocab, (i + 1) * kBlock); ++v) {
          const __m512 x = score(v, p);
          const __mmask16 above = _mm512_cmp_ps_mask(x, best, _CMP_GT_OQ);
          best = _mm512_mask_mov_ps(best, above, x);
          place = _mm512_mask_set1_epi32(place, above, static_cast<int>(v));
        }
        _mm512_storeu_ps(peaks + i * P + p, best);
        _mm512_storeu_si512(bests + i * P + p, place);
      }
#pragma omp for
    for (int64_t p = 0; p < P; ++p) {
      peak[p] = -INFINITY;
      int64_t best = 0;
      for (int64_t i = 0; i < count; ++i)
        if (peaks[i * P + p] > peak[p]) peak[p] = peaks[i * P + p], best = bests[i * P + p];
      if (p < rows) tokens[p] = best;
    }
#pragma omp for
    for (int64_t i = 0; i < count; ++i)
      for (int64_t p = 0; p < P; p += kLanes) {
        const __m512 top = load16(peak + p);
        __m512 part[4] = {};
        for (int64_t v = i * kBlock; v < std::min(vocab, (i + 1) * kBlock); ++v)
          part[v % 4] = _mm512_add_ps(part[v % 4], exp16(_mm512_sub_ps(score(v, p), top)));
        const __m512 sum = _mm512_add_ps(_mm512_add_ps(part[0], part[1]), _mm512_add_ps(part[2], part[3]));
        _mm512_storeu_pd(sums + i * P + p, _mm512_cvtps_pd(_mm512_castps512_ps256(sum)));
        _mm512_storeu_pd(sums + i * P + p + 8, _mm512_cvtps_pd(_mm512_extractf32x8_ps(sum, 1)));
      }
#pragma omp for schedule(dynamic, 1)
    for (int64_t b = 0; b < rows; ++b) {
      double total = 0;
      for (int64_t i = 0; i < count; ++i) total += sums[i * P + b];
      if (greedy == nullptr || !greedy[b]) {
        const double target = uniforms[b] * total;
        double before = 0;
        int64_t block = 0, last = 0;  // `last`: of those with mass; rounding must not lead past it
        double before_last = 0;
        bool found = false;
        for (int64_t i = 0; i < count && !found; ++i) {
          const double sum = sums[i * P + b];
          if (sum > 0) last = i, before_last = before;
          found = before + sum > target;
          if (!found) before += sum;
          block = i;
        }
        if (!found) block = last, before = before_last;
        const int64_t lane = b % kLanes, p = b - lane;
        const __m512 top = load16(peak + p);
        alignas(64) float e[kLanes];
        int64_t token = block * kBlock;
        for (int64_t v = block * kBlock; v < std::min(vocab, (block + 1) * kBlock); ++v) {
          _mm512_store_ps(e, exp16(_mm512_sub_ps(score(v, p), top)));
          if (e[lane] > 0) token = v;
          before += e[lane];
          if (before > target) break;
        }
        tokens[b] = token;
      }
      const float chosen = logits[tokens[b] * P + b] / (temperature == nullptr ? 1.f : temperature[b]);
      log_probs[b] = static_cast<float>(static_cast<double>(chosen) - static_cast<double>(peak[b]) - std::log(total));
    }
  }
}
