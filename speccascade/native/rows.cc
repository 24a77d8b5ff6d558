// See rows.h.
#include "rows.h"

#include <cmath>
#include <cstring>
#include <iterator>

// Rows of a unit of work: its sums, 48 * 64 floats, fit the L1 cache.
constexpr int BLOCK_ROWS = 48;
constexpr int MOST_ROWS = 6;  // of a tile
// Rows of a panel that all tiles of a unit read before any tile continues. They
// take 32 KiB, and stay in a cache from one tile to the next.
constexpr int DEPTH = 128;
constexpr int AHEAD =
    64;  // rows of a panel from one that is read to one fetched
// Rows of a panel that narrow tiles side by side read before any of them goes
// on. They take 16 KiB, half of the L1 cache of most processors.
constexpr int GROUP = 64;

#if defined(__AVX512BF16__)
constexpr bool HAS_DOTS = true;
#else
constexpr bool HAS_DOTS = false;
#endif

// Returns how many steps a row of a panel takes: two where it has the weights
// of two inputs, unless one instruction multiplies both pairs.
constexpr int inputs(Weights w) {
  return w == HALF || (w == ROUNDED && !HAS_DOTS) ? 2 : 1;
}

// Returns LANES numbers of 1 byte as floats.
static inline Floats load_bytes(const int8_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  Floats x;
  for (int lane = 0; lane < LANES; lane++) x[lane] = p[lane];
  return x;
#endif
}

// Returns the weights of an input, 0 or 1, of a row of a panel, as floats. A
// bfloat16 is the upper half of a float32: the second input's weights are the
// upper halves of the words, the first input's the lower ones, which are moved
// up.
template <Weights W>
static inline Floats weights_at(const float* w, int input) {
  if (W == BYTES) return load_bytes((const int8_t*)w);
  if (inputs(W) == 1) return load(w);
  const Words pairs = (Words)load(w);
  return (Floats)(input ? pairs & 0xffff0000u : pairs << 16);
}

// Returns x w + z; x and w are numbers, or pairs whose two products are both
// added.
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

// Writes x [M, n] times w [n, N * LANES] to sums, or adds it to them.
//
// A tile has M rows of x and N vectors of columns; its M * N sums stay in
// registers while it walks down n rows of the panel. Rows of w are a row apart,
// rows of sums COLUMNS, rows of x `in`. With one row weights are read so fast
// that the processor fetches them ahead by itself, and also with two rows where
// the tile is as wide as the strip. Else the tile fetches whole rows of a panel
// from `next` on: one row for each `every` rows that it reads where it is as
// wide as the strip, and for each TILES times as many where TILES of them are.
template <int M, int N, int COLUMNS, Weights W>
static inline void tile(const float* x, long in, const float* w, float* sums,
                        long n, bool adds, const float* next, long every) {
  constexpr int WIDTH = N * LANES, TILES = COLUMNS / WIDTH;
  constexpr long ROW = words(W, PANEL);
  constexpr bool FETCHES = M > (TILES > 1 ? 1 : 2);
  Floats sum[M][N] = {};
  for (int m = 0; adds && m < M; m++)
    for (int v = 0; v < N; v++)
      sum[m][v] = load(sums + m * COLUMNS + v * LANES);
  long fetched = 0;
  for (long k = 0, left = 1; k < n; k++, w += ROW) {
    if (FETCHES && --left == 0) {
      // 16 words are a line of the cache.
      for (int j = 0; j < words(W, WIDTH); j += 16)
        __builtin_prefetch(next + fetched / TILES * ROW +
                               words(W, fetched % TILES * WIDTH) + j,
                           0, 2);
      fetched++;
      left = every;
    }
#pragma GCC unroll 2
    for (int i = 0; i < inputs(W); i++) {
      Floats weights[N];
#pragma GCC unroll 16
      for (int v = 0; v < N; v++)
        keep(weights[v] = weights_at<W>(w + words(W, v * LANES), i));
#pragma GCC unroll 16
      for (int m = 0; m < M; m++)
#pragma GCC unroll 16
        for (int v = 0; v < N; v++)
          sum[m][v] = multiply_in<W>(x + m * in + k * inputs(W) + i, weights[v],
                                     sum[m][v]);
    }
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < N; v++)
      store(sums + m * COLUMNS + v * LANES, sum[m][v]);
}

// Does the work of `tile` for COLUMNS columns of a panel; rows of sums are
// COLUMNS apart.
//
// Where a tile has fewer columns, because the registers hold no more sums, each
// group of rows is read by all tiles in turn, the first time from memory and
// then from the L1 cache. Meanwhile the tiles fetch the next group, each tile a
// share of its rows. So memory is read once, in order, and waits for nothing.
//
// `ahead` is how far the first row that is fetched lies after w, in words; a
// row is fetched for each `every` rows that are read.
template <int M, int COLUMNS, Weights W>
static void strip(const float* x, long in, const float* w, float* sums, long n,
                  bool adds, long ahead, long every) {
  constexpr int N = std::min(vectors(M), COLUMNS / LANES), WIDTH = N * LANES;
  constexpr int TILES = COLUMNS / WIDTH, SHARE = GROUP / TILES;
  constexpr long ROW = words(W, PANEL);
  if (TILES == 1)
    return tile<M, N, COLUMNS, W>(x, in, w, sums, n, adds, w + ahead, every);
  for (long k = 0; k < n; k += GROUP)
    for (int j = 0; j < TILES; j++)
      tile<M, N, COLUMNS, W>(x + k * inputs(W), in,
                             w + k * ROW + words(W, j * WIDTH),
                             sums + j * WIDTH, std::min<long>(GROUP, n - k),
                             adds || k > 0,
                             w + ahead + (k + j * SHARE) / every * ROW, every);
}

// Does the work of `strip` for any number of rows, in tiles as even as can be:
// 8 rows are 4 and 4, 13 are 5, 4 and 4.
//
// A single tile walks down a panel and fetches what is a bit ahead. Of several
// only the first reads from memory, so each fetches a share of the n rows after
// these: memory is read while all of them compute.
template <int COLUMNS, Weights W>
static void strips(const float* x, long rows, long in, const float* w,
                   float* sums, long n, bool adds) {
  constexpr decltype(&strip<1, COLUMNS, W>) STRIPS[] = {
      strip<1, COLUMNS, W>, strip<2, COLUMNS, W>, strip<3, COLUMNS, W>,
      strip<4, COLUMNS, W>, strip<5, COLUMNS, W>, strip<6, COLUMNS, W>};
  static_assert(std::size(STRIPS) == MOST_ROWS);
  constexpr long ROW = words(W, PANEL);
  const long all = (rows + MOST_ROWS - 1) / MOST_ROWS;
  for (long left = all; left; left--) {
    const long m = (rows + left - 1) / left;
    const bool is_wide = vectors(m) * LANES >= COLUMNS;
    const long ahead = all > 1   ? (n + (all - left) * n / all) * ROW
                       : is_wide ? AHEAD * PANEL
                                 : GROUP * ROW;
    STRIPS[m - 1](x, in, w, sums, n, adds, ahead, all);
    x += m * in;
    sums += m * COLUMNS;
    rows -= m;
  }
}

// Returns 1 / (1 + exp(-x)). The exponential takes no x above 0: where x >= 0
// this is 1 / (exp(-x) + 1), else exp(x) / (exp(x) + 1).
static inline Floats sigmoid(Floats x) {
  const Floats power = exponential(x < 0 ? x : -x);
  // (power * 0 + 1 is 1, or NaN where x is.)
  return (x < 0 ? power : power * 0 + 1) / (power + 1);
}

// Applies an activation to x [n], which are whole vectors.
static void activate(Activation activation, float* x, long n) {
  if (activation == LINEAR) return;
  for (long i = 0; i < n; i += LANES) {
    const Floats v = load(x + i);
    // GELU by tanh: (1 + tanh(y)) / 2 is the sigmoid of 2 y.
    const Floats slope = multiply_add(0.044715f, v * v * v, v);
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
  Product& product = products[num_products++];
  product.kernels[0] = kernel;
  product.num_kernels = 1;
  product.y = y;
  product.is_added = is_added;
  product.factor = factor;
  product.first = panels;
  weights = kernel.weights;
  panels += (kernel.out + PANEL - 1) / PANEL;
}

void Products::multiply(const Kernel& kernel) {
  Product& last = products[num_products - 1];
  last.kernels[last.num_kernels++] = kernel;
}

void Products::stage(Stages& stages) const {
  // Both halves of a panel are run as one where one thread has both.
  const auto run = [products = *this](long i, long n) {
    n > 1 ? products.unit<PANEL>(i) : products.unit<PANEL / 2>(i);
  };
  stages.add(2 * panels * num_blocks, run, 2);
}

// Returns the product that a unit is part of, and the unit's first column.
//
// Units count halves of a panel, then blocks of rows, then panels. 100 rows are
// 3 blocks of 48; unit 9 is half 9 % 2 = 1 of block 9 / 2 % 3 = 1 of panel 9 /
// 2 / 3 = 1: of rows 48 to 95, and columns 64 + 32 on.
std::pair<const Products::Product*, long> Products::place(long i) const {
  const long number = i / 2 / num_blocks;
  const Product* p = products + num_products - 1;
  while (p->first > number) p--;
  return {p, (number - p->first) * PANEL + i % 2 * PANEL / 2};
}

// Rounds x [n], whole pairs of vectors, to bfloat16; to the even one where two
// are as near. Where an instruction multiplies pairs, two numbers become one
// word, as weights are, and the first half of x holds all.
static void round_row(float* x, long n) {
#if defined(__AVX512BF16__)
  for (long i = 0; i < n; i += 2 * LANES)
    store(x + i / 2,
          (Floats)_mm512_cvtne2ps_pbh(load(x + i + LANES), load(x + i)));
#else
  for (long i = 0; i < n; i += LANES) {
    const Floats y = load(x + i);
    // 0x7fff carries into the upper half if the lower one is above a half; with
    // the last bit of the upper half, also where it is a half and that bit is
    // odd.
    const Words bits = (Words)y + 0x7fff + ((Words)y >> 16 & 1);
    store(x + i, y == y ? (Floats)(bits & 0xffff0000u) : y);
  }
#endif
}

// Whether copies of the rows are multiplied. Two inputs share a word of
// bfloat16 weights, so an odd number of them is padded.
bool Products::is_copied() const {
  return scale || weights == ROUNDED || (weights == HALF && in % 2);
}

// Returns the rows that are multiplied, a step apart. Where they are copies,
// each thread makes its own, once in a stage: less work than a stage of its
// own. A thread knows its copies by the number of the products that they were
// made for.
const float* Products::input() const {
  static thread_local std::vector<float> copies;
  static thread_local long copy_id;
  if (!is_copied()) return x;
  if (copy_id != id) {
    copies.resize(std::max<size_t>(copies.size(), rows * step()));
    for (long row = 0; row < rows; row++) {
      float* y = copies.data() + row * step();
      if (scale)
        norm(x + row * in, scale, epsilon, in, y);
      else
        std::copy_n(x + row * in, in, y);
      std::fill(y + in, y + step(), 0);
      if (weights == ROUNDED) round_row(y, step());
    }
    copy_id = id;
  }
  return copies.data();
}

// Writes rows x [count] times columns w of a panel to y [count, COLUMNS]. A
// single tile walks down the whole panel; of several, each walks DEPTH rows at
// a time.
template <Weights W, int COLUMNS>
void Products::sums(const float* w, const float* x, long count,
                    float* y) const {
  const long most = count > MOST_ROWS ? DEPTH : depth();
  for (long k = 0; k < depth(); k += most)
    strips<COLUMNS, W>(x + k * inputs(W), count, step(),
                       w + words(W, k * PANEL), y,
                       std::min(most, depth() - k), k > 0);
}

// Multiplies rows y [count, COLUMNS] by factors [COLUMNS].
template <int COLUMNS>
static void scale_columns(float* y, long count, const float* factors) {
  for (long row = 0; row < count; row++, y += COLUMNS)
    for (int j = 0; j < COLUMNS; j += LANES)
      store(y + j, load(y + j) * load(factors + j));
}

// Computes COLUMNS columns of a product for a block of rows.
template <int COLUMNS>
void Products::unit(long i) const {
  const long begin = i / 2 % num_blocks * BLOCK_ROWS;
  const long count = std::min<long>(BLOCK_ROWS, rows - begin);
  const auto [p, column] = place(i);
  const long out = p->kernels[0].out;
  const long width = std::min<long>(COLUMNS, out - column);
  // The second half of a last panel may be empty.
  if (width <= 0) return;
  const float* rows = input() + begin * step();
  const auto sums = weights == WHOLE  ? &Products::sums<WHOLE, COLUMNS>
                    : weights == HALF ? &Products::sums<HALF, COLUMNS>
                    : weights == BYTES
                        ? &Products::sums<BYTES, COLUMNS>
                        : &Products::sums<ROUNDED, COLUMNS>;
  alignas(64) float results[2][BLOCK_ROWS * COLUMNS];
  for (int j = 0; j < p->num_kernels; j++) {
    const Kernel& kernel = p->kernels[j];
    // Column 96 is column 32 of panel 1, which begins panel_words() words on.
    const float* panel = kernel.panels + column / PANEL * panel_words();
    const long first = column % PANEL;
    (this->*sums)(panel + words(weights, first), rows, count, results[j]);
    if (weights == BYTES)
      scale_columns<COLUMNS>(results[j], count,
                             panel + panel_words() - PANEL + first);
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
  const Products empty((const float*)x.untyped_data(), rows, in);
  long weights = 0;
  for (size_t i = 0; i < results.size(); i++)
    weights += in * (**results.get<ffi::AnyBuffer>(i)).dimensions().back();
  auto stages = Stages::create(worth(pool, weights, rows));
  for (size_t begin = 0; begin < results.size(); begin += MOST_PRODUCTS) {
    // A copy has the number of `empty`: the rows are copied once for all.
    Products products = empty;
    const size_t end = std::min(begin + MOST_PRODUCTS, results.size());
    for (size_t i = begin; i < end; i++) {
      ffi::AnyBuffer array = *arrays.get<ffi::AnyBuffer>(numbers[i]);
      ffi::AnyBuffer y = **results.get<ffi::AnyBuffer>(i);
      Kernel kernel;
      kernel.panels = words_of(array, firsts[i]);
      kernel.weights = weights_of(array, rounds);
      kernel.out = y.dimensions().back();
      products.add(kernel, (float*)y.untyped_data());
    }
    products.stage(*stages);
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
