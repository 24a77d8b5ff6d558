// What the native handlers share: vectors of numbers, and how many threads work
// is worth.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "stages.h"

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int LANES = 8, REGISTERS = 16;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif
constexpr int PANEL = 64;  // columns of a panel; a tile has no more
// So many multiplications, counted for six rows, are worth waking a thread for.
constexpr long LEAST_SHARED = 3 << 16;

typedef float Floats __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));

static inline Floats load(const float* p) { return *(const Floats*)p; }
static inline void store(float* p, Floats x) { *(Floats*)p = x; }

// Returns x y + z, rounded once. A compiler would fuse the two in one loop and
// not in the next, and a row's result would depend on the rows beside it.
static inline Floats multiply_add(Floats x, Floats y, Floats z) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(x, y, z);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(x, y, z);
#elif defined(__aarch64__)
  return (Floats)vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
#else
  return x * y + z;
#endif
}
static inline Floats multiply_add(float x, Floats y, Floats z) {
  return multiply_add(x - Floats{}, y, z);
}

// Makes the compiler hold x in a register: it would load x again at every use.
static inline void keep(Floats& x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
}

// Returns exp(x) for x <= 0, to 2 units in the last place; 0 where the result
// is not a normal number. Source of the constants: Cephes, expf.
//
// exp(x) = 2 ** n exp(r), where n is x / log 2 rounded to a whole number, and r
// = x - n log 2 is small enough for a polynomial. For x = -1: n = -1, r =
// -0.307.
static inline Floats exponential(Floats x) {
  constexpr float TERMS[] = {1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
                             4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1};
  // From 2 ** 23 to 2 ** 24 floats are whole numbers, so that a sum in the
  // middle is rounded to one.
  const Floats whole = 3.f * (1 << 22) - Floats{};
  const Floats shifted = multiply_add(1.44269504f, x, whole);
  const Floats n = shifted - whole;
  // log 2 in two parts: the product of n and the first has no rounding.
  const Floats r =
      multiply_add(2.12194440e-4f, n, multiply_add(-0.693359375f, n, x));
  Floats y = {};
  for (float term : TERMS) y = multiply_add(y, r, term - Floats{});
  y = multiply_add(y, r * r, r) + 1.f;
  // The low bits of `shifted` are n. Moved up by 23 places they are an
  // exponent.
  const Floats power = (Floats)(((Words)shifted << 23) + (127u << 23));
  return x < -87.3f ? Floats{} : y * power;
}

// Returns how many vectors a tile of M rows has side by side: the most whose
// sums, weights and one input fit the registers. Of 32 registers with 16 lanes
// six rows take 6 * 4 sums, 4 weights and an input: 29.
constexpr int vectors(int M) {
  int n = PANEL / LANES;
  while (n > 1 && M * n + (M > 1 ? n : 1) + 1 > REGISTERS) n /= 2;
  return n;
}

// Returns how many threads a product of so many weights and rows is worth. Few
// rows cost what six do: the time goes into reading the weights.
static inline long worth(ffi::ThreadPool& pool, long weights, long rows) {
  const long shares = weights * std::max(rows, 6l) / 6 / LEAST_SHARED;
  return std::clamp<long>(shares, 1, std::max<long>(pool.num_threads(), 1));
}
