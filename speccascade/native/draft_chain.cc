// A whole chain of drafts in one call by XLA: a pass of the drafter for each
// draft, the distribution after it, and the token drawn from the distribution.
// Each of them is what a call of its own would compute, to the bit.
// `AutoregressiveDrafter` in speccascade.decoding says what a chain is.
//
// Axes: B rows, G drafts, V columns of the head, L tokens of the buffer, P
// passes: G, or G + 1 where the distribution after the last draft is wanted.
// The columns are the whole vocabulary, or the tokens `ids` [V] of it. A model
// that reads states has `states` [B, width, E] before the tokens of the first
// pass, and then its own hidden states; see Fed. Of others there are none.
#include "decoder.h"
#include "laws.h"

// What a call says of a chain, apart from the decoder.
struct ChainSettings {
  int64_t width = 0;       // tokens that a row's first pass may be fed
  int64_t num_angles = 0;  // tokens of a row whose angles the call has
  bool greedy = false;
  bool has_top_p = false;

  void read(Attributes& attributes) {
    attributes.read("first_width", width);
    attributes.read("num_angles", num_angles);
    attributes.read("greedy", greedy);
    attributes.read("has_top_p", has_top_p);
  }
};

// What each row is fed next. A cache that holds 4 tokens of 6 is fed tokens 4
// and 5 of the buffer first, and then one draft after the other.
struct Feed {
  long width;                   // of a row in `tokens`
  std::vector<int32_t> tokens;  // [B, width]
  std::vector<int32_t> count;   // [B]
  std::vector<int32_t> start;   // [B], the slot of the first one
  std::vector<int32_t> read;    // [B], the one whose logits are wanted
  std::vector<int32_t> fed;     // [B], tokens fed so far

  Feed(const ffi::BufferR2<ffi::S32>& buffer, const int32_t* length,
       const int32_t* held, const int32_t* end, long width)
      : width(width) {
    const long B = buffer.dimensions()[0], L = buffer.dimensions()[1];
    const int32_t* row = buffer.typed_data();
    for (long b = 0; b < B; b++, row += L) {
      for (long i = 0; i < width; i++)
        tokens.push_back(row[std::clamp<long>(held[b] + i, 0, L - 1)]);
      count.push_back(length[b] - held[b]);
      read.push_back(std::clamp<long>(count[b] - 1, 0, width - 1));
    }
    start.assign(end, end + B);
    fed.assign(B, 0);
  }

  Batch batch(long num_slots, long num_angles) const {
    // Of one token all positions are wanted.
    const bool reads_all = *std::max_element(count.begin(), count.end()) <= 1;
    Batch batch(start.data(), count.data(), count.size(), width, read.data(),
                !reads_all, num_slots);
    for (long i = 0; i < batch.B; i++)
      batch.angle[i] = batch.row[i] * num_angles + fed[batch.row[i]];
    return batch;
  }

  // Advances to one draft of each row that is active.
  void advance(const int32_t* drafts, const bool* active) {
    width = 1;
    tokens.assign(drafts, drafts + count.size());
    for (size_t b = 0; b < count.size(); b++) {
      start[b] += count[b];
      fed[b] += count[b];
      count[b] = active[b];
      read[b] = 0;
    }
  }
};

static ffi::Error draft_chain(
    ffi::ThreadPool pool, ffi::BufferR2<ffi::S32> tokens, ffi::AnyBuffer table,
    ffi::BufferR1<ffi::S32> length, ffi::BufferR1<ffi::S32> held,
    ffi::BufferR1<ffi::S32> end, ffi::BufferR1<ffi::PRED> active,
    ffi::BufferR2<ffi::F32> u, ffi::BufferR0<ffi::F32> temperature,
    ffi::BufferR0<ffi::F32> top_p, ffi::BufferR1<ffi::S32> ids,
    ffi::BufferR3<ffi::F32> states, ffi::RemainingArgs args,
    ffi::ResultBufferR2<ffi::S32> drafts, ffi::ResultBufferR3<ffi::F32> laws,
    ffi::ResultBufferR3<ffi::F32> logits, ffi::ResultBufferR2<ffi::PRED> bad,
    ffi::RemainingRets caches, ffi::Dictionary dictionary) {
  Attributes attributes(dictionary);
  Decoder decoder;
  ChainSettings settings;
  decoder.read(attributes);
  settings.read(attributes);
  if (attributes.error.failure()) return attributes.error;
  const long B = drafts->dimensions()[0], G = drafts->dimensions()[1];
  const long P = logits->dimensions()[1], V = logits->dimensions()[2];
  const TokenTable vectors(table, decoder);
  const LawMaker write{temperature.typed_data()[0], settings.greedy, V};
  const float goal = top_p.typed_data()[0], *uniform = u.typed_data();
  const bool has_top_p = settings.has_top_p;
  const int32_t* token_of =
      ids.element_count() ? ids.typed_data() : nullptr;
  float *q = laws->typed_data(), *x = logits->typed_data();
  bool* is_bad = bad->typed_data();
  Feed feed(tokens, length.typed_data(), held.typed_data(), end.typed_data(),
            settings.width);
  std::vector<int32_t> drawn(B);
  const long E = decoder.width;
  std::vector<float> hidden(B * E), after(B * V);
  const bool has_states = states.element_count();
  const float* before = has_states ? states.typed_data() : nullptr;
  for (long step = 0; step < P; step++) {
    const Batch batch = feed.batch(decoder.num_slots, settings.num_angles);
    run_pass(pool, decoder, batch, {feed.tokens.data(), vectors, before},
             Operands(args, caches, decoder), hidden.data(), after.data(),
             nullptr);
    if (has_states) {
      spread(hidden.data(), B, E, E, batch.row, std::vector<long>(batch.B, E));
      before = hidden.data();
    }
    spread(after.data(), B, V, V, batch.row, std::vector<long>(batch.B, V));
    // The distribution after the last draft draws no token.
    const auto draw_row = [=, from = after.data(), drawn = drawn.data()](
                              long b, long) {
      float* law = q + (b * (G + 1) + step) * V;
      const float* u_row = step < G ? uniform + b * G + step : nullptr;
      std::copy_n(from + b * V, V, x + (b * P + step) * V);
      is_bad[b * (G + 1) + step] = !write(from + b * V, u_row, law, drawn[b]);
      if (!has_top_p) return;
      keep_likeliest(law, goal, V);
      if (u_row) drawn[b] = draw(law, *u_row, V);
    };
    auto stages = Stages::create(worth(pool, COST * B * V, 6));
    stages->add(B, draw_row);
    Stages::run(pool, stages);
    for (long b = 0; step < G && b < B; b++) {
      if (token_of) drawn[b] = token_of[drawn[b]];
      drafts->typed_data()[b * G + step] = drawn[b];
    }
    feed.advance(drawn.data(), active.typed_data());
  }
  // Without a distribution after the last draft, zeros are written.
  for (long b = 0; P == G && b < B; b++) {
    std::fill_n(q + (b * (G + 1) + G) * V, V, 0.f);
    is_bad[b * (G + 1) + G] = false;
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(DraftChain, draft_chain,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::PRED>>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR0<ffi::F32>>()
                                  .Arg<ffi::BufferR0<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::BufferR2<ffi::S32>>()
                                  .Ret<ffi::BufferR3<ffi::F32>>()
                                  .Ret<ffi::BufferR3<ffi::F32>>()
                                  .Ret<ffi::BufferR2<ffi::PRED>>()
                                  .RemainingRets()
                                  .Attrs());
