// What the native handlers share: vectors, and stages of work for threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

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

// Stages of units of work. Units of a stage run at once, in any order; a stage
// begins when that before it has ended. Each thread has a share of the units,
// and then helps with those of others: all is done even if no other thread
// ever comes, and one that comes late joins in.
class Stages {
  struct alignas(64) Counter {
    std::atomic<long> count{0};
  };
  struct Stage {
    long num_units;
    std::function<void(long)> unit;
    Counter done;

    Stage(long num_units, std::function<void(long)> unit)
        : num_units(num_units), unit(std::move(unit)) {}
  };
  static constexpr int SPINS = 1 << 12;  // before a thread gives way

  const long threads;
  std::deque<Stage> stages;
  std::unique_ptr<Counter[]> taken;  // of each stage and thread

  void work(long thread) {
    Counter* shares = taken.get();
    for (Stage& stage : stages) {
      long done = 0;
      for (long t = thread; t < thread + threads; t++) {
        const long owner = t % threads, units = stage.num_units;
        const long first = owner * units / threads;
        const long size = (owner + 1) * units / threads - first;
        auto& count = shares[owner].count;
        for (long i; count < size && (i = count++) < size; done++)
          stage.unit(first + i);
      }
      stage.done.count += done;
      for (int spin = 0; stage.done.count < stage.num_units; spin++)
        spin < SPINS ? pause() : std::this_thread::yield();
      shares += threads;
    }
  }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

 public:
  explicit Stages(long threads) : threads(threads) {}

  long num_threads() const { return threads; }

  void add(long num_units, std::function<void(long)> unit) {
    stages.emplace_back(num_units, std::move(unit));
  }

  // Returns when all units of all stages have run. A thread of the pool that
  // begins only then touches nothing but the stages.
  static void run(ffi::ThreadPool& pool, std::shared_ptr<Stages> all) {
    all->taken.reset(new Counter[all->stages.size() * all->threads]);
    for (long i = 1; i < all->threads; i++)
      pool.Schedule([all, i] { all->work(i); });
    all->work(0);
  }
};
