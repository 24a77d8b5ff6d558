// What the passes of a decoder and of an encoder are made of.
//
// A pass takes a few tokens of each row through a stack of sublayers in one
// call by XLA. A sublayer norms the rows, computes something from the normed
// rows, and adds the result to the rows. `Operands` reads the operands of a
// sublayer into a struct with names; a pass turns that struct into a few stages
// of work. The stages of all sublayers run together, so threads are woken once
// in a pass.
//
// Axes: B rows, N tokens of each row, E model width, H heads, K key heads,
// which H / K query heads share, D head width, L slots of a cache, S source
// length.
#pragma once

#include <string_view>
#include <vector>

#include "attention.h"
#include "rows.h"

typedef ffi::Span<const int32_t> Numbers;

// Reads the attributes of a call by their names.
class Attributes {
 public:
  // The first attribute that is missing, or has another type; or success.
  ffi::Error error;

  explicit Attributes(ffi::Dictionary dictionary) : dictionary(dictionary) {}

  template <class T>
  void read(std::string_view name, T& variable) {
    const ffi::ErrorOr<T> value = dictionary.get<T>(name);
    if (value.has_value())
      variable = value.value();
    else if (error.success())
      error = value.error();
  }

 private:
  ffi::Dictionary dictionary;
};

// --- What a call says of its stack. ---

enum Kind { CACHED, SOURCE, MLP, ENCODER, ROTARY };  // KINDS in sublayers.py

// Where the kernels are. Entry i of a list is of the i-th kernel that the pass
// reads. With firsts 0, 0, 3 and numbers 0, 1, 1 the third kernel begins at
// panel 3 of the second array.
struct KernelPlaces {
  Numbers columns;          // outputs of the kernel
  Numbers numbers;          // the kernel's array, among the arrays of kernels
  Numbers firsts;           // the kernel's first panel in that array
  Numbers rounds;           // whether rows are rounded to meet bfloat16
  int64_t num_arrays = 0;   // arrays of kernels: the last operands of the call
  int64_t num_weights = 0;  // weights of all kernels together
};

struct Stack {
  Numbers kinds;        // the Kind of each sublayer
  Numbers activations;  // the Activation of each inner kernel of an MLP
  KernelPlaces kernels;
  int64_t width = 0;  // E
  int64_t vocab = 0;  // tokens of the table
  int64_t panel = 0;  // the table's first panel, where the table is packed
  float epsilon = 0;  // of the norms

  void read(Attributes& attributes);
};

// --- The operands of each kind of sublayer; see sublayers.py. ---

struct Projections {
  Kernel query, key, value;
};

// Keys [B, H, D, L] and values [B, H, L, D], as attention reads them.
struct KeysValues {
  float *keys = nullptr, *values = nullptr;
  long H = 0, D = 0, L = 0;
};

enum Part { QUERY, KEY, VALUE };

// What makes heads ready before they are cached, or look at a cache.
struct Rotary {
  long D = 0;
  float epsilon = 0;                                 // of the norms
  const float *cosines = nullptr, *sines = nullptr;  // [B, N, D / 2]
  const float* biases[3] = {};  // of each Part, [heads D], or none
  const float* scales[2] = {};  // of norms of QUERY and KEY, [D], or none

  // Adds the bias to a head x [D]. A query or key is then normed, and turned by
  // the angles of its token.
  void prepare(Part part, float* x, long head, long token) const;
};

// Attention to a cache that the fed tokens are written to first.
struct CachedAttention {
  const float* scale = nullptr;  // [E], of the norm
  Projections in;
  Kernel out;
  KeysValues cache;
  // Either a bias by distance, [B, H, 2 L - 1], or rotary positions.
  const float* bias = nullptr;
  bool is_rotary = false;
  Rotary rotary;
};

// Attention to the keys and values of a source, which stay as they are.
struct SourceAttention {
  const float* scale = nullptr;  // [E], of the norm
  Kernel query, out;
  const float *keys = nullptr, *values = nullptr;  // [B, H, D, S], [B, H, S, D]
  const float* mask = nullptr;                     // [B, S], added to scores
  long H = 0, D = 0, S = 0;
};

// Attention of an encoder's tokens to each other.
struct EncoderAttention {
  const float* scale = nullptr;  // [E], of the norm
  Projections in;
  Kernel out;
  const float* bias = nullptr;  // [H, 2 S - 1], by distance
  long H = 0, D = 0;
};

struct Mlp {
  const float* scale = nullptr;  // [E], of the norm
  Kernel inner[2];               // their results are multiplied
  int num_inner = 0;
  Kernel out;
};

// An encoder's result for one layer of a decoder.
struct SourceProjection {
  Kernel key, value;
  KeysValues source;
};

// Reads operands, results and kernels in the order in which Python lists them:
// of a sublayer first what its attention reads, then the scale of its norm,
// then its kernels. A kernel's array is found by the kernel's number.
class Operands {
 public:
  Operands(const ffi::RemainingArgs& args, const ffi::RemainingRets& results,
           const Stack& stack)
      : args(args), results(results), stack(stack) {}

  // Reads a tree, whose rows' first tokens are at slots start [B].
  Tree tree(const int32_t* start);
  const float* scale() { return floats(next_argument()); }
  float* result() { return floats(next_result()); }
  Kernel kernel(Activation activation = LINEAR);
  CachedAttention cached_attention(bool is_rotary, bool has_bias,
                                   bool has_norm);
  SourceAttention source_attention();
  EncoderAttention encoder_attention();
  Mlp mlp();
  SourceProjection source_projection();
  bool has_results() const { return num_results < results.size(); }

 private:
  const ffi::RemainingArgs& args;
  const ffi::RemainingRets& results;
  const Stack& stack;
  // How many of each were read.
  size_t num_arguments = 0, num_results = 0, num_kernels = 0;

  static float* floats(const ffi::AnyBuffer& buffer) {
    return (float*)buffer.untyped_data();
  }
  ffi::AnyBuffer next_argument();
  ffi::AnyBuffer next_result();
  long next_columns() const { return stack.kernels.columns[num_kernels]; }
  Projections projections();
  KeysValues next_keys_values();
};

// --- What a pass works with. ---

// Vectors of tokens: a table [V, E], or panels whose columns they are.
struct TokenTable {
  ffi::AnyBuffer array;
  long panel, vocab, E;

  TokenTable(const ffi::AnyBuffer& array, const Stack& stack)
      : array(array), panel(stack.panel), vocab(stack.vocab), E(stack.width) {}

  // Writes the vector of a token to x [E]. An id past an end is read as the
  // end.
  void look_up(long token, float* x) const;
};

// Arrays of one size, in memory that a thread keeps from call to call: to
// allocate it again would clear every page.
class Arena {
 public:
  Arena(size_t num_arrays, size_t size);
  float* take();

 private:
  size_t num_left, size;
  float* next;
};

// Returns the width of the widest rows that a pass computes: the model's, or a
// kernel's among the first `num_kernels`.
long widest(const Stack& stack, size_t num_kernels);

// Moves rows of products, [B, N, H * D], to keys and values.
struct KeysValuesMove {
  const float *key = nullptr, *value = nullptr;
  long N = 0;
  KeysValues to;
  // Whether what is not finite becomes 0. In a cache it would spoil the tokens
  // that it is masked for, since a weight of 0 times NaN is NaN.
  bool clears = false;

  // Moves a head of a row: unit = row * H + head, from the N tokens of `unit`
  // to slots first to first + N - 1 of `to_unit`.
  void operator()(long unit, long to_unit, long first) const;
};

// Rows that continue through the sublayers.
struct Rows {
  long num = 0;                   // of each row of the batch
  float* x = nullptr;             // [B num E]
  float* query = nullptr;         // room for their queries, [B num H D]
  const int32_t* slot = nullptr;  // in the cache, [B num]; an encoder has none
};

// What all sublayers use in turn.
struct Room {
  float *key = nullptr, *value = nullptr;  // [B N K D]
  float* inner = nullptr;  // [B num width], what a sublayer's last kernel reads
};

// Adds the stages of sublayers.
class Pass {
 public:
  Pass(Stages& stages, long B, long N, const Stack& stack, const Room& room)
      : stages(stages),
        B(B),
        N(N),
        E(stack.width),
        epsilon(stack.epsilon),
        room(room) {}

  void mlp(const Mlp& part, const Rows& rows);
  // Writes the normed rows to y [B num E].
  void norm_rows(const float* scale, const Rows& rows, float* y);

 protected:
  Stages& stages;
  const long B, N, E;
  const float epsilon;
  const Room room;

  // Returns products of the rows, which are normed first.
  Products normed(const float* scale, const Rows& rows) const;
  // Writes queries, keys and values of the normed rows.
  void project(const float* scale, const Projections& in, const Rows& rows);
  // Adds what `inner` holds, [B num in], times a kernel to the rows.
  void add_product(const Kernel& out, long in, const Rows& rows);
};
