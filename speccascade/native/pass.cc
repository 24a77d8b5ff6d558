// A pass of a decoder over a few tokens of each row, or of an encoder over its
// source, in one call by XLA.
//
// A stack is a list of sublayers: a norm, what reads the normed rows, and its
// sum with the rows before the norm. Each is a few stages, so that threads are
// woken once in a pass. Another kind of sublayer is another method of `Pass`.
#include <cmath>
#include <cstring>
#include <vector>

#include "attention.h"
#include "rows.h"

// Less than a mask that hides nothing, more than one that hides.
constexpr float HIDDEN = -1e9;

enum Kind { CACHED, SOURCE, MLP, OWN, ROTARY };  // KINDS in passes.py

// Keys and values of N tokens, [B N H D], turned to [B H D L] and [B H L D].
struct Turned {
  const float *key, *value;
  float *keys, *values;
  long N, H, D, L;

  // Of a row and head; the first token's slot is `first`. What is not finite
  // is 0 in a cache: it would spoil tokens that it is masked in.
  void operator()(long unit, long to_unit, long first, bool is_cache) const {
    const long at = (unit / H * N * H + unit % H) * D;
    const auto put = [=](float x) {
      return is_cache && !std::isfinite(x) ? 0 : x;
    };
    for (long d = 0; d < D; d++)
      for (long n = 0; n < N; n++)
        keys[(to_unit * D + d) * L + first + n] = put(key[at + n * H * D + d]);
    for (long n = 0; n < N; n++)
      for (long d = 0; d < D; d++)
        values[(to_unit * L + first + n) * D + d] =
            put(value[at + n * H * D + d]);
  }
};

// How a head of a token's query (part 0), key and value are made ready.
struct Rotary {
  long D;
  float epsilon;
  const float *cosines, *sines;  // [.. D / 2], of all tokens
  const float* bias[3];          // [heads D], added first, or none
  const float* scale[2];         // [D], of a norm of query and of key, or none

  void operator()(int part, float* x, long head, long token) const {
    for (long d = 0; bias[part] && d < D; d++) x[d] += bias[part][head * D + d];
    if (part == 2) return;
    if (scale[part]) norm(x, scale[part], epsilon, D, x);
    const float factor = part == 0 ? 1 / std::sqrt((float)D) : 1;
    const long half = D / 2;
    for (long d = 0; d < half; d++) {
      const float cosine = cosines[token * half + d];
      const float sine = sines[token * half + d], first = x[d];
      x[d] = (first * cosine - x[d + half] * sine) * factor;
      x[d + half] = (x[d + half] * cosine + first * sine) * factor;
    }
  }
};

struct Pass {
  Stages& stages;
  ffi::RemainingArgs& args;
  ffi::RemainingRets& results;
  long B, N, E;
  float epsilon;
  ffi::Span<const int32_t> columns, activations;  // of kernels; of an MLP
  // Of each kernel the number of its array, of those that come last, and its
  // first panel.
  ffi::Span<const int32_t> numbers, firsts;
  long num_arrays;
  // The rows, and what a sublayer makes of them, [B max(N, R), width] each.
  float *x, *read_x, *query, *read_query, *key, *value, *made;
  // Of a decoder: the row that each of the B is, where its tokens are written,
  // and the slots of queries, [B N] and [B R].
  const int32_t *row = nullptr, *start = nullptr, *slot = nullptr;
  long width = 0;  // of a row of what was given, N or more
  const std::vector<int32_t>* read = nullptr;
  bool rounds = false;  // rows, to meet kernels in bfloat16
  bool has_bias = false, has_norm = false;  // of what is rotary
  bool has_head = true;
  size_t argument = 0, result = 0, kernels = 0;
  long queries = N;  // of a row, N or R

  ffi::AnyBuffer next() { return *args.get<ffi::AnyBuffer>(argument++); }
  const float* floats() { return (const float*)next().untyped_data(); }
  ffi::AnyBuffer next_result() {
    return **results.get<ffi::AnyBuffer>(result++);
  }

  Kernel kernel(int activation = LINEAR) {
    const size_t i = kernels++, at = args.size() - num_arrays;
    ffi::AnyBuffer array = *args.get<ffi::AnyBuffer>(at + numbers.begin()[i]);
    return {words_of(array, firsts.begin()[i]), weights_of(array, rounds),
            columns.begin()[i], (Activation)activation};
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
    all.add(kernel(), x, true);
    all.stage(stages);
  }

  // Attention to a cache, which the tokens are written to first. In the last
  // such sublayer only the read queries go on; without a head, nothing does.
  void cached(bool is_rotary, bool is_last, long window) {
    ffi::AnyBuffer keys = next_result(), values = next_result();
    const auto sizes = keys.dimensions();
    const long K = sizes[1], D = sizes[2], L = sizes[3];
    const long H = columns.begin()[kernels] / D, group = H / K;
    argument += 2;  // the caches: XLA made the results start as these
    const Rotary rotary = is_rotary ? next_rotary(D) : Rotary{};
    const float* bias = is_rotary ? nullptr : floats() + L - 1;
    const Turned turned{key, value, (float*)keys.untyped_data(),
                        (float*)values.untyped_data(), N, K, D, L};
    Products all = normed();
    for (float* y : {query, key, value}) all.add(kernel(), y);
    all.stage(stages);
    const auto write = [=, pass = *this](long i) {
      const long b = i / K, k = i % K, row = pass.row[b];
      for (long n = 0; is_rotary && n < pass.N; n++) {
        const long token = b * pass.N + n, from = row * pass.width + n;
        rotary(1, pass.key + (token * K + k) * D, k, from);
        rotary(2, pass.value + (token * K + k) * D, k, from);
        for (long h = k * group; h < (k + 1) * group; h++)
          rotary(0, pass.query + (token * H + h) * D, h, from);
      }
      turned(i, row * K + k, pass.start[b], true);
    };
    if (is_last && !has_head) {
      stages.add(B * K, [write](long i, long) { write(i); });
      return;
    }
    const bool is_fewer = is_last && !read->empty();
    if (is_fewer) {
      const long R = (long)read->size() / B, width = H * D;
      const auto gather = [=, read = read->data(), pass = *this](long i, long) {
        const long from = i / R * pass.N + read[i] - pass.start[i / R];
        std::copy_n(pass.x + from * pass.E, pass.E, pass.read_x + i * pass.E);
        std::copy_n(pass.query + from * width, width,
                    pass.read_query + i * width);
      };
      stages.add(B * K, [write](long i, long) { write(i); });
      stages.add(B * R, gather);
      x = read_x, query = read_query, slot = read->data(), queries = R;
    }
    Attention attention{query, turned.keys, turned.values, made,
                        queries, H, D, L};
    attention.bias = bias, attention.bias_row = H * (2 * L - 1);
    attention.bias_head = 2 * L - 1;
    attention.row = row, attention.slot = slot, attention.group = group;
    attention.window = window;
    const auto write_and_attend = [=](long i, long) {
      if (!is_fewer) write(i);
      attention(i);
    };
    stages.add(B * K, write_and_attend);
    add_product(made, H * D);
  }

  Rotary next_rotary(long D) {
    Rotary rotary{D, epsilon, floats(), floats()};
    for (const float*& bias : rotary.bias) bias = has_bias ? floats() : nullptr;
    for (const float*& scale : rotary.scale)
      scale = has_norm ? floats() : nullptr;
    return rotary;
  }

  // Attention of the rows to each other, of which a mask [B, N] hides some. The
  // biases are those of `width` rows. There is room for keys and values in
  // `kept`.
  void own(const float* mask, float* kept) {
    ffi::AnyBuffer bias = next();
    const long H = bias.dimensions()[0], D = columns.begin()[kernels] / H;
    const Turned turned{key, value, kept, kept + B * N * H * D, N, H, D, N};
    Products all = normed();
    for (float* y : {query, key, value}) all.add(kernel(), y);
    all.stage(stages);
    Attention attention{query, turned.keys, turned.values, made, N, H, D, N};
    attention.bias = (const float*)bias.untyped_data() + width - 1;
    attention.bias_head = 2 * width - 1, attention.bias_query = -1;
    attention.mask = mask;
    const auto turn_and_attend = [=](long unit, long) {
      turned(unit, unit, 0, false);
      attention(unit);
    };
    stages.add(B * H, turn_and_attend);
    add_product(made, H * D);
  }

  // Attention to what a source left.
  void source() {
    ffi::AnyBuffer keys = next();
    const float *values = floats(), *mask = floats();
    const auto sizes = keys.dimensions();
    const long H = sizes[1], D = sizes[2], S = sizes[3];
    Products all = normed();
    all.add(kernel(), query);
    all.stage(stages);
    Attention attention{query, (const float*)keys.untyped_data(), values, made,
                        queries, H, D, S};
    attention.row = row, attention.mask = mask;
    stages.add(B * H, [attention](long unit, long) { attention(unit); });
    add_product(made, H * D);
  }

  void mlp() {
    Products all = normed();
    const Kernel inner = kernel(activations.begin()[0]);
    all.add(inner, made);
    if (activations.size() > 1) all.multiply(kernel(activations.begin()[1]));
    all.stage(stages);
    add_product(made, inner.out);
  }

  // Writes the rows, normed, to y.
  void last_norm(float* y) {
    const float* scale = floats();
    const auto norm_row = [=, x = x, E = E, epsilon = epsilon](long i, long) {
      norm(x + i * E, scale, epsilon, E, y + i * E);
    };
    stages.add(B * queries, norm_row);
  }

  // The head, times a factor.
  void head(const float* hidden, float* logits, float factor) {
    Products all(hidden, B * queries, E);
    all.add(kernel(), logits, false, factor);
    all.stage(stages);
  }

  // Keys and values of the rows, that a decoder will look at; 0 after them.
  void keep(const float* hidden) {
    ffi::AnyBuffer keys = next_result(), values = next_result();
    const auto sizes = keys.dimensions();
    const Turned turned{
        key, value, (float*)keys.untyped_data(), (float*)values.untyped_data(),
        N, sizes[1], sizes[2], width};
    Products all(hidden, B * N, E);
    for (float* y : {key, value}) all.add(kernel(), y);
    all.stage(stages);
    const auto turn = [turned](long unit, long) {
      const auto [key, value, keys, values, N, H, D, L] = turned;
      turned(unit, unit, 0, false);
      for (long d = 0; d < D; d++)
        std::fill_n(keys + (unit * D + d) * L + N, L - N, 0.f);
      std::fill_n(values + (unit * L + N) * D, (L - N) * D, 0.f);
    };
    stages.add(B * turned.H, turn);
  }
};

// Vectors of tokens, of a table [V, E] or of panels whose columns they are.
struct Table {
  ffi::AnyBuffer table;
  long first, vocab, E;  // first: the panel of token 0

  // Writes that of a token to x [E]. An id past an end is that of the end.
  void look_up(long token, float* x) const {
    const long id = std::clamp<long>(token, 0, vocab - 1);
    const float* rows = (const float*)table.untyped_data();
    const uint16_t* halves = (const uint16_t*)rows;
    if (table.dimensions().size() == 2) {
      std::copy_n(rows + id * E, E, x);
      return;
    }
    const bool is_half = table.element_type() == ffi::BF16;
    const long inputs = is_half ? 2 : 1, depth = table.dimensions()[1];
    for (long e = 0; e < E; e++) {
      const long row = (first + id / PANEL) * depth + e / inputs;
      const long at = (row * PANEL + id % PANEL) * inputs + e % inputs;
      const uint32_t word = is_half ? (uint32_t)halves[at] << 16 : 0;
      is_half ? (void)std::memcpy(x + e, &word, 4) : (void)(x[e] = rows[at]);
    }
  }
};

// Returns the widest of the rows that a pass makes, of E and of its kernels'.
static long widest(long E, ffi::Span<const int32_t> columns, size_t except) {
  for (size_t i = 0; i + except < columns.size(); i++)
    E = std::max<long>(E, columns.begin()[i]);
  return E;
}

// Moves the first rows [rows.size(), made] of y [B, size] to their places, of
// each as many numbers as are kept; all else becomes 0.
static void spread(float* y, const std::vector<int32_t>& rows,
                   const std::vector<long>& kept, long made, long B,
                   long size) {
  long i = rows.size();
  for (long b = B; b-- > 0;) {
    long end = 0;
    if (i && rows[i - 1] == b) {
      end = kept[--i];
      if (b * size > i * made)
        std::memmove(y + b * size, y + i * made, end * sizeof(float));
    }
    std::fill_n(y + b * size + end, size - end, 0.f);
  }
}

static ffi::Error decoder_pass(
    ffi::ThreadPool pool, ffi::BufferR2<ffi::S32> tokens, ffi::AnyBuffer table,
    ffi::BufferR1<ffi::S32> start, ffi::BufferR1<ffi::S32> count,
    ffi::BufferR2<ffi::S32> read, ffi::RemainingArgs args,
    ffi::RemainingRets results, ffi::Span<const int32_t> kinds,
    ffi::Span<const int32_t> windows, ffi::Span<const int32_t> activations,
    ffi::Span<const int32_t> columns, ffi::Span<const int32_t> numbers,
    ffi::Span<const int32_t> firsts, int64_t num_arrays, int64_t panel,
    int64_t vocab, int64_t width, int64_t num_weights, int64_t num_slots,
    bool rounds, bool has_bias, bool has_norm, bool has_head, float epsilon,
    float factor) {
  const auto result = [&](size_t i) {
    return (float*)(**results.get<ffi::AnyBuffer>(i)).untyped_data();
  };
  const long all_rows = tokens.dimensions()[0], given = tokens.dimensions()[1];
  const long E = width, R = read.dimensions()[1];
  // What no row is fed is left out.
  long N = 1;
  for (long b = 0; b < all_rows; b++)
    N = std::clamp<long>(count.typed_data()[b], N, given);
  std::vector<int32_t> row, first, slot, reads;
  for (long b = 0; b < all_rows; b++) {
    if (count.typed_data()[b] <= 0) continue;
    // The caller sees to it that there is room. Nothing else is overwritten.
    const long at = std::clamp<long>(start.typed_data()[b], 0, num_slots - N);
    row.push_back(b), first.push_back(at);
    for (long n = 0; n < N; n++) slot.push_back(at + n);
    for (long r = 0; r < R; r++)
      reads.push_back(
          at + std::clamp<long>(read.typed_data()[b * R + r], 0, N - 1));
  }
  const long B = row.size();
  const long step = B * std::max(N, R) * widest(E, columns, 1);
  static thread_local std::vector<float> room;
  room.resize(std::max<size_t>(room.size(), 7 * step));
  float* rows = room.data();
  const Table vectors{table, panel, vocab, E};
  for (long i = 0; i < B * N; i++)
    vectors.look_up(tokens.typed_data()[row[i / N] * given + i % N],
                    rows + i * E);
  auto stages = Stages::create(worth(pool, num_weights, B * N));
  Pass pass{*stages, args, results, B, N, E, epsilon, columns, activations,
            numbers, firsts, num_arrays, rows, rows + step, rows + 2 * step,
            rows + 3 * step, rows + 4 * step, rows + 5 * step, rows + 6 * step,
            row.data(), first.data(), slot.data(), given, &reads};
  pass.rounds = rounds;
  pass.has_bias = has_bias, pass.has_norm = has_norm, pass.has_head = has_head;
  pass.result = has_head ? 2 : 0;
  const auto is_cached = [&](size_t i) {
    return kinds.begin()[i] == CACHED || kinds.begin()[i] == ROTARY;
  };
  size_t last = kinds.size();
  while (last && !is_cached(last - 1)) last--;
  for (size_t i = 0; i < (has_head ? kinds.size() : last); i++) {
    const int32_t kind = kinds.begin()[i];
    if (is_cached(i))
      pass.cached(kind == ROTARY, i + 1 == last, windows.begin()[i]);
    if (kind == SOURCE) pass.source();
    if (kind == MLP) pass.mlp();
  }
  if (has_head) {
    pass.last_norm(result(0));
    pass.head(result(0), result(1), factor);
  }
  if (B) Stages::run(pool, stages);
  for (size_t i = 0; has_head && i < 2; i++) {
    const auto sizes = (**results.get<ffi::AnyBuffer>(i)).dimensions();
    const long made = (R ? R : N) * sizes[2];
    std::vector<long> kept(B, made);
    for (long b = 0; !R && b < B; b++)
      kept[b] = std::min<long>(count.typed_data()[row[b]], N) * sizes[2];
    spread(result(i), row, kept, made, all_rows, sizes[1] * sizes[2]);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(DecoderPass, decoder_pass,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int32_t>>("kinds")
                                  .Attr<ffi::Span<const int32_t>>("windows")
                                  .Attr<ffi::Span<const int32_t>>("activations")
                                  .Attr<ffi::Span<const int32_t>>("columns")
                                  .Attr<ffi::Span<const int32_t>>("numbers")
                                  .Attr<ffi::Span<const int32_t>>("firsts")
                                  .Attr<int64_t>("num_arrays")
                                  .Attr<int64_t>("panel")
                                  .Attr<int64_t>("vocab")
                                  .Attr<int64_t>("width")
                                  .Attr<int64_t>("num_weights")
                                  .Attr<int64_t>("num_slots")
                                  .Attr<bool>("rounds")
                                  .Attr<bool>("has_bias")
                                  .Attr<bool>("has_norm")
                                  .Attr<bool>("has_head")
                                  .Attr<float>("epsilon")
                                  .Attr<float>("factor"));

static ffi::Error encoder_pass(
    ffi::ThreadPool pool, ffi::BufferR2<ffi::S32> tokens, ffi::AnyBuffer table,
    ffi::BufferR4<ffi::F32> mask, ffi::RemainingArgs args,
    ffi::RemainingRets results, ffi::Span<const int32_t> kinds,
    ffi::Span<const int32_t> activations, ffi::Span<const int32_t> columns,
    ffi::Span<const int32_t> numbers, ffi::Span<const int32_t> firsts,
    int64_t num_arrays, int64_t panel, int64_t vocab, int64_t num_weights,
    int64_t width, bool rounds, float epsilon) {
  const long B = tokens.dimensions()[0], S = tokens.dimensions()[1], E = width;
  // Places that are hidden in every row are left out.
  long N = 1;
  for (long i = 0; i < B * S; i++)
    if (mask.typed_data()[i] > HIDDEN) N = std::max(N, i % S + 1);
  static thread_local std::vector<float> masks;
  masks.resize(std::max<size_t>(masks.size(), B * N));
  for (long b = 0; b < B; b++)
    std::copy_n(mask.typed_data() + b * S, N, masks.data() + b * N);
  const long step = B * N * widest(E, columns, 0);
  static thread_local std::vector<float> room;
  room.resize(std::max<size_t>(room.size(), 8 * step));
  float* rows = room.data();
  const Table vectors{table, panel, vocab, E};
  for (long i = 0; i < B * N; i++)
    vectors.look_up(tokens.typed_data()[i / N * S + i % N], rows + i * E);
  auto stages = Stages::create(worth(pool, num_weights, B * N));
  Pass pass{*stages, args, results, B, N, E, epsilon, columns, activations,
            numbers, firsts, num_arrays, rows, nullptr, rows + step, nullptr,
            rows + 2 * step, rows + 3 * step, rows + 4 * step};
  pass.rounds = rounds, pass.width = S;
  for (int32_t kind : kinds) {
    if (kind == OWN) pass.own(masks.data(), rows + 6 * step);
    if (kind == MLP) pass.mlp();
  }
  float* hidden = rows + 5 * step;
  pass.last_norm(hidden);
  while (pass.result < results.size()) pass.keep(hidden);
  Stages::run(pool, stages);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(EncoderPass, encoder_pass,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int32_t>>("kinds")
                                  .Attr<ffi::Span<const int32_t>>("activations")
                                  .Attr<ffi::Span<const int32_t>>("columns")
                                  .Attr<ffi::Span<const int32_t>>("numbers")
                                  .Attr<ffi::Span<const int32_t>>("firsts")
                                  .Attr<int64_t>("num_arrays")
                                  .Attr<int64_t>("panel")
                                  .Attr<int64_t>("vocab")
                                  .Attr<int64_t>("num_weights")
                                  .Attr<int64_t>("width")
                                  .Attr<bool>("rounds")
                                  .Attr<float>("epsilon"));
