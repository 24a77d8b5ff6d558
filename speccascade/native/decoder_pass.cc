// A decoder's pass: a block of tokens of each row, through all layers and the
// head, in one call by XLA. See pass.h.
#include <cmath>
#include <cstring>

#include "decoder.h"

void Rotary::prepare(Part part, float* x, long head, long token) const {
  if (const float* bias = biases[part])
    for (long d = 0; d < D; d++) x[d] += bias[head * D + d];
  if (part == VALUE) return;
  if (scales[part]) norm(x, scales[part], epsilon, D, x);
  // Queries, not scores, are divided by the root of D: there are fewer of them.
  const float factor = part == QUERY ? 1 / std::sqrt((float)D) : 1;
  // Coordinate d is turned with coordinate d + D / 2. With D = 4 the pairs are
  // (0, 2), by the token's first angle, and (1, 3), by its second one.
  const long half = D / 2;
  for (long d = 0; d < half; d++) {
    const float cosine = cosines[token * half + d];
    const float sine = sines[token * half + d], first = x[d];
    x[d] = (first * cosine - x[d + half] * sine) * factor;
    x[d + half] = (x[d + half] * cosine + first * sine) * factor;
  }
}

// Writes the keys and values of a row's tokens to the cache of that row. A unit
// is a row and a key head, as in attention, so that one stage can do both.
struct CacheWriter {
  KeysValuesMove move;
  bool is_rotary = false;
  Rotary rotary;
  float *query = nullptr, *key = nullptr, *value = nullptr;  // [B N heads D]
  long group = 1;                                            // H / K
  // [B], see Batch
  const int32_t *row = nullptr, *start = nullptr, *angle = nullptr;

  void operator()(long unit) const {
    const long K = move.to.H, D = move.to.D, H = K * group, N = move.N;
    const long b = unit / K, k = unit % K;
    for (long n = 0; is_rotary && n < N; n++) {
      // The pass counts fed rows, the angles all rows: with row = {0, 2}, N = 3
      // and four angles a row token 0 of the second fed row is number 3 of the
      // pass, and its angles are number 2 * 4 = 8.
      const long token = b * N + n, angles = angle[b] + n;
      rotary.prepare(KEY, key + (token * K + k) * D, k, angles);
      rotary.prepare(VALUE, value + (token * K + k) * D, k, angles);
      // This unit also turns the queries that look at its key head, and no
      // other unit does.
      for (long h = k * group; h < (k + 1) * group; h++)
        rotary.prepare(QUERY, query + (token * H + h) * D, h, angles);
    }
    move(unit, row[b] * K + k, start[b]);
  }
};

class DecoderSublayers : public Pass {
 public:
  DecoderSublayers(Stages& stages, const Decoder& decoder, const Batch& batch,
                   const Tree& tree, const Room& room, const Rows& read_rows)
      : Pass(stages, batch.B, batch.N, decoder, room),
        batch(batch),
        tree(tree),
        read_rows(read_rows) {}

  // Adds attention to a cache. Where it is the last one with a cache, only the
  // wanted positions continue, if some are named. Returns the rows that
  // continue.
  Rows cached_attention(const CachedAttention& part, long window,
                        const Rows& rows, bool is_last) {
    const KeysValues& cache = part.cache;
    const long K = cache.H, D = cache.D, H = part.in.query.out / D;
    const CacheWriter writer = writer_of(part, rows, H / K);
    project(part.scale, part.in, rows);
    Rows wanted = rows;
    const bool is_fewer = is_last && !batch.read.empty();
    if (is_fewer) {
      // Any position may be wanted, so that all are written before any query is
      // copied: two stages more.
      wanted = read_rows;
      stages.add(B * K, [writer](long unit, long) { writer(unit); });
      gather(rows, wanted, H * D);
    }
    const Attention attention = attention_of(part, window, wanted, H);
    const auto write_and_attend = [=](long unit, long) {
      if (!is_fewer) writer(unit);
      attention(unit);
    };
    stages.add(B * K, write_and_attend);
    add_product(part.out, H * D, wanted);
    return wanted;
  }

  // Writes the tokens to a cache, and nothing else: the last thing of a pass
  // without a head.
  void write_cache(const CachedAttention& part, const Rows& rows) {
    const long K = part.cache.H, D = part.cache.D;
    const CacheWriter writer = writer_of(part, rows, part.in.query.out / D / K);
    project(part.scale, part.in, rows);
    stages.add(B * K, [writer](long unit, long) { writer(unit); });
  }

  // Copies the rows of the wanted positions to place `number` of y [B R K E].
  void hand_out(const Rows& rows, long number, long K, float* y) {
    const bool is_all = batch.read.empty();
    const long R = is_all ? rows.num : batch.R;
    const auto copy = [=, x = rows.x, start = batch.start.data(),
                       read = batch.read.data(), N = N, E = E](long i, long) {
      const long b = i / R, from = is_all ? i : b * N + read[i] - start[b];
      std::copy_n(x + from * E, E, y + (i * K + number) * E);
    };
    stages.add(B * R, copy);
  }

  void source_attention(const SourceAttention& part, const Rows& rows) {
    Products products = normed(part.scale, rows);
    products.add(part.query, rows.query);
    products.stage(stages);
    Attention attention;
    attention.query = rows.query;
    attention.key = part.keys;
    attention.value = part.values;
    attention.y = room.inner;
    attention.N = rows.num;
    attention.H = part.H;
    attention.D = part.D;
    attention.L = part.S;
    attention.row = batch.row.data();
    attention.mask = part.mask;
    stages.add(B * part.H, [attention](long unit, long) { attention(unit); });
    add_product(part.out, part.H * part.D, rows);
  }

  // Writes hidden rows [B num E] times the head, times a factor, to logits.
  void head(const Kernel& kernel, const float* hidden, const Rows& rows,
            float factor, float* logits) {
    Products products(hidden, B * rows.num, E);
    products.add(kernel, logits, false, factor);
    products.stage(stages);
  }

 private:
  const Batch& batch;
  const Tree tree;       // none: the tokens are a chain
  const Rows read_rows;  // room for the rows of wanted positions

  CacheWriter writer_of(const CachedAttention& part, const Rows& rows,
                        long group) const {
    CacheWriter writer;
    writer.move.key = room.key;
    writer.move.value = room.value;
    writer.move.N = N;
    writer.move.to = part.cache;
    writer.move.clears = true;
    writer.is_rotary = part.is_rotary;
    writer.rotary = part.rotary;
    writer.query = rows.query;
    writer.key = room.key;
    writer.value = room.value;
    writer.group = group;
    writer.row = batch.row.data();
    writer.start = batch.start.data();
    writer.angle = batch.angle.data();
    return writer;
  }

  Attention attention_of(const CachedAttention& part, long window,
                         const Rows& rows, long H) const {
    const long L = part.cache.L;
    Attention attention;
    attention.query = rows.query;
    attention.key = part.cache.keys;
    attention.value = part.cache.values;
    attention.y = room.inner;
    attention.N = rows.num;
    attention.H = H;
    attention.D = part.cache.D;
    attention.L = L;
    attention.group = H / part.cache.H;
    attention.window = window;
    attention.tree = tree;
    attention.row = batch.row.data();
    attention.slot = rows.slot;
    if (part.bias) {
      // Entry L - 1 of a head's 2 L - 1 is the bias of distance 0.
      attention.bias = part.bias + L - 1;
      attention.bias_row = H * (2 * L - 1);
      attention.bias_head = 2 * L - 1;
    }
    return attention;
  }

  // Adds a stage that copies the rows and queries [B N width] of the wanted
  // positions. Where row 1 has N = 4 tokens from slot 5 on, the position at
  // slot 7 is row 1 * 4 + 7 - 5 = 6.
  void gather(const Rows& rows, const Rows& wanted, long width) {
    const long R = wanted.num;
    const auto copy = [=, start = batch.start.data(), N = N, E = E](long i,
                                                                    long) {
      const long b = i / R, from = b * N + wanted.slot[i] - start[b];
      std::copy_n(rows.x + from * E, E, wanted.x + i * E);
      std::copy_n(rows.query + from * width, width, wanted.query + i * width);
    };
    stages.add(B * R, copy);
  }
};

// From the last row to the first, no result is overwritten before it has moved:
// the i results that are still to move end at i * step, which is at most b *
// size.
void spread(float* y, long num_rows, long size, long step,
            const std::vector<int32_t>& rows,
            const std::vector<long>& lengths) {
  long i = rows.size();
  for (long b = num_rows; b-- > 0;) {
    long end = 0;
    if (i && rows[i - 1] == b) {
      end = lengths[--i];
      if (b * size > i * step)
        std::memmove(y + b * size, y + i * step, end * sizeof(float));
    }
    std::fill_n(y + b * size + end, size - end, 0.f);
  }
}

// Adds the stages of all sublayers and of the head.
static void add_stages(const Decoder& decoder, Operands& operands,
                       DecoderSublayers& pass, Rows rows, float* hidden,
                       float* logits, float* inputs) {
  const size_t num_to_last = decoder.last_cached();
  const size_t num = decoder.has_head ? decoder.kinds.size() : num_to_last;
  for (size_t i = 0; i < num; i++) {
    const int32_t kind = decoder.kinds[i];
    const bool is_last = i + 1 == num_to_last;
    const Numbers& layers = decoder.handed_out;
    for (size_t k = 0; inputs && k < layers.size(); k++)
      if (layers[k] == (int32_t)i)
        pass.hand_out(rows, k, layers.size(), inputs);
    if (decoder.is_cached(i)) {
      const CachedAttention part = operands.cached_attention(
          kind == ROTARY, decoder.has_bias, decoder.has_norm);
      if (is_last && !decoder.has_head)
        pass.write_cache(part, rows);
      else
        rows = pass.cached_attention(part, decoder.windows[i], rows, is_last);
    }
    if (kind == SOURCE)
      pass.source_attention(operands.source_attention(), rows);
    if (kind == MLP) pass.mlp(operands.mlp(), rows);
  }
  if (decoder.has_head) {
    pass.norm_rows(operands.scale(), rows, hidden);
    pass.head(operands.kernel(), hidden, rows, decoder.factor, logits);
  }
}

void run_pass(ffi::ThreadPool& pool, const Decoder& decoder, const Batch& batch,
              const Fed& fed, Operands operands, float* hidden,
              float* logits, float* inputs) {
  const long B = batch.B, N = batch.N, R = batch.R, E = decoder.width;
  if (!B) return;
  // What is read of a token.
  const long read = fed.states ? 2 * E : E;
  // The head writes to a result of its own, so its width does not count.
  const size_t num_kernels = decoder.kernels.columns.size() - 1;
  const long width = std::max(read, widest(decoder, num_kernels));
  Arena arena(8, B * std::max(N, R) * width);
  Rows rows, read_rows;
  rows.num = N;
  rows.x = arena.take();
  rows.query = arena.take();
  rows.slot = batch.slot.data();
  read_rows.num = R;
  read_rows.x = arena.take();
  read_rows.query = arena.take();
  read_rows.slot = batch.read.data();
  Room room;
  room.key = arena.take();
  room.value = arena.take();
  room.inner = arena.take();

  float* x = fed.states ? arena.take() : rows.x;
  for (long i = 0; i < B * N; i++) {
    const long at = batch.row[i / N] * batch.width + i % N;
    fed.vectors.look_up(fed.tokens[at], x + i * read);
    if (fed.states)
      std::copy_n(fed.states + at * E, E, x + i * read + E);
  }

  Tree tree;
  if (decoder.has_tree) tree = operands.tree(batch.start.data());
  auto stages = Stages::create(worth(pool, decoder.kernels.num_weights, B * N));
  if (fed.states) {
    Products products(x, B * N, read);
    products.add(operands.kernel(), rows.x);
    products.stage(*stages);
  }
  DecoderSublayers pass(*stages, decoder, batch, tree, room, read_rows);
  add_stages(decoder, operands, pass, rows, hidden, logits, inputs);
  Stages::run(pool, stages);
}

static ffi::Error decoder_pass(
    ffi::ThreadPool pool, ffi::BufferR2<ffi::S32> tokens, ffi::AnyBuffer table,
    ffi::BufferR1<ffi::S32> start, ffi::BufferR1<ffi::S32> count,
    ffi::BufferR2<ffi::S32> read, ffi::RemainingArgs args,
    ffi::RemainingRets results, ffi::Dictionary dictionary) {
  Attributes attributes(dictionary);
  Decoder decoder;
  decoder.read(attributes);
  if (attributes.error.failure()) return attributes.error;
  const long num_rows = tokens.dimensions()[0], width = tokens.dimensions()[1];
  const Batch batch(start.typed_data(), count.typed_data(), num_rows, width,
                    read.typed_data(), read.dimensions()[1], decoder.num_slots);
  const long B = batch.B, N = batch.N, R = batch.R;

  Operands operands(args, results, decoder);
  float* hidden = decoder.has_head ? operands.result() : nullptr;
  float* logits = decoder.has_head ? operands.result() : nullptr;
  const bool has_inputs = decoder.has_head && decoder.handed_out.size();
  float* inputs = has_inputs ? operands.result() : nullptr;
  const TokenTable vectors(table, decoder);
  run_pass(pool, decoder, batch, {tokens.typed_data(), vectors}, operands,
           hidden, logits, inputs);

  // The pass wrote the results of the fed rows one after the other.
  float* const written[] = {hidden, logits, inputs};
  for (size_t i = 0; i < 3 && written[i]; i++) {
    const auto sizes = (**results.get<ffi::AnyBuffer>(i)).dimensions();
    const long num_wanted = R ? R : N, step = num_wanted * sizes[2];
    std::vector<long> lengths(B, step);
    for (long b = 0; !R && b < B; b++)
      lengths[b] =
          std::min<long>(count.typed_data()[batch.row[b]], N) * sizes[2];
    spread(written[i], num_rows, sizes[1] * sizes[2], step, batch.row, lengths);
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
                                  .Attrs());
