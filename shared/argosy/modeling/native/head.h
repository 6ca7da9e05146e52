// Output head and softmax statistics of given tokens, without ever holding [tokens, vocabulary]; see
// argosy/modeling/log_probs.py for the formulas. Running sums are of 16 interleaved shares of the vocabulary (online
// softmax: Milakov & Gimelshein 2018, arXiv:1805.02867), joined at the end.
#pragma once
#include "layer.h"

struct ArgosyHead {
  int64_t rows, hidden, vocab, threads;
  float temperature;
  const float *states, *weight;  // [rows][hidden], [vocab][hidden]
  const int64_t* targets;
  float *log_probs, *normalizers, *entropies, *squares;  // [rows]; the last two null: not wanted
  const float *of_log_probs, *of_entropies;              // backward; the latter null: none
  float *of_states, *of_weight;                          // written; added to; null: not wanted
  uint8_t* workspace;
};

namespace {

constexpr int64_t kHeadRows = 4096, kHeadTile = 512;  // rows and vocabulary entries at one time
constexpr int64_t kSums = 4 * kLanes;                 // of a row: largest, Σe, Σe·(z - largest), Σe²

struct HeadScratch {
  bf16 *states, *packed, *packed_back, *slopes, *across, *panels;
  float *sums, *chosen;
  int64_t bytes;
};

inline HeadScratch divide_head(const ArgosyHead& h, bool backward) {
  const int64_t C = std::min(padded(h.rows), kHeadRows), E = h.hidden;
  HeadScratch s;
  int64_t used = 0;
  auto bytes = [&](int64_t count) {
    uint8_t* at = h.workspace + used;
    used += (count + 4095) / 4096 * 4096 + 64;
    return at;
  };
  auto halves = [&](int64_t count) { return reinterpret_cast<bf16*>(bytes(count * 2)); };
  s.states = halves(C * E);
  s.packed = halves(kHeadTile * E);
  if (backward) {
    s.packed_back = halves(kHeadTile * E);
    s.slopes = halves(C * kHeadTile);
    s.across = halves(C * kHeadTile);
    s.panels = halves(C * E);
  } else {
    s.sums = reinterpret_cast<float*>(bytes(C * kSums * 4));
    s.chosen = reinterpret_cast<float*>(bytes(C * 4));
  }
  s.bytes = used;
  return s;
}

// Packs `count` rows of the weight, up to a full tile with zeros.
inline void pack_tile(const ArgosyHead& h, int64_t first, int64_t count, bf16* packed) {
  const int64_t E = h.hidden;
#pragma omp for schedule(dynamic, 1)
  for (int64_t n = 0; n < padded(count); n += kBlock)
    pack_columns(h.weight + (first + n) * E, E, E, packed + n * E, std::min(kBlock, count - n));
}

// A row's 32 logits z into its running sums; `columns` of them count.
inline void add_logits(const float* z, int64_t columns, bool want_entropy, bool want_squares, float scale, float* sums) {
  const __m512 least = _mm512_set1_ps(-1e30f), factor = _mm512_set1_ps(scale);
  const uint32_t there = columns >= kBlock ? 0xffffffffu : (1u << columns) - 1;
  const __m512 a = _mm512_mask_mul_ps(least, there & 0xffff, load16(z), factor);
  const __m512 b = _mm512_mask_mul_ps(least, there >> 16, load16(z + kLanes), factor);
  __m512 top = load16(sums), total = load16(sums + kLanes);
  const __m512 now = _mm512_max_ps(top, _mm512_max_ps(a, b));
  if (_mm512_cmp_ps_mask(now, top, _CMP_GT_OQ)) {
    const __m512 down = _mm512_sub_ps(top, now), shrink = exp16(down);
    if (want_entropy) {
      const __m512 weighted = _mm512_fmadd_ps(down, total, load16(sums + 2 * kLanes));
      // Before the first logit `down` is huge and the sums are 0.
      store16(sums + 2 * kLanes, _mm512_mul_ps(shrink, weighted));
    }
    if (want_squares)
      store16(sums + 3 * kLanes, _mm512_mul_ps(_mm512_mul_ps(shrink, shrink), load16(sums + 3 * kLanes)));
    total = _mm512_mul_ps(total, shrink);
    store16(sums, now);
  }
  const __m512 da = _mm512_sub_ps(a, now), db = _mm512_sub_ps(b, now), ea = exp16(da), eb = exp16(db);
  store16(sums + kLanes, _mm512_add_ps(total, _mm512_add_ps(ea, eb)));
  if (want_entropy)
    store16(sums + 2 * kLanes, _mm512_fmadd_ps(ea, da, _mm512_fmadd_ps(eb, db, load16(sums + 2 * kLanes))));
  if (want_squares)
    store16(sums + 3 * kLanes, _mm512_fmadd_ps(ea, ea, _mm512_fmadd_ps(eb, eb, load16(sums + 3 * kLanes))));
}

// Joins a row's 16 shares and writes its statistics.
inline void finish_row(const ArgosyHead& h, int64_t row, const float* sums, float chosen) {
  const __m512 top = load16(sums);
  const float peak = _mm512_reduce_max_ps(top);
  const __m512 down = _mm512_sub_ps(top, _mm512_set1_ps(peak)), shrink = exp16(down);
  const __m512 totals = load16(sums + kLanes);
  const float total = _mm512_reduce_add_ps(_mm512_mul_ps(shrink, totals)), log_total = std::log(total);
  h.normalizers[row] = log_total + peak;
  h.log_probs[row] = chosen - peak - log_total;
  if (h.entropies != nullptr) {
    const __m512 weighted = _mm512_fmadd_ps(down, totals, load16(sums + 2 * kLanes));
    h.entropies[row] = log_total - _mm512_reduce_add_ps(_mm512_mul_ps(shrink, weighted)) / total;
  }
  if (h.squares != nullptr)
    h.squares[row] =
        _mm512_reduce_add_ps(_mm512_mul_ps(_mm512_mul_ps(shrink, shrink), load16(sums + 3 * kLanes))) / (total * total);
}

inline void run_head(const ArgosyHead& h) {
  const HeadScratch s = divide_head(h, false);
  const int64_t E = h.hidden;
  const float scale = 1.f / h.temperature;
  const bool entropy = h.entropies != nullptr, squares = h.squares != nullptr;
  for (int64_t from = 0; from < h.rows; from += kHeadRows) {
    const int64_t count = std::min(kHeadRows, h.rows - from), most = padded(count);
    round_rows(h.states + from * E, count, most, E, s.states);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < most * kSums; ++i) s.sums[i] = i % kSums < kLanes ? -1e30f : 0.f;
    for (int64_t first = 0; first < h.vocab; first += kHeadTile) {
      const int64_t width = std::min(kHeadTile, h.vocab - first);
      pack_tile(h, first, width, s.packed);
#pragma omp for schedule(dynamic, 1)
      for (int64_t part = 0; part < pieces(most, 2 * kBlock); ++part) {
        alignas(64) float z[kBlock * kBlock];
        for (int64_t n = 0; n < width; n += kBlock)
          for (int64_t m = part * 2 * kBlock; m < std::min(most, (part + 1) * 2 * kBlock); m += kBlock) {
            block(s.states + m * E, s.packed + n * E, E, z);
            for (int64_t r = m; r < std::min(m + kBlock, count); ++r) {
              const float* line = z + (r - m) * kBlock;
              add_logits(line, width - n, entropy, squares, scale, s.sums + r * kSums);
              const int64_t place = h.targets[from + r] - first - n;
              if (place >= 0 && place < kBlock) s.chosen[r] = line[place] * scale;
            }
          }
      }
    }
#pragma omp for schedule(static)
    for (int64_t r = 0; r < count; ++r) finish_row(h, from + r, s.sums + r * kSums, s.chosen[r]);
  }
}

// Gradients by a block of logits, rounded.
inline void slope_block(const ArgosyHead& h, int64_t row, int64_t rows, int64_t column, const float* z, bf16* out) {
  const __m512 scale = _mm512_set1_ps(1.f / h.temperature);
  for (int64_t r = 0; r < kBlock; ++r) {
    bf16* line = out + r * kBlock;
    if (r >= rows) {
      std::memset(line, 0, kBlock * sizeof(bf16));
      continue;
    }
    const int64_t token = row + r, place = h.targets[token] - column;
    const __m512 lse = _mm512_set1_ps(h.normalizers[token]), grad = _mm512_set1_ps(h.of_log_probs[token]);
    for (int64_t c = 0; c < kBlock; c += kLanes) {
      const __m512 log_pi = _mm512_fmsub_ps(load16(z + r * kBlock + c), scale, lse), pi = exp16(log_pi);
      __m512 slope = grad;
      if (h.of_entropies != nullptr)
        slope = _mm512_fmadd_ps(_mm512_add_ps(log_pi, _mm512_set1_ps(h.entropies[token])),
                                _mm512_set1_ps(h.of_entropies[token]), slope);
      slope = _mm512_fnmadd_ps(slope, pi, _mm512_setzero_ps());
      if (place >= c && place < c + kLanes)
        slope = _mm512_mask_add_ps(slope, static_cast<__mmask16>(1u << (place - c)), slope, grad);
      store16(line + c, _mm512_mul_ps(slope, scale));
    }
    for (int64_t c = std::max<int64_t>(0, h.vocab - column); c < kBlock; ++c) line[c] = 0;
  }
}

inline void run_head_backward(const ArgosyHead& h) {
  const HeadScratch s = divide_head(h, true);
  const int64_t E = h.hidden;
  for (int64_t from = 0; from < h.rows; from += kHeadRows) {
    const int64_t count = std::min(kHeadRows, h.rows - from), most = padded(count);
    round_rows(h.states + from * E, count, most, E, s.states);
    if (h.of_weight != nullptr) pack_activations(s.states, most, E, s.panels);
    if (h.of_states != nullptr) {
#pragma omp for schedule(static)
      for (int64_t r = 0; r < count; ++r) std::memset(h.of_states + (from + r) * E, 0, E * sizeof(float));
    }
    for (int64_t first = 0; first < h.vocab; first += kHeadTile) {
      const int64_t width = std::min(kHeadTile, h.vocab - first), wide = padded(width);
      pack_tile(h, first, width, s.packed);
      product(s.states, s.packed, most, wide, E, [&](int64_t m, int64_t n, const float* z) {
        bf16* slopes = s.slopes + at(m, n, wide);
        slope_block(h, from + m, count - m, first + n, z, slopes);
        if (h.of_weight != nullptr) transpose_strip(slopes, kBlock, kBlock, s.across + at(n, m, most), kBlock);
      });
      if (h.of_states != nullptr) {
#pragma omp for schedule(dynamic, 1)
        for (int64_t e = 0; e < E; e += kBlock)
          pack_rows(h.weight + first * E + e, E, wide, s.packed_back + e * wide, width);
        product(s.slopes, s.packed_back, most, E, wide, [&](int64_t m, int64_t n, const float* out) {
          add_block(out, h.of_states + (from + m) * E + n, E, std::min(kBlock, count - m));
        });
      }
      if (h.of_weight != nullptr) {
        product(s.across, s.panels, wide, E, most, [&](int64_t n, int64_t e, const float* out) {
          add_block(out, h.of_weight + (first + n) * E + e, E, std::min(kBlock, width - n));
        });
      }
    }
  }
}

}  // namespace
