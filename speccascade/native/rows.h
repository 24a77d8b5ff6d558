// Rows times kernels packed as panels: what one stage of work does.
//
// Panel p of a kernel [in, out] holds its columns 64 p to 64 p + 63, so that a
// thread reads one stream of memory. In float32 a panel has a row of 64 weights
// for each input. In bfloat16 it has a row of 64 words of 4 bytes for each two
// inputs: weight 5 of input 6 is the lower half of word 5 of row 3, weight 5 of
// input 7 the upper half. In int8 it has a row of 64 bytes for each input, and
// then the 64 float32 by which the columns' sums are multiplied.
//
// Every sum goes over the inputs in order, in one accumulator. A row's result,
// to the bit, therefore depends neither on the rows beside it nor on which
// thread computes it.
#pragma once

#include "shared.h"

enum Activation { LINEAR, RELU, GELU, SILU };  // ACTIVATIONS in passes.py

// WHOLE: float32. HALF: bfloat16 weights meet float32 rows. ROUNDED: bfloat16
// weights meet rows that are rounded to bfloat16, too. BYTES: int8 weights meet
// float32 rows.
enum Weights { WHOLE, HALF, ROUNDED, BYTES };

// Returns how many words of 4 bytes so many weights of a row of a panel take,
// where an odd input's weights share the words of the even one's.
constexpr long words(Weights w, long weights) {
  return w == BYTES ? weights / 4 : weights;
}

static inline Weights weights_of(ffi::AnyBuffer panels, bool rounds) {
  if (panels.element_type() == ffi::S8) return BYTES;
  if (panels.element_type() != ffi::BF16) return WHOLE;
  return rounds ? ROUNDED : HALF;
}

// Returns the words of an array of panels from panel `first` on. The array is
// [P, in, 64] float32, [P, ceil(in / 2), 64, 2] bfloat16 or [P, in + 4, 64]
// int8: its second axis counts rows.
static inline const float* words_of(ffi::AnyBuffer array, long first) {
  const long row = words(weights_of(array, false), PANEL);
  return (const float*)array.untyped_data() +
         first * array.dimensions()[1] * row;
}

// A kernel of `out` columns. Its panels may lie among those of other kernels.
struct Kernel {
  const float* panels = nullptr;  // the words of its first panel
  Weights weights = WHOLE;
  long out = 0;
  Activation activation = LINEAR;  // applied to the product
};

// Writes x [in], divided by its root mean square and times scale [in], to y.
void norm(const float* x, const float* scale, float epsilon, long in, float* y);

constexpr int MOST_PRODUCTS = 3;  // query, key and value

// Products of the same rows with a few kernels, of one kind of weights.
class Products {
  struct Product {
    Kernel kernels[2];  // one, or two whose results are multiplied
    int num_kernels = 0;
    float* y = nullptr;     // [rows, out]
    bool is_added = false;  // to what y holds
    float factor = 1;
    long first = 0;  // panels of the products before this one
  };
  const float* x;  // [rows, in]
  long rows, in;
  long num_blocks;  // of BLOCK_ROWS rows
  long panels = 0;  // of all products
  Weights weights = WHOLE;
  const float* scale = nullptr;  // [in], of a norm before the products
  float epsilon = 0;
  long id;  // of this object and its copies, unlike any other's
  Product products[MOST_PRODUCTS];
  int num_products = 0;

  bool is_copied() const;
  const float* input() const;
  // How far apart the rows that are multiplied lie. Copies are padded to whole
  // pairs of vectors, as `round_row` writes them.
  long step() const {
    return is_copied() ? (in + 2 * LANES - 1) / (2 * LANES) * 2 * LANES : in;
  }
  // Rows of a panel that have weights.
  long depth() const {
    return weights == WHOLE || weights == BYTES ? in : (in + 1) / 2;
  }
  // Words of a panel; int8 weights are followed by a float32 for each column.
  long panel_words() const {
    return words(weights, depth() * PANEL) + (weights == BYTES ? PANEL : 0);
  }
  std::pair<const Product*, long> place(long i) const;
  template <Weights W, int COLUMNS>
  void sums(const float* w, const float* x, long count, float* y) const;
  template <int COLUMNS>
  void unit(long i) const;

 public:
  Products(const float* x, long rows, long in);
  // Has the rows normed first.
  void norm_first(const float* scale, float epsilon);
  void add(const Kernel& kernel, float* y, bool is_added = false,
           float factor = 1);
  // Multiplies the last product by the product with another kernel of its
  // shape.
  void multiply(const Kernel& kernel);
  // Adds a stage of units: half a panel, and at most BLOCK_ROWS rows each.
  void stage(Stages& stages) const;
};
