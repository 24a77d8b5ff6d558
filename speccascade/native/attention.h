// Attention of queries to cached keys and values: what one stage of work does.
//
// Every sum goes over its terms in order (the sum of the weights lane by lane),
// in one accumulator, and a masked slot adds 0. A query's result, to the bit,
// therefore does not depend on the queries and rows beside it, on slots that it
// does not see, or on which thread computes it.
#pragma once

#include "shared.h"

// How the queries of a tree see the last slots of their rows, its window; see
// models/trees.py. With N tokens fed to each row of the call and W columns, the
// window of row b begins at slot start[b] - (W - N). Column c holds the token
// at position depth[c], counted from the window's first slot.
//
// With 2 tokens fed from slot 7 on and W = 5, the window has slots 4 to 8, and
// the query at slot 8 is token 1 of the call, in column 4.
struct Tree {
  const int32_t* depth = nullptr;  // [rows of the call, W]; none: a chain
  const bool* sees = nullptr;      // [rows of the call, N, W]
  const int32_t* start = nullptr;  // [B], the slot of each row's first token
  long N = 0, W = 0;

  explicit operator bool() const { return depth; }
  // Returns the first slot of the window of row b.
  long first(long b) const { return start[b] - (W - N); }
  // Returns what the query at a slot of row b, row `from` of the call, sees of
  // the window, [W].
  const bool* seen_at(long b, long from, long slot) const {
    return sees + (from * N + slot - start[b]) * W;
  }
  // Returns the depth of the token at that slot.
  long depth_at(long b, long from, long slot) const {
    return depth[from * W + slot - first(b)];
  }
};

// A unit of work is a row and a key head, which a group of query heads share.
//
// Axes: B rows, N queries, H heads, K = H / group key heads, D head width, L
// slots.
struct Attention {
  const float* query = nullptr;  // [B, N, H, D], scaled
  const float* key = nullptr;    // [B, K, D, L]
  const float* value = nullptr;  // [B, K, L, D]
  float* y = nullptr;            // [B, N, H, D]
  long N = 0, H = 0, D = 0, L = 0;
  long group = 1;
  // Added to the scores, or none. The biases of query n of head h of row b
  // begin at bias + b * bias_row + h * bias_head + n * bias_query: with a step
  // of 0 all rows, heads or queries have the same ones.
  const float* bias = nullptr;
  long bias_row = 0, bias_head = 0, bias_query = 0;
  // [B, L], added to the scores of all queries of a row, or none.
  const float* mask = nullptr;
  // How much of a row is looked at: the first reach[b] slots, or for query n
  // the slots up to its own, slot[b, n]; with neither, all. With its own slot a
  // query's biases also begin that many entries earlier, as those of a distance
  // do.
  const int32_t *reach = nullptr, *slot = nullptr;
  // [B], the row of keys, values, biases, masks and reaches that a row of
  // queries looks at; none: the row itself.
  const int32_t* row = nullptr;
  long window = 0;  // slots back that a query sees, itself included; 0: all
  // Where the queries are tokens of a tree, at slots `slot`. Distances are then
  // between positions, not between slots.
  Tree tree;

  void operator()(long unit) const;

 private:
  template <int M>
  void attend(long b, long h, long n, const float* keys, const float* values,
              float* scores) const;
  void look_at_window(long b, long slot, const float* distances,
                      float* scores) const;
  long cache_row(long b) const { return row ? row[b] : b; }
};
