// The law of a row of logits, and draws by inverting a cumulative sum; called
// by XLA. What `speccascade.decoding` computes in many small steps is one call
// here. A row's result, to the bit, does not depend on the rows beside it.
//
// Axes: R rows, B rows of a batch, N positions, V vocabulary.
#include <cfloat>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "draws.h"

constexpr long COST = 10;  // of an element of a law, counted in multiplications

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
    float top;
    is_law[row] = find_top(x, top);
    if (greedy) {
      const long best = first_of(x, top, V);
      std::fill(y, y + V, 0);
      y[best] = 1;
      token[row] = best;
    } else if (!is_law[row]) {
      std::fill(y, y + V, NAN);
      token[row] = 0;
    } else {
      std::vector<float>& sums = block_sums(V);
      softmax(x, y, top, sums.data());
      token[row] = N ? draw(y, sums.data(), u[row * N], V) : 0;
    }
  }

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
  void softmax(const float* x, float* y, float top, float* block_sum) const {
    // A division by 1 changes nothing.
    const auto plain = [=](Floats x) { return x - top; };
    const auto heated = [=, t = temperature](Floats x) {
      return (x - top) / t;
    };
    const float scale =
        1 / (temperature == 1 ? weigh(x, y, plain) : weigh(x, y, heated));
    for (long i = 0; i < V; i += BLOCK) {
      const long n = std::min(BLOCK, V - i);
      for (long j = i; j < i + n; j++) y[j] *= scale;
      *block_sum++ = sum_of(y + i, n);
    }
  }

  // Writes exp(exponent(x)) to y [V], and returns the sum.
  template <class Exponent>
  float weigh(const float* x, float* y, const Exponent& exponent) const {
    Floats sums = {};
    long i = 0;
    for (; i + LANES <= V; i += LANES) {
      const Floats weight = exponential(exponent(load(x + i)));
      store(y + i, weight);
      sums += weight;
    }
    const Floats rest =
        exponential(exponent(load_some(x + i, V - i, -INFINITY)));
    for (long j = i; j < V; j++) y[j] = rest[j - i];
    return sum_of(sums + rest);
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

// Writes the laws at temperature 1. They are copied where they are at hand.
static ffi::Error plain_laws(ffi::ThreadPool pool, ffi::AnyBuffer logits,
                             ffi::AnyBuffer law,
                             ffi::BufferR0<ffi::F32> temperature,
                             ffi::Result<ffi::AnyBuffer> plain) {
  const long V = logits.dimensions().back(), rows = law.element_count() / V;
  float* y = plain->typed_data<float>();
  if (temperature.typed_data()[0] == 1) {
    std::copy_n(law.typed_data<float>(), rows * V, y);
    return ffi::Error::Success();
  }
  std::vector<int32_t> token(rows);
  const std::unique_ptr<bool[]> is_law(new bool[rows]);
  Laws work;
  work.logits = logits.typed_data<float>();
  work.V = V;
  work.law = y;
  work.token = token.data();
  work.is_law = is_law.get();
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
XLA_FFI_DEFINE_HANDLER_SYMBOL(PlainLaws, plain_laws,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR0<ffi::F32>>()
                                  .Ret<ffi::AnyBuffer>());
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
