// Sums of laws and draws from them, which the native handlers share.
#pragma once

#include <vector>

#include "shared.h"

constexpr long BLOCK = 16 * LANES;  // weights that a draw may pass in one step

// Returns a vector of n < LANES numbers, and `rest` in the lanes after them.
static inline Floats load_some(const float* p, long n, float rest) {
  Floats x = rest - Floats{};
  for (long i = 0; i < n; i++) x[i] = p[i];
  return x;
}

static inline float sum_of(Floats x) {
  float sum = 0;
  for (int i = 0; i < LANES; i++) sum += x[i];
  return sum;
}

static inline float sum_of(const float* x, long n) {
  Floats sums = {};
  long i = 0;
  for (; i + LANES <= n; i += LANES) sums += load(x + i);
  return sum_of(sums + load_some(x + i, n - i, 0));
}

// Returns room for the sums of the blocks of n weights, which a thread keeps
// from call to call.
static inline std::vector<float>& block_sums(long n) {
  static thread_local std::vector<float> sums;
  sums.resize((n + BLOCK - 1) / BLOCK);
  return sums;
}

// Returns the first index with mass whose cumulative sum exceeds u times the
// total, else the last index with mass. `sums` are those of blocks.
static inline int32_t draw(const float* weights, const float* sums, float u,
                           long n) {
  double total = 0, sum = 0;
  for (long i = 0; i < n; i += BLOCK) total += sums[i / BLOCK];
  const double goal = u * total;
  // Whole blocks are passed while the sum does not exceed the goal. The block
  // in which it does is gone through weight by weight. Those sums round
  // otherwise than the block's, so that none may exceed the goal: then the next
  // block goes on.
  for (long i = 0; i < n; i += BLOCK) {
    const double after = sum + sums[i / BLOCK];
    if (after <= goal) {
      sum = after;
      continue;
    }
    for (long j = i; j < std::min(i + BLOCK, n); j++) {
      if (!(weights[j] > 0)) continue;
      sum += weights[j];
      if (sum > goal) return j;
    }
  }
  // By rounding no sum exceeded the goal.
  while (--n > 0 && !(weights[n] > 0)) continue;
  return n;
}

static inline int32_t draw(const float* weights, float u, long n) {
  std::vector<float>& sums = block_sums(n);
  for (long i = 0; i < n; i += BLOCK)
    sums[i / BLOCK] = sum_of(weights + i, std::min(BLOCK, n - i));
  return draw(weights, sums.data(), u, n);
}

// Returns the first index of a number, else the last index.
static inline long first_of(const float* x, float number, long n) {
  long i = 0;
  // Whole blocks are passed while they do not have the number.
  for (; i + BLOCK <= n; i += BLOCK) {
    Words is_equal = {};
    for (long j = i; j < i + BLOCK; j += LANES)
      is_equal |= (Words)(load(x + j) == number - Floats{});
    uint32_t any = 0;
    for (int lane = 0; lane < LANES; lane++) any |= is_equal[lane];
    if (any) break;
  }
  while (i < n - 1 && x[i] != number) i++;
  return i;
}
