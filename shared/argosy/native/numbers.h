// Registers of 16 float32 numbers, loads and stores of float32 and bfloat16, and e^x, over AVX-512. Included by the
// sources that argosy.native compiles.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kLanes = 16;  // floats in a register
constexpr int64_t kLine = 64;   // bytes in a cache line

using bf16 = uint16_t;

inline __m512 load16(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 load16(const bf16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// Bits of the nearest bfloat16 (ties to even) in the upper half of each lane. NaN stays NaN unless its payload is all
// ones, which no operation here makes.
inline __m512i rounded_bf16(__m512 x) {
  const __m512i u = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}

inline void store16(float* p, __m512 x) { _mm512_storeu_ps(p, x); }
inline void store16(bf16* p, __m512 x) {
#ifdef __AVX512BF16__
  const __m256i half = (__m256i)_mm512_cvtneps_pbh(x);
#else
  const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bf16(x), 16));
#endif
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
  const uint32_t u = static_cast<uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

// e^x to about 1 ulp: x = n·ln 2 + r, a polynomial in r (Cephes' expf coefficients). -inf gives exactly 0, NaN NaN.
inline __m512 exp16(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-110.f), x);  // NaN in the second operand is returned
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 y = _mm512_set1_ps(1.9875691500e-4f);
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
  y = _mm512_fmadd_ps(_mm512_mul_ps(r, r), y, _mm512_add_ps(r, _mm512_set1_ps(1.f)));
  return _mm512_scalef_ps(y, n);
}

}  // namespace
