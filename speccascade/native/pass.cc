// See pass.h.
#include "pass.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

void Stack::read(Attributes& attributes) {
  attributes.read("kinds", kinds);
  attributes.read("activations", activations);
  attributes.read("columns", kernels.columns);
  attributes.read("numbers", kernels.numbers);
  attributes.read("firsts", kernels.firsts);
  attributes.read("num_arrays", kernels.num_arrays);
  attributes.read("num_weights", kernels.num_weights);
  attributes.read("rounds", kernels.rounds);
  attributes.read("width", width);
  attributes.read("vocab", vocab);
  attributes.read("panel", panel);
  attributes.read("epsilon", epsilon);
}

// --- Operands, in the order in which sublayers.py lists them. ---

ffi::AnyBuffer Operands::next_argument() {
  return *args.get<ffi::AnyBuffer>(num_arguments++);
}

ffi::AnyBuffer Operands::next_result() {
  return **results.get<ffi::AnyBuffer>(num_results++);
}

Tree Operands::tree(const int32_t* start) {
  const ffi::AnyBuffer depth = next_argument(), ancestors = next_argument();
  Tree tree;
  tree.depth = (const int32_t*)depth.untyped_data();
  tree.sees = (const bool*)ancestors.untyped_data();
  tree.start = start;
  tree.N = ancestors.dimensions()[1];
  tree.W = ancestors.dimensions()[2];
  return tree;
}

Kernel Operands::kernel(Activation activation) {
  const KernelPlaces& places = stack.kernels;
  const size_t i = num_kernels++;
  // The arrays of kernels come after all other arguments.
  const size_t first_array = args.size() - places.num_arrays;
  const ffi::AnyBuffer array =
      *args.get<ffi::AnyBuffer>(first_array + places.numbers[i]);
  Kernel kernel;
  kernel.panels = words_of(array, places.firsts[i]);
  kernel.weights = weights_of(array, places.rounds[i]);
  kernel.out = places.columns[i];
  kernel.activation = activation;
  return kernel;
}

Projections Operands::projections() {
  Projections in;
  in.query = kernel();
  in.key = kernel();
  in.value = kernel();
  return in;
}

// Returns keys and values that the pass writes, two results of the call.
KeysValues Operands::next_keys_values() {
  const ffi::AnyBuffer keys = next_result(), values = next_result();
  const auto sizes = keys.dimensions();  // [B, H, D, L]
  KeysValues pair;
  pair.keys = floats(keys);
  pair.values = floats(values);
  pair.H = sizes[1];
  pair.D = sizes[2];
  pair.L = sizes[3];
  return pair;
}

CachedAttention Operands::cached_attention(bool is_rotary, bool has_bias,
                                           bool has_norm) {
  CachedAttention part;
  part.is_rotary = is_rotary;
  part.cache = next_keys_values();
  // The caches are arguments, too. XLA has the results begin as copies of them,
  // or in their place, so the arguments themselves are not looked at.
  num_arguments += 2;
  if (is_rotary) {
    part.rotary.D = part.cache.D;
    part.rotary.epsilon = stack.epsilon;
    part.rotary.cosines = floats(next_argument());
    part.rotary.sines = floats(next_argument());
    if (has_bias)
      for (const float*& bias : part.rotary.biases)
        bias = floats(next_argument());
    if (has_norm)
      for (const float*& scale : part.rotary.scales)
        scale = floats(next_argument());
  } else {
    part.bias = floats(next_argument());
  }
  part.scale = scale();
  part.in = projections();
  part.out = kernel();
  return part;
}

SourceAttention Operands::source_attention() {
  SourceAttention part;
  const ffi::AnyBuffer keys = next_argument();
  const auto sizes = keys.dimensions();  // [B, H, D, S]
  part.H = sizes[1];
  part.D = sizes[2];
  part.S = sizes[3];
  part.keys = floats(keys);
  part.values = floats(next_argument());
  part.mask = floats(next_argument());
  part.scale = scale();
  part.query = kernel();
  part.out = kernel();
  return part;
}

EncoderAttention Operands::encoder_attention() {
  EncoderAttention part;
  const ffi::AnyBuffer bias = next_argument();  // [H, 2 S - 1]
  part.bias = floats(bias);
  part.H = bias.dimensions()[0];
  part.D = next_columns() / part.H;
  part.scale = scale();
  part.in = projections();
  part.out = kernel();
  return part;
}

Mlp Operands::mlp() {
  Mlp part;
  part.scale = scale();
  for (int32_t activation : stack.activations)
    part.inner[part.num_inner++] = kernel((Activation)activation);
  part.out = kernel();
  return part;
}

SourceProjection Operands::source_projection() {
  SourceProjection part;
  part.source = next_keys_values();
  part.key = kernel();
  part.value = kernel();
  return part;
}

// --- What a pass works with. ---

void TokenTable::look_up(long token, float* x) const {
  const long id = std::clamp<long>(token, 0, vocab - 1);
  const float* rows = (const float*)array.untyped_data();
  if (array.dimensions().size() == 2) {
    std::copy_n(rows + id * E, E, x);
    return;
  }
  // Token 70 of a table from panel 2 on is column 70 % 64 = 6 of panel
  // 2 + 70 / 64 = 3. A panel has `depth` rows of 64 words. In float32 number e
  // is in row e; in bfloat16 numbers e = 6 and 7 are both in row 3, side by
  // side in the word of the column; in int8 number e is the byte of the column
  // in row e, and the factors of the columns follow the E rows.
  if (array.element_type() == ffi::S8) {
    const float* begin = words_of(array, panel + id / PANEL);
    const int8_t* column = (const int8_t*)begin + id % PANEL;
    const float factor = begin[E * PANEL / 4 + id % PANEL];
    for (long e = 0; e < E; e++) x[e] = column[e * PANEL] * factor;
    return;
  }
  const uint16_t* halves = (const uint16_t*)rows;
  const bool is_half = array.element_type() == ffi::BF16;
  const long inputs = is_half ? 2 : 1, depth = array.dimensions()[1];
  for (long e = 0; e < E; e++) {
    const long row = (panel + id / PANEL) * depth + e / inputs;
    const long at = (row * PANEL + id % PANEL) * inputs + e % inputs;
    if (is_half) {
      // A bfloat16 is the upper half of a float32.
      const uint32_t word = (uint32_t)halves[at] << 16;
      std::memcpy(x + e, &word, sizeof word);
    } else {
      x[e] = rows[at];
    }
  }
}

Arena::Arena(size_t num_arrays, size_t size)
    : num_left(num_arrays), size(size) {
  static thread_local std::vector<float> memory;
  memory.resize(std::max(memory.size(), num_arrays * size));
  next = memory.data();
}

float* Arena::take() {
  // More arrays than were asked for would lie past the end of the memory.
  if (num_left-- == 0) std::abort();
  float* array = next;
  next += size;
  return array;
}

long widest(const Stack& stack, size_t num_kernels) {
  long width = stack.width;
  for (size_t i = 0; i < num_kernels; i++)
    width = std::max<long>(width, stack.kernels.columns[i]);
  return width;
}

void KeysValuesMove::operator()(long unit, long to_unit, long first) const {
  const long H = to.H, D = to.D, L = to.L;
  // Where the head begins in its row's first token. With H = 2, D = 3 and N = 4
  // unit 3 is head 1 of row 1, and begins at (1 * 4 * 2 + 1) * 3 = 27; the head
  // of the next token follows H * D = 6 numbers on, at 33.
  const long at = (unit / H * N * H + unit % H) * D;
  const auto finite = [=](float x) {
    return clears && !std::isfinite(x) ? 0 : x;
  };
  // Keys are turned, so that the slots of one coordinate are neighbours: they
  // are written in that order.
  for (long d = 0; d < D; d++)
    for (long n = 0; n < N; n++)
      to.keys[(to_unit * D + d) * L + first + n] =
          finite(key[at + n * H * D + d]);
  for (long n = 0; n < N; n++)
    for (long d = 0; d < D; d++)
      to.values[(to_unit * L + first + n) * D + d] =
          finite(value[at + n * H * D + d]);
}

// --- The stages of sublayers. ---

Products Pass::normed(const float* scale, const Rows& rows) const {
  Products products(rows.x, B * rows.num, E);
  products.norm_first(scale, epsilon);
  return products;
}

void Pass::project(const float* scale, const Projections& in,
                   const Rows& rows) {
  Products products = normed(scale, rows);
  products.add(in.query, rows.query);
  products.add(in.key, room.key);
  products.add(in.value, room.value);
  products.stage(stages);
}

void Pass::add_product(const Kernel& out, long in, const Rows& rows) {
  Products products(room.inner, B * rows.num, in);
  products.add(out, rows.x, true);
  products.stage(stages);
}

void Pass::mlp(const Mlp& part, const Rows& rows) {
  Products products = normed(part.scale, rows);
  products.add(part.inner[0], room.inner);
  if (part.num_inner > 1) products.multiply(part.inner[1]);
  products.stage(stages);
  add_product(part.out, part.inner[0].out, rows);
}

void Pass::norm_rows(const float* scale, const Rows& rows, float* y) {
  const auto norm_row = [=, x = rows.x, E = E, epsilon = epsilon](long i,
                                                                  long) {
    norm(x + i * E, scale, epsilon, E, y + i * E);
  };
  stages.add(B * rows.num, norm_row);
}
