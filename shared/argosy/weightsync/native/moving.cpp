// Copies bytes and computes their crc32 (zlib's) in the same pass, so that they come from memory once: a copy is bound by
// memory, and the checksum costs next to nothing beside it. Compiled on the machine that runs it (argosy.native).
//
// The checksum is folded in the manner of Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction" (Intel, 2009), over four registers of 64 bytes: each step multiplies the remainder so far by x^(8 * 256)
// modulo the polynomial and adds the next 256 bytes. What is left at the end has the crc of all that went into it.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr uint32_t kPolynomial = 0xEDB88320u;  // zlib's, bit-reversed: the coefficient of x^0 is bit 31
constexpr int64_t kLine = 64;                  // bytes of a register, and of a cache line
constexpr int kRegisters = 4;
constexpr int64_t kStep = kLine * kRegisters;
constexpr int64_t kAhead = 2048;  // bytes: the hardware's own prefetch stops at the end of each page

inline uint32_t times_x(uint32_t remainder) { return (remainder >> 1) ^ (kPolynomial & (0u - (remainder & 1))); }

struct Constants {
  uint32_t of_byte[256];  // of a remainder's lowest byte, by its value
  uint64_t low, high;     // x^(8 * kStep + 32) and x^(8 * kStep - 32) modulo the polynomial, in 33 bits

  Constants() {
    for (uint32_t value = 0; value < 256; ++value) {
      of_byte[value] = value;
      for (int bit = 0; bit < 8; ++bit) of_byte[value] = times_x(of_byte[value]);
    }
    low = power(8 * kStep + 32);
    high = power(8 * kStep - 32);
  }

  static uint64_t power(int64_t exponent) {
    uint32_t remainder = 0x80000000u;  // x^0
    while (exponent-- > 0) remainder = times_x(remainder);
    return static_cast<uint64_t>(remainder) << 1;
  }
};

const Constants constants;

uint32_t add_bytes(uint32_t remainder, const uint8_t* bytes, int64_t count) {
  while (count-- > 0) remainder = (remainder >> 8) ^ constants.of_byte[(remainder ^ *bytes++) & 0xFF];
  return remainder;
}

enum class Copy { kNone, kPlain, kPastCache };

template <Copy copy>
inline void put(uint8_t* target, __m512i line) {
  if constexpr (copy == Copy::kPlain) _mm512_storeu_si512(target, line);
  if constexpr (copy == Copy::kPastCache) _mm512_stream_si512(reinterpret_cast<__m512i*>(target), line);
}

// The crc32 of `count` bytes, of the very registers that are stored.
template <Copy copy>
uint32_t move(const uint8_t* source, uint8_t* target, int64_t count) {
  uint32_t remainder = ~0u;
  if (count >= 2 * kStep) {
    const __m512i by = _mm512_broadcast_i32x4(
        _mm_set_epi64x(static_cast<int64_t>(constants.high), static_cast<int64_t>(constants.low)));
    __m512i folded[kRegisters];
    for (int i = 0; i < kRegisters; ++i) {
      folded[i] = _mm512_loadu_si512(source + i * kLine);
      put<copy>(target + i * kLine, folded[i]);
    }
    folded[0] = _mm512_xor_si512(folded[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(remainder))));
    int64_t done = kStep;
    for (; done + kStep <= count; done += kStep) {
      for (int i = 0; i < kRegisters; ++i) {
        const int64_t here = done + i * kLine;
        _mm_prefetch(reinterpret_cast<const char*>(source + here + kAhead), _MM_HINT_T0);
        const __m512i line = _mm512_loadu_si512(source + here);
        put<copy>(target + here, line);
        const __m512i low = _mm512_clmulepi64_epi128(folded[i], by, 0x00);
        const __m512i high = _mm512_clmulepi64_epi128(folded[i], by, 0x11);
        folded[i] = _mm512_ternarylogic_epi64(low, high, line, 0x96);  // low ^ high ^ line
      }
    }
    alignas(kLine) uint8_t left[kStep];
    for (int i = 0; i < kRegisters; ++i) _mm512_store_si512(left + i * kLine, folded[i]);
    remainder = add_bytes(0, left, kStep);
    source += done;
    target += done;
    count -= done;
  }
  // From where they were put: the source may be another process's, and change.
  if constexpr (copy == Copy::kNone) return ~add_bytes(remainder, source, count);
  std::memcpy(target, source, static_cast<size_t>(count));
  return ~add_bytes(remainder, target, count);
}

template <Copy copy>
void move_all(const uint8_t* source, uint8_t* target, const int64_t* starts, const int64_t* sizes, int64_t count,
              uint32_t* checksums) {
  for (int64_t i = 0; i < count; ++i) checksums[i] = move<copy>(source + starts[i], target + starts[i], sizes[i]);
}

}  // namespace

extern "C" {

// crc32 of each place, source[starts[i] … starts[i] + sizes[i]].
void argosy_check(const uint8_t* source, const int64_t* starts, const int64_t* sizes, int64_t count,
                  uint32_t* checksums) {
  move_all<Copy::kNone>(source, nullptr, starts, sizes, count, checksums);
}

// Copies each place to the same place of the target; crc32 of what was written there. Past the cache where all of them
// begin on its lines there: reading a line only to overwrite it would cost half as much again.
void argosy_copy(const uint8_t* source, uint8_t* target, const int64_t* starts, const int64_t* sizes, int64_t count,
                 uint32_t* checksums) {
  uintptr_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits |= reinterpret_cast<uintptr_t>(target + starts[i]);
  if (bits % kLine != 0) return move_all<Copy::kPlain>(source, target, starts, sizes, count, checksums);
  move_all<Copy::kPastCache>(source, target, starts, sizes, count, checksums);
  _mm_sfence();  // stores past the cache are weakly ordered
}

}  // extern "C"
