// What the native handlers share: vectors, and how work is divided.
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
constexpr int PANEL = 64;  // columns, the most that a tile has
// Multiplications, as if of six rows, that are worth the wake of a thread.
constexpr long LEAST_SHARED = 3 << 16;

typedef float Floats __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));

static inline Floats load(const float* p) { return *(const Floats*)p; }
static inline void store(float* p, Floats x) { *(Floats*)p = x; }

// Returns x y + z. Spelled out, for a compiler fuses it in one loop and not in
// the next, and rows would differ.
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

// Has the compiler load x once, where it would at every use.
static inline void keep(Floats& x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
}

// Returns exp(x) for x <= 0, to 2 units in the last place; 0 where that is no
// normal number. Source of the constants: Cephes, expf.
static inline Floats exponential(Floats x) {
  constexpr float TERMS[] = {1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
                             4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1};
  const Floats whole = 3.f * (1 << 22) - Floats{};  // sums have no fraction
  const Floats shifted = multiply_add(1.44269504f, x, whole);
  const Floats n = shifted - whole;  // x / log 2, rounded
  const Floats r =
      multiply_add(2.12194440e-4f, n, multiply_add(-0.693359375f, n, x));
  Floats y = {};
  for (float term : TERMS) y = multiply_add(y, r, term - Floats{});
  y = multiply_add(y, r * r, r) + 1.f;
  // The low bits of `shifted` are n, which becomes the exponent.
  const Floats power = (Floats)(((Words)shifted << 23) + (127u << 23));
  return x < -87.3f ? Floats{} : y * power;
}

// The most vectors side by side such that sums, weights and an input of M rows
// fit the registers.
constexpr int vectors(int M) {
  int n = PANEL / LANES;
  while (n > 1 && M * n + (M > 1 ? n : 1) + 1 > REGISTERS) n /= 2;
  return n;
}

// Returns how many threads so many weights times rows are worth.
static inline long worth(ffi::ThreadPool& pool, long weights, long rows) {
  const long shares = weights * std::max(rows, 6l) / 6 / LEAST_SHARED;
  return std::clamp<long>(shares, 1, std::max<long>(pool.num_threads(), 1));
}
