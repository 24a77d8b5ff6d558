// Rows times kernels packed as panels: what one stage of work does.
//
// Panel p of a kernel [in, out] holds its columns 64 p to 64 p + 63, so that a
// thread reads one stream of memory: of each input in turn, or in bfloat16 of
// each two, 64 words of 4 bytes. Every sum goes over the inputs in order, in
// one accumulator: a row's result, to the bit, depends neither on the rows
// beside it nor on which thread computes it.
#pragma once

#include "shared.h"

enum Activation { LINEAR, RELU, GELU, SILU };  // ACTIVATIONS in passes.py

// Weights in float32, in bfloat16, or in bfloat16 for rows that are rounded to
// bfloat16, too.
enum Weights { WHOLE, HALF, ROUNDED };

static inline Weights weights_of(ffi::AnyBuffer panels, bool rounds) {
  if (panels.element_type() != ffi::BF16) return WHOLE;
  return rounds ? ROUNDED : HALF;
}

// Returns words of an array of panels, [P, in, 64], in bfloat16
// [P, ceil(in / 2), 64, 2], from one of them on.
static inline const float* words_of(ffi::AnyBuffer array, long first) {
  return (const float*)array.untyped_data() +
         first * array.dimensions()[1] * PANEL;
}

// Panels of `out` columns, which may stand among those of other kernels.
struct Kernel {
  const float* panels = nullptr;  // words
  Weights weights = WHOLE;
  long out = 0;
  Activation activation = LINEAR;  // of the product
};

// Writes x [in] over its root mean square, times scale [in], to y.
void norm(const float* x, const float* scale, float epsilon, long in, float* y);

constexpr int MOST_PRODUCTS = 3;  // query, key and value

// Products of the same rows with a few kernels, of one kind of weights.
class Products {
  struct Product {
    Kernel kernels[2];  // two whose products are multiplied, or one
    int num_kernels;
    float* y;       // [rows, out]
    bool is_added;  // to what y holds
    float factor;
    long first;  // the number of panels before these
  };
  const float* x;  // [rows, in]
  long rows, in, num_blocks, panels = 0;
  Weights weights = WHOLE;
  const float* scale = nullptr;  // [in], of a norm before the products
  float epsilon = 0;
  long id;
  Product products[MOST_PRODUCTS];
  int num_products = 0;

  bool is_copied() const;
  const float* input() const;
  long step() const {
    return is_copied() ? (in + 2 * LANES - 1) / (2 * LANES) * 2 * LANES : in;
  }
  long depth() const { return weights == WHOLE ? in : (in + 1) / 2; }
  std::pair<const Product*, long> place(long i) const;
  template <Weights W, int COLUMNS>
  void sums(const float* w, const float* x, long count, float* y) const;
  template <int COLUMNS>
  void unit(long i) const;

 public:
  Products(const float* x, long rows, long in);
  // The rows are normed first.
  void norm_first(const float* scale, float epsilon);
  void add(const Kernel& kernel, float* y, bool is_added = false,
           float factor = 1);
  // The last product is multiplied by that of another kernel like its own.
  void multiply(const Kernel& kernel);
  // Adds a stage of units: half a panel, and at most BLOCK_ROWS rows each.
  void stage(Stages& stages) const;
};
