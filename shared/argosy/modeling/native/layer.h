// A Llama-like layer over packed rows, forward and backward, in chunks of rows: beside its input and output, only what
// attention reads (q, k, v) and gives exists for all rows at once.
//
//   n = norm(x); mixed = attention(n·Wqkvᵀ); y = x + mixed·Woᵀ; z = y + (silu(norm(y)·Wgᵀ) ⊙ norm(y)·Wuᵀ)·Wdᵀ
//
// x, y, z and all sums are float32; what goes into products is bfloat16. Weights are float32 and packed at each use.
#pragma once
#include "attention.h"

struct ArgosyLayerWeights {
  const float *qkv[3], *out, *gate, *up, *down, *norms[2];
  // Where gradients are added; null: not wanted.
  float *of_qkv[3], *of_out, *of_gate, *of_up, *of_down, *of_norms[2];
};

struct ArgosyLayer {
  int64_t rows, hidden, inner, threads;
  float eps;
  ArgosyAttention attention;
  ArgosyLayerWeights w;
  // Kept from forward to backward, [rows padded to 32][…] each. Null: computed again (`projected`, `mixed`, `opened`)
  // or not wanted (forward only).
  bf16 *projected, *mixed, *opened;  // [S·D], [heads·D], [2·inner]: gate and up
  float* normalizers;                // [heads]
  uint8_t* workspace;                // argosy_layer_workspace bytes
};

namespace {

constexpr int64_t kChunk = 2048;  // rows, at most

struct LayerScratch {
  bf16 *packed, *packed_back;                  // of weights
  bf16 *projected, *mixed, *of_mixed, *of_projected;  // of all rows
  bf16 *normed, *opened, *of_opened, *active, *slope, *across, *across_opened, *panels;  // of a chunk
  float *middle, *of_normed, *normalizers;
  float* inverse;
  bf16* attention;
  int64_t bytes;
};

inline LayerScratch divide_layer(const ArgosyLayer& l, bool backward) {
  const ArgosyAttention& a = l.attention;
  const int64_t E = l.hidden, I = l.inner, H = a.heads * a.size, S = H + 2 * a.kv_heads * a.size;
  const int64_t N = padded(l.rows), C = std::min(N, kChunk);
  LayerScratch s;
  uint8_t* base = l.workspace;
  int64_t used = 0;
  auto bytes = [&](int64_t count) {
    uint8_t* at = base + used;
    used += (count + 4095) / 4096 * 4096 + 64;  // not all at the same place of a page
    return at;
  };
  auto halves = [&](int64_t count) { return reinterpret_cast<bf16*>(bytes(count * 2)); };
  auto floats = [&](int64_t count) { return reinterpret_cast<float*>(bytes(count * 4)); };
  const int64_t widest = std::max({S, E, H});
  s.packed = halves(std::max({3 * I, 2 * I + H, S}) * E);
  s.projected = l.projected != nullptr ? l.projected : halves(N * S);
  s.mixed = l.mixed != nullptr ? l.mixed : halves(N * H);
  s.normalizers = l.normalizers != nullptr ? l.normalizers : floats(N * a.heads);
  s.normed = halves(C * E);
  s.inverse = floats(C);
  s.middle = floats(C * E);
  if (!backward) s.active = halves(C * I);
  s.attention = halves(l.threads * attention_numbers(a));
  if (backward) {
    s.packed_back = halves(std::max(3 * I + H, S) * E);
    s.of_mixed = halves(N * H);
    s.of_projected = halves(N * S);
    s.opened = l.opened != nullptr ? nullptr : halves(C * 2 * I);
    s.of_opened = halves(C * 2 * I);
    s.slope = halves(C * E);
    s.across = halves(C * widest);
    s.across_opened = halves(C * 2 * I);
    s.panels = halves(C * std::max({I, E, H}));
    s.of_normed = floats(C * E);
  }
  s.bytes = used;
  return s;
}

// RMS norm (Zhang & Sennrich 2019, arXiv:1910.07467) of `count` rows as a left operand; rows up to `most` are 0.
// inverse [count].
inline void norm_rows(const float* x, int64_t count, int64_t most, int64_t E, const float* weight, float eps, bf16* out,
                      float* inverse) {
#pragma omp for schedule(static)
  for (int64_t r = 0; r < most; ++r) {
    if (r >= count) {
      for (int64_t e = 0; e < E; e += kBlock) _mm512_storeu_si512(out + at(r, e, E), _mm512_setzero_si512());
      continue;
    }
    __m512 sum = _mm512_setzero_ps(), other = sum;
    for (int64_t e = 0; e < E; e += kBlock) {
      const __m512 v = load16(x + r * E + e), w = load16(x + r * E + e + kLanes);
      sum = _mm512_fmadd_ps(v, v, sum);
      other = _mm512_fmadd_ps(w, w, other);
    }
    inverse[r] = 1.f / std::sqrt(_mm512_reduce_add_ps(_mm512_add_ps(sum, other)) / static_cast<float>(E) + eps);
    const __m512 factor = _mm512_set1_ps(inverse[r]);
    for (int64_t e = 0; e < E; e += kLanes)
      store16(out + at(r, e, E), _mm512_mul_ps(load16(weight + e), _mm512_mul_ps(load16(x + r * E + e), factor)));
  }
}

// of_x = of_sum + r·(w·g - x·r²·mean(w·g·x)) with g = of_normed; of_weight += Σ g·x·r. of_x may be of_sum.
inline void norm_rows_backward(const float* of_normed, const float* x, const float* inverse, int64_t count, int64_t E,
                               const float* weight, const float* of_sum, float* of_x, float* of_weight) {
#pragma omp for schedule(static)
  for (int64_t r = 0; r < count; ++r) {
    const float *g = of_normed + r * E, *line = x + r * E;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t e = 0; e < E; e += kLanes)
      sum = _mm512_fmadd_ps(_mm512_mul_ps(load16(g + e), load16(weight + e)), load16(line + e), sum);
    const float i = inverse[r];
    const __m512 factor = _mm512_set1_ps(i);
    const __m512 shrink = _mm512_set1_ps(i * i * i * _mm512_reduce_add_ps(sum) / static_cast<float>(E));
    for (int64_t e = 0; e < E; e += kLanes) {
      __m512 v = _mm512_mul_ps(_mm512_mul_ps(load16(g + e), load16(weight + e)), factor);
      v = _mm512_fnmadd_ps(load16(line + e), shrink, v);
      store16(of_x + r * E + e, _mm512_add_ps(load16(of_sum + r * E + e), v));
    }
  }
  if (of_weight == nullptr) return;
#pragma omp for schedule(static)
  for (int64_t e = 0; e < E; e += kLanes) {
    __m512 sum = load16(of_weight + e);
    for (int64_t r = 0; r < count; ++r)
      sum = _mm512_fmadd_ps(_mm512_mul_ps(load16(of_normed + r * E + e), load16(x + r * E + e)),
                            _mm512_set1_ps(inverse[r]), sum);
    store16(of_weight + e, sum);
  }
}

inline void round_rows(const float* x, int64_t count, int64_t most, int64_t E, bf16* out) {
#pragma omp for schedule(static)
  for (int64_t r = 0; r < most; ++r)
    for (int64_t e = 0; e < E; e += kLanes)
      store16(out + at(r, e, E), r < count ? load16(x + r * E + e) : _mm512_setzero_ps());
}

inline __m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.f);
  return _mm512_div_ps(one, _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

struct Chunk {
  int64_t from, rows, most;  // most: padded to 32
};

template <typename F>
inline void chunks(int64_t rows, F body) {
  const int64_t size = padded(pieces(rows, pieces(rows, kChunk)));
  for (int64_t from = 0; from < rows; from += size) {
    const int64_t count = std::min(size, rows - from);
    body(Chunk{from, count, padded(count)});
  }
}

// gradient [N][K] += slopesᵀ · inputs over M rows; `parts` gradients below one another, of `heights` rows each. The
// operands are s.across [N][M] and s.panels.
inline void add_packed_gradient(int64_t M, int64_t K, int parts, float* const* gradients, const int64_t* heights,
                                const LayerScratch& s) {
  int64_t N = 0;
  for (int i = 0; i < parts; ++i) N += heights[i];
  product(s.across, s.panels, N, K, M, [&](int64_t n, int64_t k, const float* out) {
    int part = 0;
    while (n >= heights[part]) n -= heights[part++];
    if (gradients[part] != nullptr) add_block(out, gradients[part] + n * K + k, K);
  });
}
inline void add_weight_gradient(const bf16* slopes, const bf16* inputs, int64_t M, int64_t K, int parts,
                                float* const* gradients, const int64_t* heights, const LayerScratch& s) {
  int64_t N = 0;
  for (int i = 0; i < parts; ++i) N += heights[i];
  transpose(slopes, M, N, s.across);
  pack_activations(inputs, M, K, s.panels);
  add_packed_gradient(M, K, parts, gradients, heights, s);
}

inline void project_all(const ArgosyLayer& l, const float* x, const LayerScratch& s) {
  const ArgosyAttention& a = l.attention;
  const int64_t E = l.hidden, D = a.size, heights[3] = {a.heads * D, a.kv_heads * D, a.kv_heads * D};
  const int64_t S = heights[0] + 2 * heights[1];
  for (int64_t i = 0, at = 0; i < 3; at += heights[i++] * E) pack_weight(l.w.qkv[i], heights[i], E, s.packed + at);
  chunks(l.rows, [&](const Chunk& c) {
    norm_rows(x + c.from * E, c.rows, c.most, E, l.w.norms[0], l.eps, s.normed, s.inverse);
    product(s.normed, s.packed, c.most, S, E, [&](int64_t m, int64_t n, const float* out) {
      write_block(out, s.projected + (c.from + m) * S + n, S);
    });
  });
}

inline void clear_padding(bf16* rows, int64_t count, int64_t width) {
#pragma omp single
  for (int64_t r = count; r < padded(count); ++r)
    for (int64_t k = 0; k < width; k += kBlock) _mm512_storeu_si512(rows + at(r, k, width), _mm512_setzero_si512());
}

inline void attend_all(const ArgosyLayer& l, const float* x, const LayerScratch& s) {
  const ArgosyAttention& a = l.attention;
  project_all(l, x, s);
  clear_padding(s.mixed, l.rows, a.heads * a.size);
  attend(a, {s.projected, (a.heads + 2 * a.kv_heads) * a.size}, s.mixed, s.normalizers, s.attention);
}

// middle = x + mixed · Woᵀ of a chunk; the weight is packed.
inline void add_mixed(const ArgosyLayer& l, const Chunk& c, const float* x, const bf16* packed, float* middle,
                      const LayerScratch& s) {
  const int64_t E = l.hidden, H = l.attention.heads * l.attention.size;
  product(s.mixed + c.from * H, packed, c.most, E, H, [&](int64_t m, int64_t n, const float* out) {
    for (int64_t r = m; r < std::min(m + kBlock, c.rows); ++r)
      for (int64_t e = n; e < n + kBlock; e += kLanes)
        store16(middle + r * E + e, _mm512_add_ps(load16(x + (c.from + r) * E + e),
                                                  load16(out + (r - m) * kBlock + e - n)));
  });
}

// Blocks of gate and up lie one after the other, in pairs: [M/32][I/32][2][32][32].
inline void keep_opened(const float* gate, const float* up, bf16* to) {
  write_block(gate, to, kBlock);
  write_block(up, to + kBlock * kBlock, kBlock);
}

inline void run_layer(const ArgosyLayer& l, const float* x, float* z) {
  const LayerScratch s = divide_layer(l, false);
  const int64_t E = l.hidden, I = l.inner, H = l.attention.heads * l.attention.size;
  attend_all(l, x, s);
  pack_weight(l.w.out, E, H, s.packed);
  chunks(l.rows, [&](const Chunk& c) { add_mixed(l, c, x, s.packed, z + c.from * E, s); });
  pack_weight(l.w.gate, I, E, s.packed);
  pack_weight(l.w.up, I, E, s.packed + I * E);
  pack_weight(l.w.down, E, I, s.packed + 2 * I * E);
  chunks(l.rows, [&](const Chunk& c) {
    float* middle = z + c.from * E;
    norm_rows(middle, c.rows, c.most, E, l.w.norms[1], l.eps, s.normed, s.inverse);
    bf16* kept = l.opened != nullptr ? l.opened + c.from * 2 * I : nullptr;
    product_pair(s.normed, s.packed, s.packed + I * E, c.most, I, E,
                 [&](int64_t m, int64_t n, const float* gate, const float* up) {
                   if (kept != nullptr) keep_opened(gate, up, kept + (m * I + n * kBlock) * 2);
                   for (int64_t r = 0; r < kBlock; ++r)
                     for (int64_t i = 0; i < kBlock; i += kLanes) {
                       const __m512 g = load16(gate + r * kBlock + i);
                       store16(s.active + at(m + r, n + i, I),
                               _mm512_mul_ps(_mm512_mul_ps(g, sigmoid(g)), load16(up + r * kBlock + i)));
                     }
                 });
    product(s.active, s.packed + 2 * I * E, c.most, E, I, [&](int64_t m, int64_t n, const float* out) {
      add_block(out, middle + m * E + n, E, std::min(kBlock, c.rows - m));
    });
  });
}

// From the slope by silu(gate) ⊙ up, of a block: the gradients of gate and up, as blocks and as blocks of the transpose;
// and silu(gate) ⊙ up as a piece of a panel.
struct Closed {
  bf16 *of_gate, *of_up, *gate_across, *up_across, *panel;
};

inline void close_gate(const float* slope, const bf16* opened, const Closed& to) {
  const __m512 one = _mm512_set1_ps(1.f);
  alignas(64) bf16 active[kBlock * kBlock];
  for (int64_t i = 0; i < kBlock * kBlock; i += kLanes) {
    const __m512 g = load16(opened + i), u = load16(opened + kBlock * kBlock + i);
    const __m512 d = load16(slope + i), open = sigmoid(g), silu = _mm512_mul_ps(g, open);
    store16(active + i, _mm512_mul_ps(silu, u));
    store16(to.of_up + i, _mm512_mul_ps(d, silu));
    const __m512 bend = _mm512_fmadd_ps(silu, _mm512_sub_ps(one, open), open);  // σ(1 + g(1 - σ))
    store16(to.of_gate + i, _mm512_mul_ps(_mm512_mul_ps(d, u), bend));
  }
  transpose_strip(to.of_gate, kBlock, kBlock, to.gate_across, kBlock);
  transpose_strip(to.of_up, kBlock, kBlock, to.up_across, kBlock);
  pack_rows(active, kBlock, kBlock, to.panel, kBlock);
}

// of_x from of_z; gradients of weights are added to theirs. of_x is another place than of_z.
inline void run_layer_backward(const ArgosyLayer& l, const float* x, const float* of_z, float* of_x) {
  const LayerScratch s = divide_layer(l, true);
  const ArgosyAttention& a = l.attention;
  const int64_t E = l.hidden, I = l.inner, H = a.heads * a.size, KV = a.kv_heads * a.size, S = H + 2 * KV;
  if (l.projected == nullptr) attend_all(l, x, s);
  const bool again = l.opened == nullptr;
  bf16 *out_back = s.packed_back, *down_back = out_back + H * E, *gate_up_back = down_back + I * E;
  if (again) {
    pack_weight(l.w.gate, I, E, s.packed);
    pack_weight(l.w.up, I, E, s.packed + I * E);
  }
  pack_transposed_weight(l.w.out, E, H, out_back, E, 0);
  pack_transposed_weight(l.w.down, E, I, down_back, E, 0);
  pack_transposed_weight(l.w.gate, I, E, gate_up_back, 2 * I, 0);
  pack_transposed_weight(l.w.up, I, E, gate_up_back, 2 * I, I);
  bf16* out_forward = s.packed + 2 * I * E;
  pack_weight(l.w.out, E, H, out_forward);
  chunks(l.rows, [&](const Chunk& c) {
    add_mixed(l, c, x, out_forward, s.middle, s);
    norm_rows(s.middle, c.rows, c.most, E, l.w.norms[1], l.eps, s.normed, s.inverse);
    bf16* opened = again ? s.opened : l.opened + c.from * 2 * I;
    if (again)
      product_pair(s.normed, s.packed, s.packed + I * E, c.most, I, E,
                   [&](int64_t m, int64_t n, const float* gate, const float* up) {
                     keep_opened(gate, up, opened + (m * I + n * kBlock) * 2);
                   });
    round_rows(of_z + c.from * E, c.rows, c.most, E, s.slope);
    product(s.slope, down_back, c.most, I, E, [&](int64_t m, int64_t n, const float* out) {
      close_gate(out, opened + (m * I + n * kBlock) * 2,
                 {s.of_opened + at(m, n, 2 * I), s.of_opened + at(m, I + n, 2 * I), s.across_opened + at(n, m, c.most),
                  s.across_opened + at(I + n, m, c.most), s.panels + n * c.most + m * kBlock});
    });
    transpose(s.slope, c.most, E, s.across);
    add_packed_gradient(c.most, I, 1, &l.w.of_down, &E, s);
    product(s.of_opened, gate_up_back, c.most, E, 2 * I, [&](int64_t m, int64_t n, const float* out) {
      write_block(out, s.of_normed + m * E + n, E);
    });
    float* const of_gate_up[2] = {l.w.of_gate, l.w.of_up};
    const int64_t heights[2] = {I, I};
    pack_activations(s.normed, c.most, E, s.panels);
    LayerScratch of_inner = s;
    of_inner.across = s.across_opened;
    add_packed_gradient(c.most, E, 2, of_gate_up, heights, of_inner);
    norm_rows_backward(s.of_normed, s.middle, s.inverse, c.rows, E, l.w.norms[1], of_z + c.from * E, of_x + c.from * E,
                       l.w.of_norms[1]);
    round_rows(of_x + c.from * E, c.rows, c.most, E, s.slope);
    product(s.slope, out_back, c.most, H, E, [&](int64_t m, int64_t n, const float* out) {
      write_block(out, s.of_mixed + at(c.from + m, n, H), kBlock);
    });
    add_weight_gradient(s.slope, s.mixed + c.from * H, c.most, H, 1, &l.w.of_out, &E, s);
  });
  clear_padding(s.of_projected, l.rows, S);
  attend_backward(a, {s.projected, S}, s.mixed, s.of_mixed, s.normalizers, s.of_projected, s.attention);
  const int64_t heights[3] = {H, KV, KV};
  for (int64_t i = 0, at = 0; i < 3; at += heights[i++])
    pack_transposed_weight(l.w.qkv[i], heights[i], E, s.packed_back, S, at);
  chunks(l.rows, [&](const Chunk& c) {
    const bf16* slopes = s.of_projected + c.from * S;
    norm_rows(x + c.from * E, c.rows, c.most, E, l.w.norms[0], l.eps, s.normed, s.inverse);
    product(slopes, s.packed_back, c.most, E, S, [&](int64_t m, int64_t n, const float* out) {
      write_block(out, s.of_normed + m * E + n, E);
    });
    add_weight_gradient(slopes, s.normed, c.most, E, 3, l.w.of_qkv, heights, s);
    float* of_rows = of_x + c.from * E;
    norm_rows_backward(s.of_normed, x + c.from * E, s.inverse, c.rows, E, l.w.norms[0], of_rows, of_rows,
                       l.w.of_norms[0]);
  });
}

}  // namespace
