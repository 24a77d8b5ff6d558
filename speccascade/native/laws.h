// How a row of logits becomes a distribution, and the token that is drawn from
// it.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "draws.h"

constexpr long COST = 10;  // of an element, counted in multiplications

struct LawMaker {
  float temperature = 1;
  bool greedy = false;  // one-hot at the first of the largest logits
  long V = 0;

  // Writes the distribution of logits x [V] to y [V], and a token that u draws;
  // without u the token is 0. Returns whether the logits have a distribution.
  bool operator()(const float* x, const float* u, float* y,
                  int32_t& token) const {
    float top;
    const bool is_law = find_top(x, top);
    token = 0;
    if (greedy) {
      token = first_of(x, top, V);
      std::fill(y, y + V, 0);
      y[token] = 1;
    } else if (!is_law) {
      std::fill(y, y + V, NAN);
    } else {
      std::vector<double>& sums = block_sums(V);
      softmax(x, y, top, sums.data());
      if (u) token = draw(y, sums.data(), *u, V);
    }
    return is_law;
  }

 private:
  // Finds the largest logit. Returns whether there is a law: no NaN, no +inf,
  // and a finite number.
  bool find_top(const float* x, float& top) const {
    // Several vectors side by side do not wait for each other's results.
    constexpr int SIDE = 4;
    Floats tops[SIDE];
    Words wrong[SIDE] = {};
    for (Floats& t : tops) t = -INFINITY - Floats{};
    const auto look = [&](int k, Floats x) {
      wrong[k] |= (Words) ~(x < INFINITY - Floats{});  // NaN, too
      tops[k] = x > tops[k] ? x : tops[k];
    };
    long i = 0;
    for (; i + SIDE * LANES <= V; i += SIDE * LANES)
      for (int k = 0; k < SIDE; k++) look(k, load(x + i + k * LANES));
    for (; i + LANES <= V; i += LANES) look(0, load(x + i));
    look(0, load_some(x + i, V - i, -INFINITY));
    top = -INFINITY;
    bool is_wrong = false;
    for (int k = 0; k < SIDE; k++)
      for (int lane = 0; lane < LANES; lane++) {
        top = std::max(top, tops[k][lane]);
        is_wrong |= wrong[k][lane] != 0;
      }
    return !is_wrong && top > -INFINITY;
  }

  // Writes exp((x - top) / temperature), divided by the sum over V, to y [V],
  // and the sums of its blocks.
  void softmax(const float* x, float* y, float top, double* sums) const {
    // A division by 1 changes nothing.
    const auto plain = [=](Floats x) { return x - top; };
    const auto heated = [=, t = temperature](Floats x) {
      return (x - top) / t;
    };
    const float scale =
        1 / (temperature == 1 ? weigh(x, y, plain) : weigh(x, y, heated));
    const auto vector = [=](long i) {
      const Floats share = load(y + i) * scale;
      store(y + i, share);
      return share;
    };
    const auto rest = [=](long i) {
      for (long j = i; j < V; j++) y[j] *= scale;
      return load_some(y + i, V - i, 0);
    };
    sum_blocks(V, sums, vector, rest);
  }

  // Writes exp(exponent(x)) to y [V], and returns the sum.
  template <class Exponent>
  double weigh(const float* x, float* y, const Exponent& exponent) const {
    const auto vector = [=](long i) {
      const Floats weight = exponential(exponent(load(x + i)));
      store(y + i, weight);
      return weight;
    };
    const auto rest = [=](long i) {
      const Floats weight =
          exponential(exponent(load_some(x + i, V - i, -INFINITY)));
      for (long j = i; j < V; j++) y[j] = weight[j - i];
      return weight;
    };
    return sum_of(V, vector, rest);
  }
};

// Reduces a distribution [n] to its smallest set of likeliest tokens that holds
// `top_p`, of equal ones the lower ids, and divides it by its sum.
//
// XLA's threads take numbers below FLT_MIN for 0, which the empty set holds; a
// `top_p` below it stands for the likeliest token, as FLT_MIN does.
//
// Floats that are not negative order as their bits do. The least probability of
// the set is found byte by byte, from the highest: after the first round `left`
// has the probabilities with the threshold's highest byte, and `above` is the
// mass of those with a higher one.
static inline void keep_likeliest(float* law, float top_p, long n) {
  const auto bits_of = [](float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
  };
  std::vector<float> left(law, law + n);
  // By rounding a whole distribution may hold less than top_p.
  const float total = std::accumulate(law, law + n, 0.);
  const float goal = std::min(std::max(top_p, FLT_MIN), total);
  const auto is_held = [=](double mass) { return (float)mass >= goal; };
  uint32_t threshold = 0;
  double above = 0;  // the mass of what is more likely than the threshold
  for (int shift = 24; shift >= 0; shift -= 8) {
    double mass[256] = {};
    const auto byte = [=](float x) { return bits_of(x) >> shift & 255; };
    for (float x : left) mass[byte(x)] += x;
    // From the likeliest down, until the set is complete.
    uint32_t last = 255;
    for (; last && !is_held(above + mass[last]); last--) above += mass[last];
    threshold |= last << shift;
    const auto is_other = [=](float x) { return byte(x) != last; };
    left.erase(std::remove_if(left.begin(), left.end(), is_other), left.end());
  }
  for (long i = 0; i < n; i++) {
    const uint32_t bits = bits_of(law[i]);
    if (bits > threshold) continue;
    // Of tokens that are as likely as the threshold, so many as are still
    // wanted.
    const bool is_kept = bits == threshold && !is_held(above);
    above += is_kept ? law[i] : 0;
    law[i] = is_kept ? law[i] : 0;
  }
  const float sum = sum_of(law, n);
  for (long i = 0; i < n; i++) law[i] /= sum;
}
