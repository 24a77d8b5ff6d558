// Attention of queries to cached keys and values: what one stage of work does.
//
// Every sum goes over its terms in order (that of the weights lane by lane), in
// one accumulator, and a masked slot adds 0: a query's result, to the bit, does
// not depend on the queries and rows beside it, on slots that it does not see,
// or on which thread computes it.
#pragma once

#include "shared.h"

// Units of work are a row and a key head each, which a group of heads share. B
// rows, N queries, H heads, K = H / group, D head width, L slots.
struct Attention {
  // [BNHD], [BKDL], [BKLD]
  const float *query = nullptr, *key = nullptr, *value = nullptr;
  float* y = nullptr;  // [BNHD]
  long N = 0, H = 0, D = 0, L = 0;
  // The bias of a query's first slot is that many floats on for each row, head
  // and query; and one more of a row's slots, [BL].
  const float* bias = nullptr;
  long bias_row = 0, bias_head = 0, bias_query = 0;
  const float* mask = nullptr;
  // How many slots of a row are looked at, [B]; or else the slot of each query,
  // [BN], the last one that it sees: it then moves the bias back. None: all.
  const int32_t *reach = nullptr, *slot = nullptr;
  // The row of keys, values, biases and reach that each row of queries sees.
  const int32_t* row = nullptr;
  long group = 1;
  long window = 0;  // slots back that a query sees, itself included; 0: all

  void operator()(long unit) const;

 private:
  template <int M>
  void attend(long b, long h, long n, const float* keys, const float* values,
              float* scores) const;
  long kept_row(long b) const { return row ? row[b] : b; }
};
