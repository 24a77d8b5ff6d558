// Rows times kernels packed as panels: what one stage of work does.
//
// Panel p of a kernel [in, out] holds its columns 64 p to 64 p + 63, so that a
// thread reads one stream of memory. Every sum goes over the inputs in order,
// in one accumulator: a row's result, to the bit, depends neither on the rows
// beside it nor on which thread computes it.
#pragma once

#include <vector>

#include "shared.h"

enum Activation { LINEAR, RELU, GELU, SILU };  // ACTIVATIONS in passes.py

// Panels [P, in, 64], float32 or (is_half) bfloat16, of `out` columns.
struct Kernel {
  const void* panels;
  bool is_half;
  long out;
  Activation activation = LINEAR;  // of the product
};

// Writes x [in] over its root mean square, times scale [in], to y.
void norm(const float* x, const float* scale, float epsilon, long in, float* y);

// Products of the same rows with several kernels.
class Products {
  struct Product {
    std::vector<Kernel> kernels;  // one, or two whose products are multiplied
    float* y;                     // [rows, out]
    bool is_added;                // to what y holds
    float factor;
    long first;  // the number of panels before these
  };
  const float* x;  // [rows, in]
  long rows, in, num_blocks, panels = 0;
  const float* scale = nullptr;  // [in], of a norm before the products
  float epsilon = 0;
  long id;
  std::vector<Product> products;

  const float* input() const;
  std::pair<const Product*, long> place(long i) const;
  template <typename Weight, int COLUMNS>
  void sums(const Weight* w, const float* x, long count, float* y) const;
  template <int COLUMNS>
  void unit(long i) const;

 public:
  Products(const float* x, long rows, long in);
  // The rows are normed first.
  void norm_first(const float* scale, float epsilon);
  void add(std::vector<Kernel> kernels, float* y, bool is_added = false,
           float factor = 1);
  // Adds a stage of units: half a panel, and at most BLOCK_ROWS rows each.
  void stage(Stages& stages) &&;
};
