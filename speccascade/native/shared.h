// What the native handlers share: vectors, and stages of work for threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

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

// Stages of units of work. Units of a stage run at once, in any order; a stage
// begins when that before it has ended. Each thread has a share of the units,
// and then helps with those of others: all is done even if no other thread
// ever comes, and one that comes late joins in.
class Stages {
 public:
  struct Stage {
    long num_units;
    std::function<void(long, long)> run;  // units i to i + n - 1
    long group = 1;  // units i to i + group - 1, i a multiple, are run as one
    // Fetches what a unit begins with, while others end the stages before.
    std::function<void(long)> fetch = nullptr;
  };

  explicit Stages(long threads) : threads(threads) {}

  void add(Stage stage) { stages.push_back(std::move(stage)); }

  // Returns when all units of all stages have run. A thread of the pool that
  // begins only then touches nothing but the stages.
  static void run(ffi::ThreadPool& pool, std::shared_ptr<Stages> all) {
    const size_t num_stages = all->stages.size();
    all->done.reset(new Counter[num_stages]);
    all->taken.reset(new Counter[num_stages * all->threads]);
    for (long i = 1; i < all->threads; i++)
      pool.Schedule([all, i] { all->work(i); });
    all->work(0);
  }

 private:
  struct alignas(64) Counter {
    std::atomic<long> count{0};
  };
  static constexpr int SPINS = 1 << 12;  // before a thread gives way

  const long threads;
  std::vector<Stage> stages;
  std::unique_ptr<Counter[]> done, taken;  // of each stage; and each thread

  // Returns the first unit of a thread's share.
  long first(const Stage& stage, long thread) const {
    return thread * stage.num_units / threads;
  }

  void work(long thread) {
    for (size_t s = 0; s < stages.size(); s++) {
      const Stage& stage = stages[s];
      long mine = 0;
      for (long t = thread; t < thread + threads; t++) {
        const long owner = t % threads, begin = first(stage, owner);
        mine += share(stage, begin, first(stage, owner + 1) - begin,
                      taken[s * threads + owner].count);
        const bool waits = 0 < mine && mine < stage.num_units;
        if (t == thread && waits) fetch(s + 1, thread);
      }
      auto& all = done[s].count;
      all += mine;
      for (int spin = 0; all < stage.num_units; spin++)
        spin < SPINS ? pause() : std::this_thread::yield();
    }
  }

  // Runs what is left of a share, and returns how many units that were.
  long share(const Stage& stage, long begin, long size,
             std::atomic<long>& taken) {
    long mine = 0, i = taken;
    while (i < size) {
      const long rest = stage.group - (begin + i) % stage.group;
      const long n = std::min(rest, size - i);
      if (!taken.compare_exchange_weak(i, i + n)) continue;
      stage.run(begin + i, n);
      mine += n, i = taken;
    }
    return mine;
  }

  // Fetches what this thread begins the next stage that reads weights with.
  void fetch(size_t s, long thread) {
    while (s < stages.size() && !stages[s].fetch) s++;
    if (s < stages.size()) stages[s].fetch(first(stages[s], thread));
  }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
};
