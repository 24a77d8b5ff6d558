// The law of a row of logits, and draws by inverting a cumulative sum; called
// by XLA. What `speccascade.decoding` computes in many small steps is one call
// here. A row's result, to the bit, does not depend on the rows beside it.
//
// Axes: R rows, B rows of a batch, N positions, V vocabulary.
#include <cfloat>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "shared.h"

constexpr long BLOCK = 16 * LANES;  // weights that a draw may pass in one step
constexpr long COST = 10;  // of an element of a law, counted in multiplications

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

static float sum_of(const float* x, long n) {
  Floats sums = {};
  long i = 0;
  for (; i + LANES <= n; i += LANES) sums += load(x + i);
  return sum_of(sums + load_some(x + i, n - i, 0));
}

// Returns the first index with mass whose cumulative sum exceeds u times the
// total, else the last index with mass.
static int32_t draw(const float* weights, float u, long n) {
  double total = 0, sum = 0;
  for (long i = 0; i < n; i += BLOCK)
    total += sum_of(weights + i, std::min(BLOCK, n - i));
  const double goal = u * total;
  // Whole blocks are passed while the sum does not exceed the goal. The block
  // in which it does is gone through weight by weight. Those sums round
  // otherwise than the block's, so that none may exceed the goal: then the next
  // block goes on.
  for (long i = 0; i < n; i += BLOCK) {
    const long end = std::min(i + BLOCK, n);
    const double after = sum + sum_of(weights + i, end - i);
    if (after <= goal) {
      sum = after;
      continue;
    }
    for (long j = i; j < end; j++) {
      if (!(weights[j] > 0)) continue;
      sum += weights[j];
      if (sum > goal) return j;
    }
  }
  // By rounding no sum exceeded the goal.
  while (--n > 0 && !(weights[n] > 0)) continue;
  return n;
}

struct Laws {
  const float* logits = nullptr;  // [R, V]
  // [R, N] uniforms, from the column that is used on; N = 0: no token is drawn.
  const float* u = nullptr;
  float temperature = 1;
  bool greedy = false;
  long V = 0, N = 0;
  float* law = nullptr;      // [R, V]
  int32_t* token = nullptr;  // [R]
  bool* is_law = nullptr;    // [R]

  void operator()(long row) const {
    const float* x = logits + row * V;
    float* y = law + row * V;
    // The largest logit of each lane, and the vector in which the lane first
    // had it: lane 2 of vector 3 is logit 3 * LANES + 2.
    Floats tops = -INFINITY - Floats{};
    Words first = {}, wrong = {};
    uint32_t n = 0;
    const auto look = [&](Floats x) {
      wrong |= (Words) ~(x < INFINITY - Floats{});  // NaN, too
      first = x > tops ? n++ + Words{} : first;
      tops = x > tops ? x : tops;
    };
    long i = 0;
    for (; i + LANES <= V; i += LANES) look(load(x + i));
    look(load_some(x + i, V - i, -INFINITY));
    float top = -INFINITY;
    bool is_wrong = false;
    for (int i = 0; i < LANES; i++) {
      top = std::max(top, tops[i]);
      is_wrong |= wrong[i] != 0;
    }
    is_law[row] = !is_wrong && top > -INFINITY;
    if (greedy) {
      // Of the lanes that have the top, the one that has it earliest.
      long best = V - 1;
      for (int i = 0; i < LANES; i++)
        if (tops[i] == top) best = std::min<long>(best, first[i] * LANES + i);
      std::fill(y, y + V, 0);
      y[best] = 1;
      token[row] = best;
    } else if (!is_law[row]) {
      std::fill(y, y + V, NAN);
      token[row] = 0;
    } else {
      softmax(x, y, top);
      token[row] = N ? draw(y, u[row * N], V) : 0;
    }
  }

  // Writes exp((x - top) / temperature), divided by the sum over V, to y [V].
  void softmax(const float* x, float* y, float top) const {
    const auto weigh = [&](Floats x) {
      return exponential((x - top) / temperature);
    };
    Floats sums = {};
    long i = 0;
    for (; i + LANES <= V; i += LANES) {
      const Floats weight = weigh(load(x + i));
      store(y + i, weight);
      sums += weight;
    }
    const Floats rest = weigh(load_some(x + i, V - i, -INFINITY));
    for (long j = i; j < V; j++) y[j] = rest[j - i];
    const float scale = 1 / sum_of(sums + rest);
    for (i = 0; i < V; i++) y[i] *= scale;
  }
};

static ffi::Error laws(ffi::ThreadPool pool, ffi::AnyBuffer logits,
                       ffi::BufferR0<ffi::F32> temperature, ffi::AnyBuffer u,
                       ffi::Result<ffi::AnyBuffer> law,
                       ffi::Result<ffi::AnyBuffer> token,
                       ffi::Result<ffi::AnyBuffer> is_law, int64_t column,
                       bool greedy) {
  const long V = logits.dimensions().back(), rows = token->element_count();
  Laws work;
  work.logits = logits.typed_data<float>();
  work.u = u.typed_data<float>() + column;
  work.temperature = temperature.typed_data()[0];
  work.greedy = greedy;
  work.V = V;
  work.N = u.dimensions().back();
  work.law = law->typed_data<float>();
  work.token = token->typed_data<int32_t>();
  work.is_law = is_law->typed_data<bool>();
  auto stages = Stages::create(worth(pool, COST * rows * V, 6));
  stages->add(rows, [work](long row, long) { work(row); });
  Stages::run(pool, stages);
  return ffi::Error::Success();
}

// Reduces a law [n] to its smallest set of likeliest tokens that holds `top_p`,
// of equal ones the lower ids, and divides it by its sum.
//
// XLA's threads take numbers below FLT_MIN for 0, which the empty set holds; a
// `top_p` below it stands for the likeliest token, as FLT_MIN does.
//
// Floats that are not negative order as their bits do. The least probability of
// the set is found byte by byte, from the highest: after the first round `left`
// has the probabilities with the threshold's highest byte, and `above` is the
// mass of those with a higher one.
static void keep_likeliest(float* law, float top_p, long n) {
  const auto bits_of = [](float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
  };
  std::vector<float> left(law, law + n);
  // By rounding a whole law may hold less than top_p.
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

static ffi::Error nuclei(ffi::ThreadPool pool, ffi::AnyBuffer law,
                         ffi::BufferR0<ffi::F32> top_p,
                         ffi::Result<ffi::AnyBuffer> nucleus) {
  const long V = law.dimensions().back(), rows = law.element_count() / V;
  const float *x = law.typed_data<float>(), goal = top_p.typed_data()[0];
  float* y = nucleus->typed_data<float>();
  auto stages = Stages::create(worth(pool, COST * rows * V, 6));
  stages->add(rows, [=](long row, long) {
    std::copy_n(x + row * V, V, y + row * V);
    keep_likeliest(y + row * V, goal, V);
  });
  Stages::run(pool, stages);
  return ffi::Error::Success();
}

static ffi::Error draws(ffi::AnyBuffer weights, ffi::AnyBuffer u,
                        ffi::Result<ffi::AnyBuffer> token) {
  const long V = weights.dimensions().back(), rows = u.element_count();
  for (long row = 0; row < rows; row++)
    token->typed_data<int32_t>()[row] = draw(
        weights.typed_data<float>() + row * V, u.typed_data<float>()[row], V);
  return ffi::Error::Success();
}

// Writes, for each row, the sum over tokens of the lesser of two laws.
static ffi::Error overlaps(ffi::ThreadPool pool, ffi::AnyBuffer q,
                           ffi::AnyBuffer p, ffi::Result<ffi::AnyBuffer> sums) {
  const long V = q.dimensions().back(), rows = sums->element_count();
  const float *x = q.typed_data<float>(), *y = p.typed_data<float>();
  float* sum = sums->typed_data<float>();
  const auto lesser = [](Floats x, Floats y) { return x < y ? x : y; };
  const auto add = [=](long row, long) {
    Floats sums = {};
    long i = row * V;
    const long end = i + V;
    for (; i + LANES <= end; i += LANES)
      sums += lesser(load(x + i), load(y + i));
    sums += lesser(load_some(x + i, end - i, 0), load_some(y + i, end - i, 0));
    sum[row] = sum_of(sums);
  };
  auto stages = Stages::create(worth(pool, rows * V, 6));
  stages->add(rows, add);
  Stages::run(pool, stages);
  return ffi::Error::Success();
}

// Writes the token after n accepted drafts of each row. After all of them, n =
// count, it is drawn from pi at position n. Else it is drawn from the residual,
// max(0, scale * pi - q), or from pi where the residual has no mass.
static ffi::Error replace(ffi::BufferR1<ffi::S32> num_accepted,
                          ffi::BufferR1<ffi::S32> count,
                          ffi::BufferR3<ffi::F32> q, ffi::BufferR3<ffi::F32> pi,
                          ffi::BufferR1<ffi::F32> scale,
                          ffi::BufferR1<ffi::F32> u,
                          ffi::ResultBufferR1<ffi::S32> token) {
  const auto sizes = q.dimensions();
  const long B = sizes[0], N = sizes[1], V = sizes[2];
  std::vector<float> residual(V);
  for (long b = 0; b < B; b++) {
    const long n = num_accepted.typed_data()[b], first = (b * N + n) * V;
    const float *q_n = q.typed_data() + first, *pi_n = pi.typed_data() + first;
    const float* weights = pi_n;
    const float factor = scale.typed_data()[b];
    if (n != count.typed_data()[b]) {
      for (long i = 0; i < V; i++) residual[i] = factor * pi_n[i] - q_n[i];
      for (long i = 0; i < V; i++)
        residual[i] = residual[i] > 0 ? residual[i] : 0;
      if (sum_of(residual.data(), V) > 0) weights = residual.data();
    }
    token->typed_data()[b] = draw(weights, u.typed_data()[b], V);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(LawsOfLogits, laws,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR0<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("column")
                                  .Attr<bool>("greedy"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(Nucleus, nuclei,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR0<ffi::F32>>()
                                  .Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(Draw, draws,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(Overlap, overlaps,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(Replacement, replace,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::F32>>()
                                  .Ret<ffi::BufferR1<ffi::S32>>());
