// Rotary causal attention over packed sequences (Dao 2023, arXiv:2307.08691: weights are computed again backward).
//
// A segment is a prompt, or the rows of one answer, whose prompt is another segment; a group is a prompt with its answers.
// One thread computes a group's share of one key-value head: gradients of shared keys add up in a fixed order.
// Letters: T keys of a group with each segment padded to 32 ("zones"), D head size, G query heads of a key-value head.
//
// Scores forward are as good as in float32: numbers are split into two of bfloat16, x = high + low, and products are
// high·high + low·high + high·low, as one of three times the depth.
#pragma once
#include "gemm.h"

struct ArgosySegment {
  int64_t start, length;   // its rows
  int64_t prefix;          // number of its prompt's segment; -1: it is one
};

struct ArgosyAttention {
  int64_t heads, kv_heads, size;
  float scaling;
  const float *cos, *sin;           // [N][D]
  const ArgosySegment* segments;
  const int64_t* groups;            // [count + 1]: first segment of each; a prompt comes first, then its answers
  int64_t group_count, longest;     // of all groups: padded rows
};

namespace {

struct Zone {
  int64_t start, length, offset;            // rows, and where they begin among the group's keys
  int64_t prefix_length, prefix_offset;     // of the prompt's zone; 0: none
};

struct AttentionScratch {
  bf16 *keys, *values, *values_across, *keys_down;      // [T][3D] panels of keys, [T][D] of the others
  bf16 *query, *slope, *high, *low, *across, *other;    // of a query block
  float *scores, *slopes, *of_key, *of_value;
};

inline int64_t attention_numbers(const ArgosyAttention& a) {  // of bfloat16, a thread
  const int64_t D = a.size, G = a.heads / a.kv_heads, T = a.longest;
  return T * D * 6 + kBlock * 5 * D + 3 * G * kBlock * D + 2 * kBlock * T + 2 * G * kBlock * T +
         2 * (2 * kBlock * T + 2 * T * D) + 64 * 16;
}

inline AttentionScratch divide_attention(const ArgosyAttention& a, bf16* base) {
  const int64_t D = a.size, G = a.heads / a.kv_heads, T = a.longest;
  AttentionScratch s;
  auto take = [&](int64_t count) {
    bf16* at = base;
    base += (count + 31) / 32 * 32;
    return at;
  };
  s.keys = take(T * 3 * D);
  s.values = take(T * D);
  s.values_across = take(T * D);
  s.keys_down = take(T * D);
  s.query = take(kBlock * 3 * D + G * kBlock * D);  // and its panels, of all heads
  s.slope = take(kBlock * 2 * D + 2 * G * kBlock * D);
  s.high = take(kBlock * T);
  s.low = take(kBlock * T);
  s.across = take(G * kBlock * T);
  s.other = take(G * kBlock * T);
  s.scores = reinterpret_cast<float*>(take(2 * kBlock * T));
  s.slopes = reinterpret_cast<float*>(take(2 * kBlock * T));
  s.of_key = reinterpret_cast<float*>(take(2 * T * D));
  s.of_value = reinterpret_cast<float*>(take(2 * T * D));
  return s;
}

// One head of a row, turned by its position (Su 2021: pairs are (d, d + D/2)), times `scale`.
inline void turn(const bf16* x, const float* cos, const float* sin, int64_t D, float scale, float* out) {
  const __m512 factor = _mm512_set1_ps(scale);
  for (int64_t d = 0; d < D / 2; d += kLanes) {
    const __m512 a = load16(x + d), b = load16(x + d + D / 2);
    const __m512 first = _mm512_fnmadd_ps(b, load16(sin + d), _mm512_mul_ps(a, load16(cos + d)));
    const __m512 second = _mm512_fmadd_ps(a, load16(sin + d + D / 2), _mm512_mul_ps(b, load16(cos + d + D / 2)));
    store16(out + d, _mm512_mul_ps(first, factor));
    store16(out + d + D / 2, _mm512_mul_ps(second, factor));
  }
}
// The transposed map, rounded, into columns from `column` on of a row of a left operand.
inline void turn_back(const float* x, const float* cos, const float* sin, int64_t D, float scale, bf16* to, int64_t row,
                      int64_t column, int64_t width) {
  const __m512 factor = _mm512_set1_ps(scale);
  for (int64_t d = 0; d < D / 2; d += kLanes) {
    const __m512 a = load16(x + d), b = load16(x + d + D / 2);
    const __m512 first = _mm512_fmadd_ps(b, load16(sin + d + D / 2), _mm512_mul_ps(a, load16(cos + d)));
    const __m512 second = _mm512_fnmadd_ps(a, load16(sin + d), _mm512_mul_ps(b, load16(cos + d + D / 2)));
    store16(to + at(row, column + d, width), _mm512_mul_ps(first, factor));
    store16(to + at(row, column + d + D / 2, width), _mm512_mul_ps(second, factor));
  }
}

// [high | low | high] (queries) or [high | high | low] (keys) of D numbers.
inline void split(const float* x, int64_t D, bool is_key, bf16* out) {
  for (int64_t d = 0; d < D; d += kLanes) {
    const __m512 v = load16(x + d);
    store16(out + d, v);
    const __m512 rest = _mm512_sub_ps(v, load16(out + d));
    store16(out + D + d, is_key ? v : rest);
    store16(out + 2 * D + d, is_key ? rest : v);
  }
}

// A group's zones, at most `room` of them at a time are not needed: the answers are walked one by one.
inline Zone zone_of(const ArgosyAttention& a, int64_t group, int64_t segment, int64_t offset) {
  const ArgosySegment& s = a.segments[segment];
  Zone zone{s.start, s.length, offset, 0, 0};
  if (s.prefix >= 0) zone.prefix_length = a.segments[a.groups[group]].length;
  return zone;
}

// Row-major q, k, v of all rows: [N][(heads + 2·kv_heads)·D].
struct Projections {
  const bf16* rows;
  int64_t step;
};

// Keys and values of a zone into their panels; what is only needed backward if `both`.
inline void pack_zone(const ArgosyAttention& a, const Projections& p, int64_t h, const Zone& z,
                      const AttentionScratch& s, bool both) {
  const int64_t D = a.size, T = a.longest;
  alignas(64) bf16 lines[kBlock * 3 * 256];
  alignas(64) float turned[256];
  for (int64_t first = 0; first < z.length; first += kBlock) {
    const int64_t count = std::min(kBlock, z.length - first), place = z.offset + first;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = z.start + first + r;
      turn(p.rows + row * p.step + (a.heads + h) * D, a.cos + row * D, a.sin + row * D, D, 1.f, turned);
      split(turned, D, true, lines + r * 3 * D);
    }
    pack_columns(lines, 3 * D, 3 * D, s.keys + place * 3 * D, count);
    const bf16* values = p.rows + (z.start + first) * p.step + (a.heads + a.kv_heads + h) * D;
    for (int64_t d = 0; d < D; d += kBlock) pack_rows(values + d, p.step, kBlock, s.values + d * T + place * kBlock, count);
    if (!both) continue;
    pack_columns(values, p.step, D, s.values_across + place * D, count);
    for (int64_t d = 0; d < D; d += kBlock)
      pack_rows(lines + d, 3 * D, kBlock, s.keys_down + d * T + place * kBlock, count);
  }
}

// A query block's scores [32][C]: over its prompt's zone and its own up to its last row; what it can't see is -inf.
// Returns C.
inline int64_t score(const ArgosyAttention& a, const Zone& z, int64_t first, const bf16* query, const bf16* keys,
                     float* scores) {
  const int64_t D = a.size, before = padded(z.prefix_length), C = before + first + kBlock;
  for (int64_t c = 0; c < C; c += kBlock) {
    const int64_t key = c < before ? c : z.offset + c - before;
    start_block();
    add_rows_to_block(query, 3 * D, keys + key * 3 * D, 3 * D);
    store_block(scores + c, C);
  }
  for (int64_t r = 0; r < kBlock; ++r) {
    for (int64_t c = z.prefix_length; c < before; ++c) scores[r * C + c] = -INFINITY;
    for (int64_t c = before + first + r + 1; c < C; ++c) scores[r * C + c] = -INFINITY;
  }
  return C;
}

// out [32][D] = left [32][C] · the panels' rows that a query block sees.
inline void mix(const ArgosyAttention& a, const Zone& z, int64_t C, const bf16* left, const bf16* more,
                const bf16* panels, float* out) {
  const int64_t D = a.size, T = a.longest, before = padded(z.prefix_length);
  for (int64_t d = 0; d < D; d += kBlock) {
    start_block();
    for (const bf16* part : {left, more}) {
      if (part == nullptr) continue;
      add_rows_to_block(part, C, panels + d * T, before);
      add_rows_to_block(part + before, C, panels + d * T + z.offset * kBlock, C - before);
    }
    store_block(out + d, D);
  }
}

inline void load_query(const ArgosyAttention& a, const Projections& p, int64_t head, const Zone& z, int64_t first,
                       bf16* query) {
  const int64_t D = a.size;
  alignas(64) float turned[256];
  for (int64_t r = 0; r < kBlock; ++r) {
    if (first + r >= z.length) {
      std::memset(query + r * 3 * D, 0, 3 * D * sizeof(bf16));
      continue;
    }
    const int64_t row = z.start + first + r;
    turn(p.rows + row * p.step + head * D, a.cos + row * D, a.sin + row * D, D, a.scaling, turned);
    split(turned, D, false, query + r * 3 * D);
  }
}

// Walks over a group: zone(z) for each of its segments, in order.
template <typename F>
inline int64_t walk(const ArgosyAttention& a, int64_t group, F zone) {
  int64_t offset = 0;
  for (int64_t i = a.groups[group]; i < a.groups[group + 1]; ++i) {
    const Zone z = zone_of(a, group, i, offset);
    zone(z);
    offset += padded(z.length);
  }
  return offset;
}

// mixed: a left operand [N][heads·D]; normalizers [N][heads].
inline void attend(const ArgosyAttention& a, const Projections& p, bf16* mixed, float* normalizers, bf16* scratch) {
  const int64_t D = a.size, G = a.heads / a.kv_heads, per_thread = attention_numbers(a);
  const AttentionScratch s = divide_attention(a, scratch + omp_get_thread_num() * per_thread);
#pragma omp for schedule(dynamic, 1)
  for (int64_t unit = 0; unit < a.group_count * a.kv_heads; ++unit) {
    const int64_t group = unit / a.kv_heads, h = unit % a.kv_heads;
    walk(a, group, [&](const Zone& z) { pack_zone(a, p, h, z, s, false); });
    walk(a, group, [&](const Zone& z) {
      for (int64_t first = 0; first < z.length; first += kBlock)
        for (int64_t head = h * G; head < (h + 1) * G; ++head) {
          load_query(a, p, head, z, first, s.query);
          const int64_t C = score(a, z, first, s.query, s.keys, s.scores);
          alignas(64) float total[kBlock], out[kBlock * 256];
          for (int64_t r = 0; r < kBlock; ++r) {
            float* line = s.scores + r * C;
            __m512 top = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
            for (int64_t c = 0; c < C; c += kLanes) top = _mm512_max_ps(top, load16(line + c));
            const float peak = _mm512_reduce_max_ps(top);
            for (int64_t c = 0; c < C; c += kLanes) {
              const __m512 e = exp16(_mm512_sub_ps(load16(line + c), _mm512_set1_ps(peak)));
              sum = _mm512_add_ps(sum, e);
              store16(s.high + r * C + c, e);
              store16(s.low + r * C + c, _mm512_sub_ps(e, load16(s.high + r * C + c)));
            }
            total[r] = _mm512_reduce_add_ps(sum);
            if (first + r < z.length) normalizers[(z.start + first + r) * a.heads + head] = peak + std::log(total[r]);
          }
          mix(a, z, C, s.high, s.low, s.values, out);
          for (int64_t r = 0; r < std::min(kBlock, z.length - first); ++r)
            for (int64_t d = 0; d < D; d += kLanes)
              store16(mixed + at(z.start + first + r, head * D + d, a.heads * D),
                      _mm512_div_ps(load16(out + r * D + d), _mm512_set1_ps(total[r])));
        }
    });
  }
}

// Weights and their slopes of a query block, in bfloat16. `slope` is by the mixed values [32][D] (0 beyond the rows).
inline void weigh(const ArgosyAttention& a, const Zone& z, int64_t first, int64_t head, int64_t C, const bf16* mixed,
                  const float* normalizers, const bf16* slope, const AttentionScratch& s) {
  const int64_t D = a.size;
  for (int64_t r = 0; r < kBlock; ++r) {
    bf16 *weights = s.high + r * C, *slopes = s.low + r * C;
    if (first + r >= z.length) {
      std::memset(weights, 0, C * sizeof(bf16));
      std::memset(slopes, 0, C * sizeof(bf16));
      continue;
    }
    const int64_t row = z.start + first + r;
    __m512 dot = _mm512_setzero_ps();
    for (int64_t d = 0; d < D; d += kLanes) dot = _mm512_fmadd_ps(load16(slope + r * D + d), load16(mixed + at(row, head * D + d, a.heads * D)), dot);
    const __m512 shift = _mm512_set1_ps(_mm512_reduce_add_ps(dot)), lse = _mm512_set1_ps(normalizers[row * a.heads + head]);
    for (int64_t c = 0; c < C; c += kLanes) {
      const __m512 e = exp16(_mm512_sub_ps(load16(s.scores + r * C + c), lse));
      store16(weights + c, e);
      store16(slopes + c, _mm512_mul_ps(e, _mm512_sub_ps(load16(s.slopes + r * C + c), shift)));
    }
  }
}

// Gradients by the projections, into `of_rows`, from those by the mixed values, all left operands.
inline void attend_backward(const ArgosyAttention& a, const Projections& p, const bf16* mixed, const bf16* of_mixed,
                            const float* normalizers, bf16* of_rows, bf16* scratch) {
  const int64_t D = a.size, G = a.heads / a.kv_heads, deep = G * kBlock;
  const AttentionScratch s = divide_attention(a, scratch + omp_get_thread_num() * attention_numbers(a));
  bf16 *query_panels = s.query + kBlock * 3 * D, *slope_panels = s.slope + 2 * kBlock * D;
#pragma omp for schedule(dynamic, 1)
  for (int64_t unit = 0; unit < a.group_count * a.kv_heads; ++unit) {
    const int64_t group = unit / a.kv_heads, h = unit % a.kv_heads;
    const int64_t rows = walk(a, group, [&](const Zone& z) { pack_zone(a, p, h, z, s, true); });
    std::memset(s.of_key, 0, rows * D * sizeof(float));
    std::memset(s.of_value, 0, rows * D * sizeof(float));
    walk(a, group, [&](const Zone& z) {
      const int64_t before = padded(z.prefix_length);
      for (int64_t first = 0; first < z.length; first += kBlock) {
        int64_t C = 0;
        for (int64_t g = 0; g < G; ++g) {
          const int64_t head = h * G + g, count = std::min(kBlock, z.length - first);
          load_query(a, p, head, z, first, s.query);
          C = score(a, z, first, s.query, s.keys, s.scores);
          for (int64_t r = 0; r < kBlock; ++r)
            for (int64_t d = 0; d < D; d += kBlock)
              _mm512_storeu_si512(s.slope + r * D + d,
                                  r < count ? words(of_mixed + at(z.start + first + r, head * D + d, a.heads * D))
                                            : _mm512_setzero_si512());
          for (int64_t c = 0; c < C; c += kBlock) {
            start_block();
            add_rows_to_block(s.slope, D, s.values_across + (c < before ? c : z.offset + c - before) * D, D);
            store_block(s.slopes + c, C);
          }
          weigh(a, z, first, head, C, mixed, normalizers, s.slope, s);
          alignas(64) float out[kBlock * 256];
          mix(a, z, C, s.low, nullptr, s.keys_down, out);
          for (int64_t r = 0; r < count; ++r) {
            const int64_t row = z.start + first + r;
            turn_back(out + r * D, a.cos + row * D, a.sin + row * D, D, a.scaling, of_rows, row, head * D, p.step);
          }
          transpose_strip(s.high, C, C, s.across + g * kBlock, deep);
          transpose_strip(s.low, C, C, s.other + g * kBlock, deep);
          for (int64_t d = 0; d < D; d += kBlock) {
            pack_rows(s.query + d, 3 * D, kBlock, query_panels + d * deep + g * kBlock * kBlock, kBlock);
            pack_rows(s.slope + d, D, kBlock, slope_panels + d * deep + g * kBlock * kBlock, kBlock);
          }
        }
        for (int64_t c = 0; c < C; c += kBlock) {
          const int64_t key = (c < before ? c : z.offset + c - before) * D;
          alignas(64) float out[kBlock * kBlock];
          for (int64_t d = 0; d < D; d += kBlock) {
            start_block();
            add_rows_to_block(s.across + c * deep, deep, slope_panels + d * deep, deep);
            store_block(out, kBlock);
            add_block(out, s.of_value + key + d, D);
            start_block();
            add_rows_to_block(s.other + c * deep, deep, query_panels + d * deep, deep);
            store_block(out, kBlock);
            add_block(out, s.of_key + key + d, D);
          }
        }
      }
    });
    walk(a, group, [&](const Zone& z) {
      for (int64_t r = 0; r < z.length; ++r) {
        const int64_t row = z.start + r;
        const int64_t column = (a.heads + h) * D;
        turn_back(s.of_key + (z.offset + r) * D, a.cos + row * D, a.sin + row * D, D, 1.f, of_rows, row, column, p.step);
        for (int64_t d = 0; d < D; d += kLanes)
          store16(of_rows + at(row, column + a.kv_heads * D + d, p.step), load16(s.of_value + (z.offset + r) * D + d));
      }
    });
  }
}

}  // namespace
