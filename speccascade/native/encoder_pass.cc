// An encoder's pass: a source through all layers, and the keys and values of it
// that each layer of a decoder looks at, in one call by XLA. See pass.h.
#include <vector>

#include "pass.h"

// A mask is 0 for a token that is seen, and -1e10 for one that is not.
constexpr float HIDDEN = -1e9;

// A mask [B, S] without the places that are hidden in every row.
struct SourceMask {
  long N = 1;          // places that are left, the first ones
  const float* begin;  // [B, N], in memory that a thread keeps

  SourceMask(const float* mask, long B, long S) {
    for (long i = 0; i < B * S; i++)
      if (mask[i] > HIDDEN) N = std::max(N, i % S + 1);
    static thread_local std::vector<float> memory;
    memory.resize(std::max<size_t>(memory.size(), B * N));
    for (long b = 0; b < B; b++)
      std::copy_n(mask + b * S, N, memory.data() + b * N);
    begin = memory.data();
  }
};

class EncoderSublayers : public Pass {
 public:
  EncoderSublayers(Stages& stages, long B, const Stack& encoder,
                   const SourceMask& mask, long S, const Room& room,
                   float* keys, float* values)
      : Pass(stages, B, mask.N, encoder, room),
        mask(mask.begin),
        S(S),
        keys(keys),
        values(values) {}

  // Adds attention of the tokens to each other.
  void attention(const EncoderAttention& part, const Rows& rows) {
    KeysValuesMove move;
    move.key = room.key;
    move.value = room.value;
    move.N = N;
    move.to.keys = keys;
    move.to.values = values;
    move.to.H = part.H;
    move.to.D = part.D;
    move.to.L = N;
    Attention attention;
    attention.query = rows.query;
    attention.key = keys;
    attention.value = values;
    attention.y = room.inner;
    attention.N = N;
    attention.H = part.H;
    attention.D = part.D;
    attention.L = N;
    // A head's bias has an entry for each distance from 1 - S to S - 1, so that
    // entry S - 1 is of distance 0. The first slot is at distance -n from query
    // n: each query begins one entry before the last one.
    attention.bias = part.bias + S - 1;
    attention.bias_head = 2 * S - 1;
    attention.bias_query = -1;
    attention.mask = mask;
    project(part.scale, part.in, rows);
    const auto move_and_attend = [=](long unit, long) {
      move(unit, unit, 0);
      attention(unit);
    };
    stages.add(B * part.H, move_and_attend);
    add_product(part.out, part.H * part.D, rows);
  }

  // Writes the keys and values of hidden rows [B N E] that one layer of a
  // decoder looks at, and 0 in the places after them.
  void source(const SourceProjection& part, const float* hidden) {
    KeysValuesMove move;
    move.key = room.key;
    move.value = room.value;
    move.N = N;
    move.to = part.source;
    Products products(hidden, B * N, E);
    products.add(part.key, room.key);
    products.add(part.value, room.value);
    products.stage(stages);
    const auto move_and_clear = [move](long unit, long) {
      const KeysValues& to = move.to;
      const long D = to.D, L = to.L, N = move.N;
      move(unit, unit, 0);
      for (long d = 0; d < D; d++)
        std::fill_n(to.keys + (unit * D + d) * L + N, L - N, 0.f);
      std::fill_n(to.values + (unit * L + N) * D, (L - N) * D, 0.f);
    };
    stages.add(B * part.source.H, move_and_clear);
  }

 private:
  const float* mask;     // [B, N]
  const long S;          // places of the source, N or more
  float *keys, *values;  // room for those of the tokens, [B H D N], [B H N D]
};

static ffi::Error encoder_pass(
    ffi::ThreadPool pool, ffi::BufferR2<ffi::S32> tokens, ffi::AnyBuffer table,
    ffi::BufferR4<ffi::F32> mask, ffi::RemainingArgs args,
    ffi::RemainingRets results, ffi::Dictionary dictionary) {
  Attributes attributes(dictionary);
  Stack encoder;
  encoder.read(attributes);
  if (attributes.error.failure()) return attributes.error;
  const long B = tokens.dimensions()[0], S = tokens.dimensions()[1];
  const SourceMask seen(mask.typed_data(), B, S);
  const long N = seen.N, E = encoder.width;

  Arena arena(8, B * N * widest(encoder, encoder.kernels.columns.size()));
  Rows rows;
  rows.num = N;
  rows.x = arena.take();
  rows.query = arena.take();
  Room room;
  room.key = arena.take();
  room.value = arena.take();
  room.inner = arena.take();
  float* hidden = arena.take();
  float* keys = arena.take();
  float* values = arena.take();

  const TokenTable vectors(table, encoder);
  for (long i = 0; i < B * N; i++)
    vectors.look_up(tokens.typed_data()[i / N * S + i % N], rows.x + i * E);

  Operands operands(args, results, encoder);
  auto stages = Stages::create(worth(pool, encoder.kernels.num_weights, B * N));
  EncoderSublayers pass(*stages, B, encoder, seen, S, room, keys, values);
  for (int32_t kind : encoder.kinds) {
    if (kind == ENCODER) pass.attention(operands.encoder_attention(), rows);
    if (kind == MLP) pass.mlp(operands.mlp(), rows);
  }
  pass.norm_rows(operands.scale(), rows, hidden);
  while (operands.has_results())
    pass.source(operands.source_projection(), hidden);
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
                                  .Attrs());
