// The tokens that Max-Gram copies, called by XLA; `MaxGramDrafter` in
// speccascade.decoding says what they are.
#include <algorithm>
#include <vector>

#include "shared.h"

typedef std::vector<int32_t> Tokens;

// Adds to y what follows, in text, the leftmost occurrence of the longest
// suffix of `tokens` that occurs there: `most` tokens, or as many as there are.
//
// Tokens and text are reversed, one after the other, so that suffixes are
// beginnings. common[i] is how many tokens from place i on equal those from the
// beginning on (Z algorithm). For tokens 1 2 and text 3 1 2 4 the list is
// 2 1 | 4 2 1 3, and common = 0 0 | 0 2 0 0: both tokens occur at i = 3, and
// what follows in the text begins at place 6 - 3 = 3, the 4.
static void add_following(const Tokens& text, const Tokens& tokens, size_t most,
                          Tokens& y) {
  Tokens all(tokens.rbegin(), tokens.rend());
  all.insert(all.end(), text.rbegin(), text.rend());
  const size_t size = all.size(), length = tokens.size();
  std::vector<size_t> common(size);
  size_t longest = 0, after = text.size();
  for (size_t i = 1, begin = 0, end = 0; i < size; i++) {
    // Places begin to end - 1 equal the first ones, so that place i is known as
    // far as place i - begin is.
    size_t& n = common[i];
    if (i < end) n = std::min(end - i, common[i - begin]);
    while (i + n < size && all[n] == all[i + n]) n++;
    if (i + n > end) begin = i, end = i + n;
    // A match may run on from the tokens into the text; only tokens count.
    const size_t matched = std::min(n, length);
    // The last occurrence in the reversed text is the leftmost one.
    if (i >= length && matched && matched >= longest)
      longest = matched, after = size - i;
  }
  most = std::min(most, text.size() - after);
  y.insert(y.end(), text.begin() + after, text.begin() + after + most);
}

static ffi::Error copies(ffi::BufferR2<ffi::S32> source,
                         ffi::BufferR2<ffi::S32> tokens,
                         ffi::BufferR1<ffi::S32> length,
                         ffi::BufferR1<ffi::S32> next_token,
                         ffi::ResultBufferR2<ffi::S32> drafts,
                         ffi::ResultBufferR1<ffi::S32> count, bool prompted) {
  const long S = source.dimensions()[1], L = tokens.dimensions()[1];
  const long B = tokens.dimensions()[0], num = drafts->dimensions()[1];
  const long vocab = next_token.element_count();
  const int32_t* next = next_token.typed_data();
  for (long b = 0; b < B; b++) {
    const int32_t* source_row = source.typed_data() + b * S;
    const int32_t* written = tokens.typed_data() + b * L;
    // -1 pads prompts, whose last token is the first that is written; 0 pads
    // what an encoder reads.
    const int32_t padding = prompted ? -1 : 0;
    const auto is_token = [=](int32_t id) { return id > padding; };
    const long before =
        std::count_if(source_row, source_row + S, is_token) - prompted;
    const long filled = std::clamp<long>(length.typed_data()[b], 1, L);
    // A prompt is part of what was generated; a source is a text of its own.
    Tokens text(source_row, source_row + std::max(before, 0l)), generated;
    if (prompted) generated.swap(text);
    generated.insert(generated.end(), written, written + filled);
    // (Without its last token: the whole would be found in itself.)
    text.insert(text.end(), generated.begin(), generated.end() - 1);
    Tokens copied;
    add_following(text, generated, num, copied);
    if ((long)copied.size() < num) {
      // Once more, in what was generated with the first copy after it.
      generated.insert(generated.end(), copied.begin(), copied.end());
      const Tokens but_last(generated.begin(), generated.end() - 1);
      add_following(but_last, generated, num, copied);
    }
    count->typed_data()[b] = copied.size();
    // Copies first, then the likeliest token after each.
    int32_t last = written[filled - 1];
    for (long i = 0; i < num; i++) {
      last = std::clamp<int32_t>(last, 0, vocab - 1);
      last = i < (long)copied.size() ? copied[i] : next[last];
      drafts->typed_data()[b * num + i] = last;
    }
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(Copies, copies,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR2<ffi::S32>>()
                                  .Ret<ffi::BufferR1<ffi::S32>>()
                                  .Attr<bool>("prompted"));
