// The distribution of a row of logits, and draws by inverting a cumulative sum;
// called by XLA. What `speccascade.decoding` computes in many small steps is
// one call here. A row's result, to the bit, does not depend on the rows beside
// it.
//
// Axes: R rows, B rows of a batch, N positions, V vocabulary.
#include "laws.h"

static ffi::Error laws(ffi::ThreadPool pool, ffi::AnyBuffer logits,
                       ffi::BufferR0<ffi::F32> temperature, ffi::AnyBuffer u,
                       ffi::Result<ffi::AnyBuffer> law,
                       ffi::Result<ffi::AnyBuffer> token,
                       ffi::Result<ffi::AnyBuffer> is_law, int64_t column,
                       bool greedy) {
  const long V = logits.dimensions().back(), rows = token->element_count();
  // No column of uniforms means that no token is drawn.
  const long N = u.dimensions().back();
  const LawMaker write{temperature.typed_data()[0], greedy, V};
  const float *x = logits.typed_data<float>(), *uniform = u.typed_data<float>();
  float* y = law->typed_data<float>();
  int32_t* drawn = token->typed_data<int32_t>();
  bool* is_one = is_law->typed_data<bool>();
  auto stages = Stages::create(worth(pool, COST * rows * V, 6));
  stages->add(rows, [=](long row, long) {
    is_one[row] = write(x + row * V, N ? uniform + row * N + column : nullptr,
                        y + row * V, drawn[row]);
  });
  Stages::run(pool, stages);
  return ffi::Error::Success();
}

// Writes the distributions at temperature 1. They are copied where they are at
// hand.
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
  const LawMaker write{1, false, V};
  const float* x = logits.typed_data<float>();
  auto stages = Stages::create(worth(pool, COST * rows * V, 6));
  stages->add(rows, [=](long row, long) {
    int32_t token;
    write(x + row * V, nullptr, y + row * V, token);
  });
  Stages::run(pool, stages);
  return ffi::Error::Success();
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

// Writes, for each row, the sum over tokens of the lesser of two distributions.
static ffi::Error overlaps(ffi::ThreadPool pool, ffi::AnyBuffer q,
                           ffi::AnyBuffer p, ffi::Result<ffi::AnyBuffer> sums) {
  const long V = q.dimensions().back(), rows = sums->element_count();
  const float *x = q.typed_data<float>(), *y = p.typed_data<float>();
  float* sum = sums->typed_data<float>();
  const auto add = [=](long row, long) {
    sum[row] = sum_of_lesser(x + row * V, y + row * V, 1, V);
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
