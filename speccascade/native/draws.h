// Sums of distributions and draws from them, which the native handlers share.
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

// Returns the sum of `vector(i)` over N vectors from i on, added in pairs: a
// number is rounded log N times, and not N times.
template <int N, class Vector>
static inline Floats sum_in_pairs(long i, const Vector& vector) {
  if constexpr (N == 1)
    return vector(i);
  else
    return sum_in_pairs<N / 2>(i, vector) +
           sum_in_pairs<N / 2>(i + N / 2 * LANES, vector);
}

// Returns the sum of the lanes, added in pairs as numbers of type T.
template <class T>
static inline T sum_of_lanes(Floats x) {
  T sums[LANES];
  for (int i = 0; i < LANES; i++) sums[i] = x[i];
  for (int n = LANES / 2; n; n /= 2)
    for (int i = 0; i < n; i++) sums[i] += sums[i + n];
  return sums[0];
}

// A sum of many vectors. Beside a weight of 1 a float has no room for weights
// below 6e-8, of which a vocabulary may have a few hundred thousand: what an
// addition rounds away is added up by itself (Knuth's TwoSum).
class Sum {
 public:
  void operator+=(Floats x) {
    const Floats next = sums + x, added = next - sums;
    lost += (sums - (next - added)) + (x - added);
    sums = next;
  }
  double total() const {
    return sum_of_lanes<double>(sums) + sum_of_lanes<double>(lost);
  }

 private:
  Floats sums = {}, lost = {};
};

// Returns the sum of `vector(i)`, LANES numbers from i on, over n numbers;
// `rest(i)` has those after the last whole vector, with zeros after them.
template <class Vector, class Rest>
static inline double sum_of(long n, const Vector& vector, const Rest& rest) {
  Sum sum;
  long i = 0;
  for (; i + 8 * LANES <= n; i += 8 * LANES) sum += sum_in_pairs<8>(i, vector);
  for (; i + LANES <= n; i += LANES) sum += vector(i);
  sum += rest(i);
  return sum.total();
}

static inline double sum_of(const float* x, long n) {
  return sum_of(
      n, [=](long i) { return load(x + i); },
      [=](long i) { return load_some(x + i, n - i, 0); });
}

// Returns the sum of the lesser ones of x and y / r, numbers by number.
static inline double sum_of_lesser(const float* x, const float* y, float r,
                                   long n) {
  const auto lesser = [=](Floats x, Floats y) {
    y /= r;
    return x < y ? x : y;
  };
  return sum_of(
      n, [=](long i) { return lesser(load(x + i), load(y + i)); },
      [=](long i) {
        return lesser(load_some(x + i, n - i, 0), load_some(y + i, n - i, 0));
      });
}

// Writes the sum of each block of n numbers to sums; vectors as in `sum_of`.
template <class Vector, class Rest>
static inline void sum_blocks(long n, double* sums, const Vector& vector,
                              const Rest& rest) {
  long i = 0;
  for (; i + BLOCK <= n; i += BLOCK)
    *sums++ = sum_of_lanes<float>(sum_in_pairs<BLOCK / LANES>(i, vector));
  if (i == n) return;
  *sums = sum_of(
      n - i, [&](long j) { return vector(i + j); },
      [&](long j) { return rest(i + j); });
}

// Returns room for the sums of the blocks of n weights, which a thread keeps
// from call to call.
static inline std::vector<double>& block_sums(long n) {
  static thread_local std::vector<double> sums;
  sums.resize((n + BLOCK - 1) / BLOCK);
  return sums;
}

// Returns the first index with mass whose cumulative sum exceeds u times the
// total, else the last index with mass. `sums` are those of blocks.
static inline int32_t draw(const float* weights, const double* sums, float u,
                           long n) {
  double total = 0, sum = 0;
  for (long i = 0; i < n; i += BLOCK) total += sums[i / BLOCK];
  const double goal = u * total;
  // Whole blocks are passed while the sum does not exceed the goal. The block
  // in which it does is gone through weight by weight. Those sums round
  // otherwise than the block's, so that none may exceed the goal: then the next
  // block continues.
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
  std::vector<double>& sums = block_sums(n);
  sum_blocks(
      n, sums.data(), [=](long i) { return load(weights + i); },
      [=](long i) { return load_some(weights + i, n - i, 0); });
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
