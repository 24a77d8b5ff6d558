// A pass of a decoder over a few tokens of each row, in one call by XLA.
//
// A decoder is a list of sublayers: a norm, what reads the normed rows, and its
// sum with the rows before the norm. Each is a few stages, so that threads are
// woken once in a pass. Another kind of sublayer is another method of `Pass`.
#include <cmath>
#include <cstring>
#include <vector>

#include "attention.h"
#include "rows.h"

enum Kind { CACHED, SOURCE, MLP };  // KINDS in decoder_pass.py

struct Pass {
  Stages& stages;
  ffi::RemainingArgs& args;
  ffi::RemainingRets& results;
  const std::vector<int32_t>& start;       // [B], where the tokens are written
  const std::vector<int32_t>*slot, *read;  // [B N] and [B R], of queries
  long B, N, E, queries;  // the last: of a row, N or R
  float epsilon;
  // The rows, and what a sublayer makes of them, [B max(N, R), width] each.
  float *x, *read_x, *query, *read_query, *key, *value, *made;
  ffi::Span<const int32_t> columns;  // of each kernel
  size_t argument = 0, result = 2, kernels = 0;

  ffi::AnyBuffer next() { return *args.get<ffi::AnyBuffer>(argument++); }
  const float* floats() { return (const float*)next().untyped_data(); }

  Kernel kernel(int activation = LINEAR) {
    ffi::AnyBuffer panels = next();
    const bool is_half = panels.element_type() == ffi::BF16;
    return {panels.untyped_data(), is_half, columns.begin()[kernels++],
            (Activation)activation};
  }

  // Returns products of the rows, normed.
  Products normed() {
    Products all(x, B * queries, E);
    all.norm_first(floats(), epsilon);
    return all;
  }

  // Adds rows [B queries, in] times the next kernel to x.
  void add_product(const float* rows, long in) {
    Products all(rows, B * queries, in);
    all.add({kernel()}, x, true);
    std::move(all).stage(stages);
  }

  // Attention to a cache, which the tokens are written to first. In the last
  // such sublayer only the read queries go on.
  void cached(bool is_last) {
    ffi::AnyBuffer keys = **results.get<ffi::AnyBuffer>(result++);
    ffi::AnyBuffer values = **results.get<ffi::AnyBuffer>(result++);
    const auto sizes = keys.dimensions();
    const long H = sizes[1], D = sizes[2], L = sizes[3], N = this->N;
    argument += 2;  // the caches: XLA made the results start as these
    const float* bias = floats() + L - 1;
    Products all = normed();
    for (float* y : {query, key, value}) all.add({kernel()}, y);
    std::move(all).stage(stages);
    if (is_last && !read->empty()) {
      const long R = (long)read->size() / B, width = H * D;
      const auto gather = [=, read = read->data(), first = start.data(), E = E,
                           x = x, query = query, read_x = read_x,
                           read_query = read_query](long i, long) {
        const long row = i / R * N + read[i] - first[i / R];
        std::copy_n(x + row * E, E, read_x + i * E);
        std::copy_n(query + row * width, width, read_query + i * width);
      };
      stages.add({B * R, gather});
      x = read_x, query = read_query, slot = read, queries = R;
    }
    float* kept_keys = (float*)keys.untyped_data();
    float* kept_values = (float*)values.untyped_data();
    Attention attention{query, kept_keys,   kept_values, made,
                        queries, H, D, L,   bias,
                        0, 2 * L - 1, 0,    nullptr, slot->data()};
    const auto write_and_attend = [=, key = key, value = value,
                                   first = start.data()](long unit, long) {
      const long b = unit / H, h = unit % H;
      for (long n = 0; n < N; n++)
        for (long d = 0; d < D; d++) {
          const long at = ((b * N + n) * H + h) * D + d, to = first[b] + n;
          // Not finite, it would spoil rows that it is masked in.
          const auto put = [at](const float* x) {
            return std::isfinite(x[at]) ? x[at] : 0;
          };
          kept_keys[(unit * D + d) * L + to] = put(key);
          kept_values[(unit * L + to) * D + d] = put(value);
        }
      attention(unit);
    };
    stages.add({B * H, write_and_attend});
    add_product(made, H * D);
  }

  // Attention to what a source left.
  void source(const int32_t* lengths) {
    ffi::AnyBuffer keys = next();
    const float *values = floats(), *bias = floats();
    const auto sizes = keys.dimensions();
    const long H = sizes[1], D = sizes[2], S = sizes[3];
    Products all = normed();
    all.add({kernel()}, query);
    std::move(all).stage(stages);
    const Attention attention{query, (const float*)keys.untyped_data(), values,
                              made, queries, H, D, S, bias, S, 0, 0, lengths,
                              nullptr};
    stages.add({B * H, [attention](long unit, long) { attention(unit); }});
    add_product(made, H * D);
  }

  void mlp(ffi::Span<const int32_t> activations) {
    Products all = normed();
    std::vector<Kernel> inner;
    for (int32_t activation : activations) inner.push_back(kernel(activation));
    const long width = inner[0].out;
    all.add(std::move(inner), made);
    std::move(all).stage(stages);
    add_product(made, width);
  }

  // The last norm, and the head.
  void finish(float* hidden, float* logits, float factor) {
    const float* scale = floats();
    const auto norm_row = [=, x = x, E = E, epsilon = epsilon](long i, long) {
      norm(x + i * E, scale, epsilon, E, hidden + i * E);
    };
    stages.add({B * queries, norm_row});
    Products all(hidden, B * queries, E);
    all.add({kernel()}, logits, false, factor);
    std::move(all).stage(stages);
  }
};

static ffi::Error decoder_pass(
    ffi::ThreadPool pool, ffi::BufferR3<ffi::F32> x,
    ffi::BufferR1<ffi::S32> start, ffi::BufferR2<ffi::S32> read,
    ffi::RemainingArgs args, ffi::RemainingRets results,
    ffi::Span<const int32_t> kinds, ffi::Span<const int32_t> activations,
    ffi::Span<const int32_t> columns, int64_t num_weights, int64_t num_slots,
    float epsilon, float factor) {
  const long B = x.dimensions()[0], N = x.dimensions()[1];
  const long E = x.dimensions()[2], R = read.dimensions()[1];
  long width = E;
  for (size_t i = 0; i + 1 < columns.size(); i++)
    width = std::max<long>(width, columns.begin()[i]);
  static thread_local std::vector<float> room;
  const long step = B * std::max(N, R) * width;
  room.resize(std::max<size_t>(room.size(), 7 * step));
  float* rows = room.data();
  std::copy_n(x.typed_data(), B * N * E, rows);
  std::vector<int32_t> first(B), slot, reads;
  for (long b = 0; b < B; b++) {
    // The caller sees to it that there is room. Nothing else is overwritten.
    first[b] = std::clamp<long>(start.typed_data()[b], 0, num_slots - N);
    for (long n = 0; n < N; n++) slot.push_back(first[b] + n);
    for (long r = 0; r < R; r++)
      reads.push_back(first[b] + std::clamp<long>(
                                     read.typed_data()[b * R + r], 0, N - 1));
  }
  const std::vector<int32_t> all(B, INT32_MAX - 1);
  auto stages = std::make_shared<Stages>(worth(pool, num_weights, B * N));
  Pass pass{*stages, args, results, first, &slot, &reads, B, N, E, N, epsilon,
            rows, rows + step, rows + 2 * step, rows + 3 * step,
            rows + 4 * step, rows + 5 * step, rows + 6 * step, columns};
  size_t last = kinds.size();
  while (last && kinds.begin()[last - 1] != CACHED) last--;
  for (size_t i = 0; i < kinds.size(); i++) {
    const int32_t kind = kinds.begin()[i];
    if (kind == CACHED) pass.cached(i + 1 == last);
    if (kind == SOURCE) pass.source(all.data());
    if (kind == MLP) pass.mlp(activations);
  }
  const auto result = [&](size_t i) {
    return (float*)(**results.get<ffi::AnyBuffer>(i)).untyped_data();
  };
  pass.finish(result(0), result(1), factor);
  Stages::run(pool, stages);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(DecoderPass, decoder_pass,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int32_t>>("kinds")
                                  .Attr<ffi::Span<const int32_t>>("activations")
                                  .Attr<ffi::Span<const int32_t>>("columns")
                                  .Attr<int64_t>("num_weights")
                                  .Attr<int64_t>("num_slots")
                                  .Attr<float>("epsilon")
                                  .Attr<float>("factor"));
