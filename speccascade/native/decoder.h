// What the calls that run a decoder share: a block of a few tokens of each row,
// and the pass that takes the block through all layers and the head. See
// pass.h.
#pragma once

#include <vector>

#include "pass.h"

struct Decoder : Stack {
  Numbers windows;        // of each sublayer: slots that a token sees; 0: all
  Numbers handed_out;     // the sublayers whose inputs are results, too
  int64_t num_slots = 0;  // of the smallest cache
  bool has_bias = false;  // whether rotary queries, keys and values have biases
  bool has_norm = false;  // whether rotary queries and keys are normed
  bool has_head = false;  // else tokens are only written to the caches
  bool has_tree = false;  // whether the fed tokens are those of trees
  float factor = 1;       // of the logits

  void read(Attributes& attributes) {
    Stack::read(attributes);
    attributes.read("windows", windows);
    attributes.read("handed_out", handed_out);
    attributes.read("num_slots", num_slots);
    attributes.read("has_bias", has_bias);
    attributes.read("has_norm", has_norm);
    attributes.read("has_head", has_head);
    attributes.read("has_tree", has_tree);
    attributes.read("factor", factor);
  }

  bool is_cached(size_t i) const {
    return kinds[i] == CACHED || kinds[i] == ROTARY;
  }

  // Returns the number of sublayers up to the last one with a cache.
  size_t last_cached() const {
    size_t num = kinds.size();
    while (num && !is_cached(num - 1)) num--;
    return num;
  }
};

// The rows that are fed something. All others take no part in the pass: the
// pass calls the first of the fed rows 0, the next one 1.
//
// Where 2, 0 and 3 tokens are fed from slots 5, 9 and 7 on, B = 2, N = 3, row =
// {0, 2}, start = {5, 7}, slot = {5, 6, 7, 7, 8, 9}. Slot 7 of the first row is
// past its tokens: it is written, and is undefined.
struct Batch {
  long B = 0;                // rows that are fed
  long N = 1;                // tokens of each, the most that any row is fed
  long R = 0;                // positions of each whose logits are wanted; 0: N
  long width = 0;            // tokens of a row of the call, N or more
  std::vector<int32_t> row;  // [B], the row of the call
  std::vector<int32_t> start;  // [B], the slot of the first token
  std::vector<int32_t> slot;   // [B N], the slot of each token
  std::vector<int32_t> read;   // [B R], the slot of each wanted position
  // [B], where the angles of the first token are among those of all tokens;
  // the angles of the row's next tokens follow.
  std::vector<int32_t> angle;

  Batch(const int32_t* starts, const int32_t* counts, long num_rows, long width,
        const int32_t* reads, long R, long num_slots)
      : R(R), width(width) {
    // A count below the most so far does not lower it.
    for (long b = 0; b < num_rows; b++)
      N = std::clamp<long>(counts[b], N, width);
    for (long b = 0; b < num_rows; b++) {
      if (counts[b] <= 0) continue;
      // The caller sees to it that there is room. A wrong start must still not
      // write past the cache.
      const long first = std::clamp<long>(starts[b], 0, num_slots - N);
      row.push_back(b);
      angle.push_back(b * width);
      start.push_back(first);
      for (long n = 0; n < N; n++) slot.push_back(first + n);
      for (long r = 0; r < R; r++)
        read.push_back(first + std::clamp<long>(reads[b * R + r], 0, N - 1));
    }
    B = row.size();
  }
};

// What the first sublayer reads of the fed tokens: their vectors; or, where
// there are states, the product of [vector, state before the token] with the
// first kernel of the pass, [2 E, E].
struct Fed {
  const int32_t* tokens;          // [rows of the call, batch.width]
  const TokenTable& vectors;
  const float* states = nullptr;  // [rows of the call, batch.width, E]
};

// Runs a pass, which writes the results of the fed rows one after the other.
//
// Hidden [B, R or N, E] and logits [B, R or N, V] are not written where the
// decoder has no head, nor are the inputs of the K sublayers that are handed
// out, [B, R or N, K, E]. Hidden may be where the states are: these are read
// before.
void run_pass(ffi::ThreadPool& pool, const Decoder& decoder, const Batch& batch,
              const Fed& fed, Operands operands, float* hidden,
              float* logits, float* inputs);

// Moves the results of the fed rows to the places of their rows; all else
// becomes 0.
//
// y [num_rows, size] begins with B results of `step` numbers each. Where rows 0
// and 2 of 3 are fed, the second result moves from y + step to y + 2 * size.
void spread(float* y, long num_rows, long size, long step,
            const std::vector<int32_t>& rows, const std::vector<long>& lengths);
