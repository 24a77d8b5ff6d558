// See rows.h.
#include "rows.h"

#include <cmath>
#include <cstring>
#include <iterator>

constexpr int BLOCK_ROWS = 48;  // of a unit of work; its sums fit the L1 cache
constexpr int MOST_ROWS = 6;    // of a tile
constexpr int DEPTH = 128;      // rows of a panel that tiles read in turn
constexpr int AHEAD = 64;       // rows of a panel that are fetched ahead

#if defined(__AVX512BF16__)
constexpr bool HAS_DOTS = true;
#else
constexpr bool HAS_DOTS = false;
#endif

// How many numbers of a row each row of a panel meets; a pair that is
// multiplied by one instruction is one.
constexpr int inputs(Weights w) {
  return w == HALF || (w == ROUNDED && !HAS_DOTS) ? 2 : 1;
}

// Returns weights of an input of a row of a panel. A bfloat16 is the upper half
// of a float32; the lower half of a word is that of the first input.
template <Weights W>
static inline Floats weights_at(const float* w, int input) {
  if (inputs(W) == 1) return load(w);
  const Words pairs = (Words)load(w);
  return (Floats)(input ? pairs & 0xffff0000u : pairs << 16);
}

// Returns x w + z; of two pairs the sum of both products.
template <Weights W>
static inline Floats multiply_in(const float* x, Floats w, Floats z) {
#if defined(__AVX512BF16__)
  if (W == ROUNDED) {
    int pair;
    std::memcpy(&pair, x, sizeof pair);
    return _mm512_dpbf16_ps(z, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)w);
  }
#endif
  return multiply_add(*x, w, z);
}

// Writes x [M, n] times w [n, N * LANES] to sums, or adds it. Rows of w are
// PANEL apart, those of sums `step`, those of x `in`. Of one or two rows the
// weights are read so fast that the processor fetches them ahead by itself; of
// more, those AHEAD rows on are fetched.
template <int M, int N, Weights W>
static inline void tile(const float* x, long in, const float* w, float* sums,
                        long step, long n, bool adds) {
  Floats sum[M][N] = {};
  for (int m = 0; adds && m < M; m++)
    for (int v = 0; v < N; v++) sum[m][v] = load(sums + m * step + v * LANES);
  for (long k = 0; k < n; k++, w += PANEL) {
    for (int j = 0; M > 2 && j < N * LANES; j += 16)
      __builtin_prefetch(w + AHEAD * PANEL + j, 0, 2);
#pragma GCC unroll 2
    for (int i = 0; i < inputs(W); i++) {
      Floats weights[N];
#pragma GCC unroll 16
      for (int v = 0; v < N; v++)
        keep(weights[v] = weights_at<W>(w + v * LANES, i));
#pragma GCC unroll 16
      for (int m = 0; m < M; m++)
#pragma GCC unroll 16
        for (int v = 0; v < N; v++)
          sum[m][v] = multiply_in<W>(x + m * in + k * inputs(W) + i, weights[v],
                                     sum[m][v]);
    }
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < N; v++) store(sums + m * step + v * LANES, sum[m][v]);
}

// The same for so many columns of a panel; rows of sums are as far apart.
template <int M, int COLUMNS, Weights W>
static void strip(const float* x, long in, const float* w, float* sums, long n,
                  bool adds) {
  constexpr int N = std::min(vectors(M), COLUMNS / LANES);
  for (int j = 0; j < COLUMNS; j += N * LANES)
    tile<M, N, W>(x, in, w + j, sums + j, COLUMNS, n, adds);
}

// The same for any number of rows, in tiles as even as can be.
template <int COLUMNS, Weights W>
static void strips(const float* x, long rows, long in, const float* w,
                   float* sums, long n, bool adds) {
  constexpr decltype(&strip<1, COLUMNS, W>) STRIPS[] = {
      strip<1, COLUMNS, W>, strip<2, COLUMNS, W>, strip<3, COLUMNS, W>,
      strip<4, COLUMNS, W>, strip<5, COLUMNS, W>, strip<6, COLUMNS, W>};
  static_assert(std::size(STRIPS) == MOST_ROWS);
  for (long tiles = (rows + MOST_ROWS - 1) / MOST_ROWS; tiles; tiles--) {
    const long m = (rows + tiles - 1) / tiles;
    STRIPS[m - 1](x, in, w, sums, n, adds);
    x += m * in, sums += m * COLUMNS, rows -= m;
  }
}

// Returns 1 / (1 + exp(-x)).
static inline Floats sigmoid(Floats x) {
  const Floats power = exponential(x < 0 ? x : -x);
  return (x < 0 ? power : power * 0 + 1) / (power + 1);
}

// Applies an activation to x [n], whole vectors.
static void activate(Activation activation, float* x, long n) {
  if (activation == LINEAR) return;
  for (long i = 0; i < n; i += LANES) {
    const Floats v = load(x + i);
    const Floats slope = multiply_add(0.044715f, v * v * v, v);  // of GELU
    store(x + i, activation == RELU ? (v < 0 ? Floats{} : v)
                 : activation == GELU
                     ? v * sigmoid(slope * 1.5957691216f)  // 2 sqrt(2 / pi)
                     : v * sigmoid(v));
  }
}

void norm(const float* x, const float* scale, float epsilon, long in,
          float* y) {
  Floats squares = {};
  long i = 0;
  for (; i + LANES <= in; i += LANES)
    squares = multiply_add(load(x + i), load(x + i), squares);
  float sum = 0;
  for (; i < in; i++) sum += x[i] * x[i];
  for (int lane = 0; lane < LANES; lane++) sum += squares[lane];
  const float over = 1 / std::sqrt(sum / in + epsilon);
  for (i = 0; i < in; i++) y[i] = x[i] * over * scale[i];
}

Products::Products(const float* x, long rows, long in)
    : x(x),
      rows(rows),
      in(in),
      num_blocks((rows + BLOCK_ROWS - 1) / BLOCK_ROWS) {
  static std::atomic<long> last_id{0};
  id = ++last_id;
}

void Products::norm_first(const float* scale, float epsilon) {
  this->scale = scale, this->epsilon = epsilon;
}

void Products::add(const Kernel& kernel, float* y, bool is_added,
                   float factor) {
  weights = kernel.weights;
  products[num_products++] = {{kernel}, 1, y, is_added, factor, panels};
  panels += (kernel.out + PANEL - 1) / PANEL;
}

void Products::multiply(const Kernel& kernel) {
  Product& last = products[num_products - 1];
  last.kernels[last.num_kernels++] = kernel;
}

void Products::stage(Stages& stages) const {
  const auto run = [all = *this](long i, long n) {
    n > 1 ? all.unit<PANEL>(i) : all.unit<PANEL / 2>(i);
  };
  stages.add(2 * panels * num_blocks, run, 2);
}

// Returns the product that a unit is of, and its first column.
std::pair<const Products::Product*, long> Products::place(long i) const {
  const long number = i / 2 / num_blocks;
  const Product* p = products + num_products - 1;
  while (p->first > number) p--;
  return {p, (number - p->first) * PANEL + i % 2 * PANEL / 2};
}

// Rounds x [n], whole pairs of vectors, to bfloat16, to even where two are as
// near; to pairs in one word, as weights are, where an instruction takes them.
static void round_row(float* x, long n) {
#if defined(__AVX512BF16__)
  for (long i = 0; i < n; i += 2 * LANES)
    store(x + i / 2,
          (Floats)_mm512_cvtne2ps_pbh(load(x + i + LANES), load(x + i)));
#else
  for (long i = 0; i < n; i += LANES) {
    const Floats y = load(x + i);
    const Words bits = (Words)y + 0x7fff + ((Words)y >> 16 & 1);
    store(x + i, y == y ? (Floats)(bits & 0xffff0000u) : y);
  }
#endif
}

// Whether the rows that are multiplied are not those given.
bool Products::is_copied() const {
  return scale || weights == ROUNDED || (weights == HALF && in % 2);
}

// Returns the rows that are multiplied, a step apart. Each thread makes them
// anew, once in a stage: less work than a stage of its own.
const float* Products::input() const {
  static thread_local std::vector<float> made;
  static thread_local long made_id;
  if (!is_copied()) return x;
  if (made_id != id) {
    made.resize(std::max<size_t>(made.size(), rows * step()));
    for (long row = 0; row < rows; row++) {
      float* y = made.data() + row * step();
      if (scale)
        norm(x + row * in, scale, epsilon, in, y);
      else
        std::copy_n(x + row * in, in, y);
      std::fill(y + in, y + step(), 0);
      if (weights == ROUNDED) round_row(y, step());
    }
    made_id = id;
  }
  return made.data();
}

// Writes rows x [count] times columns w of a panel to y [count, COLUMNS].
template <Weights W, int COLUMNS>
void Products::sums(const float* w, const float* x, long count,
                    float* y) const {
  const long most = count > MOST_ROWS ? DEPTH : depth();
  for (long k = 0; k < depth(); k += most)
    strips<COLUMNS, W>(x + k * inputs(W), count, step(), w + k * PANEL, y,
                       std::min(most, depth() - k), k > 0);
}

template <int COLUMNS>
void Products::unit(long i) const {
  const long begin = i / 2 % num_blocks * BLOCK_ROWS;
  const long count = std::min<long>(BLOCK_ROWS, rows - begin);
  const auto [p, column] = place(i);
  const long out = p->kernels[0].out;
  const long width = std::min<long>(COLUMNS, out - column);
  if (width <= 0) return;
  const float* rows = input() + begin * step();
  const auto sums = weights == WHOLE  ? &Products::sums<WHOLE, COLUMNS>
                    : weights == HALF ? &Products::sums<HALF, COLUMNS>
                                      : &Products::sums<ROUNDED, COLUMNS>;
  alignas(64) float results[2][BLOCK_ROWS * COLUMNS];
  for (int j = 0; j < p->num_kernels; j++) {
    const Kernel& kernel = p->kernels[j];
    const long at = column / PANEL * depth() * PANEL + column % PANEL;
    (this->*sums)(kernel.panels + at, rows, count, results[j]);
    activate(kernel.activation, results[j], count * COLUMNS);
  }
  if (p->num_kernels > 1)
    for (long j = 0; j < count * COLUMNS; j++) results[0][j] *= results[1][j];
  for (long row = 0; row < count; row++) {
    float* y = p->y + (begin + row) * out + column;
    const float* result = results[0] + row * COLUMNS;
    for (long j = 0; j < width; j++)
      y[j] = p->is_added ? y[j] + result[j] : result[j] * p->factor;
  }
}

static ffi::Error rows_times_panels(ffi::ThreadPool pool, ffi::AnyBuffer x,
                                    ffi::RemainingArgs arrays,
                                    ffi::RemainingRets results,
                                    ffi::Span<const int32_t> numbers,
                                    ffi::Span<const int32_t> firsts,
                                    bool rounds) {
  const long in = x.dimensions().back();
  const long rows = (long)x.element_count() / std::max(in, 1l);
  const Products none((const float*)x.untyped_data(), rows, in);
  long weights = 0;
  for (size_t i = 0; i < results.size(); i++)
    weights += in * (**results.get<ffi::AnyBuffer>(i)).dimensions().back();
  auto stages = Stages::create(worth(pool, weights, rows));
  for (size_t begin = 0; begin < results.size(); begin += MOST_PRODUCTS) {
    Products all = none;
    const size_t end = std::min(begin + MOST_PRODUCTS, results.size());
    for (size_t i = begin; i < end; i++) {
      ffi::AnyBuffer array = *arrays.get<ffi::AnyBuffer>(numbers.begin()[i]);
      ffi::AnyBuffer y = **results.get<ffi::AnyBuffer>(i);
      all.add({words_of(array, firsts.begin()[i]), weights_of(array, rounds),
               y.dimensions().back()},
              (float*)y.untyped_data());
    }
    all.stage(*stages);
  }
  Stages::run(pool, stages);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(RowsTimesPanels, rows_times_panels,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int32_t>>("numbers")
                                  .Attr<ffi::Span<const int32_t>>("firsts")
                                  .Attr<bool>("rounds"));
