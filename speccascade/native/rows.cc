// See rows.h.
#include "rows.h"

#include <cmath>
#include <cstring>
#include <iterator>

constexpr int BLOCK_ROWS = 48;  // of a unit of work; its sums fit the L1 cache
constexpr int DEPTH = 128;      // rows of a panel that tiles read in turn
constexpr int AHEAD = 64;       // rows of a panel that are fetched ahead

typedef uint32_t Halves
    __attribute__((vector_size(LANES * 4), aligned(2), may_alias));

// Loads two vectors. A bfloat16 is the upper half of a float32; the first has
// the even ones of them, the second the odd ones: see `weave`.
static inline void load_two(const float* p, Floats* x) {
  x[0] = load(p), x[1] = load(p + LANES);
}
static inline void load_two(const uint16_t* p, Floats* x) {
  const Words pairs = *(const Halves*)p;
  x[0] = (Floats)(pairs << 16), x[1] = (Floats)(pairs & 0xffff0000u);
}

// Puts sums of even and odd columns, a vector of each in turn, in order.
static void weave(float* sums, long n) {
  for (float* x = sums; x < sums + n; x += 2 * LANES) {
    const Floats even = load(x), odd = load(x + LANES);
    for (int i = 0; i < LANES; i++) x[2 * i] = even[i], x[2 * i + 1] = odd[i];
  }
}

// Adds x [M, n] times w [n, N * LANES] to sums, and fetches the weights AHEAD
// rows on. Rows of w are PANEL apart, those of sums `step`, those of x `in`.
template <int M, int N, typename Weight>
static inline void tile(const float* x, long in, const Weight* w, float* sums,
                        long step, long n) {
  Floats sum[M][N];
  for (int m = 0; m < M; m++)
    for (int v = 0; v < N; v++) sum[m][v] = load(sums + m * step + v * LANES);
  for (long k = 0; k < n; k++, w += PANEL) {
    for (int j = 0; j < N * LANES; j += 64 / sizeof(Weight))
      __builtin_prefetch(w + AHEAD * PANEL + j, 0, 2);
    Floats weights[N];
#pragma GCC unroll 16
    for (int v = 0; v < N; v += 2) load_two(w + v * LANES, weights + v);
#pragma GCC unroll 16
    for (int v = 0; v < N; v++) keep(weights[v]);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 16
      for (int v = 0; v < N; v++)
        sum[m][v] = multiply_add(x[m * in + k], weights[v], sum[m][v]);
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < N; v++) store(sums + m * step + v * LANES, sum[m][v]);
}

// The same for so many columns of a panel; rows of sums are as far apart.
template <int M, int COLUMNS, typename Weight>
static void strip(const float* x, long in, const Weight* w, float* sums,
                  long n) {
  constexpr int N = std::min(vectors(M), COLUMNS / LANES);
  static_assert(N % 2 == 0);
  for (int j = 0; j < COLUMNS; j += N * LANES)
    tile<M, N>(x, in, w + j, sums + j, COLUMNS, n);
}

// The same for any number of rows, in tiles as even as can be.
template <int COLUMNS, typename Weight>
static void strips(const float* x, long rows, long in, const Weight* w,
                   float* sums, long n) {
  constexpr decltype(&strip<1, COLUMNS, Weight>) STRIPS[] = {
      strip<1, COLUMNS, Weight>, strip<2, COLUMNS, Weight>,
      strip<3, COLUMNS, Weight>, strip<4, COLUMNS, Weight>,
      strip<5, COLUMNS, Weight>, strip<6, COLUMNS, Weight>};
  constexpr long MOST = std::size(STRIPS);
  for (long tiles = (rows + MOST - 1) / MOST; tiles; tiles--) {
    const long m = (rows + tiles - 1) / tiles;
    STRIPS[m - 1](x, in, w, sums, n);
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

void Products::add(std::vector<Kernel> kernels, float* y, bool is_added,
                   float factor) {
  const long out = kernels[0].out;
  products.push_back({std::move(kernels), y, is_added, factor, panels});
  panels += (out + PANEL - 1) / PANEL;
}

void Products::stage(Stages& stages) && {
  auto all = std::make_shared<Products>(std::move(*this));
  const auto run = [all](long i, long n) {
    n > 1 ? all->unit<PANEL>(i) : all->unit<PANEL / 2>(i);
  };
  const auto fetch = [all](long i) {
    const auto [product, column] = all->place(i);
    const Kernel& kernel = product->kernels[0];
    const long row = PANEL * (kernel.is_half ? 2 : 4);
    const char* at =
        (const char*)kernel.panels + column / PANEL * all->in * row;
    for (long j = 0; j < std::min<long>(AHEAD, all->in) * row; j += 64)
      __builtin_prefetch(at + j, 0, 2);
  };
  stages.add({2 * panels * num_blocks, run, 2, fetch});
}

// Returns the product that a unit is of, and its first column.
std::pair<const Products::Product*, long> Products::place(long i) const {
  const long number = i / 2 / num_blocks;
  const Product* p = &products.back();
  while (p->first > number) p--;
  return {p, (number - p->first) * PANEL + i % 2 * PANEL / 2};
}

// Returns the rows [rows, in] that are multiplied. Each thread norms them anew,
// once in a stage: less work than a stage of its own.
const float* Products::input() const {
  static thread_local std::vector<float> normed;
  static thread_local long normed_id;
  if (!scale) return x;
  if (normed_id != id) {
    normed.resize(std::max<size_t>(normed.size(), rows * in));
    for (long row = 0; row < rows; row++)
      norm(x + row * in, scale, epsilon, in, normed.data() + row * in);
    normed_id = id;
  }
  return normed.data();
}

// Writes rows x [count, in] times columns w of a panel to y [count, COLUMNS].
template <typename Weight, int COLUMNS>
void Products::sums(const Weight* w, const float* x, long count,
                    float* y) const {
  std::memset(y, 0, count * COLUMNS * sizeof(float));
  for (long k = 0; k < in; k += DEPTH)
    strips<COLUMNS>(x + k, count, in, w + k * PANEL, y,
                    std::min<long>(DEPTH, in - k));
  if (sizeof(Weight) == 2) weave(y, count * COLUMNS);
}

template <int COLUMNS>
void Products::unit(long i) const {
  const long begin = i / 2 % num_blocks * BLOCK_ROWS;
  const long count = std::min<long>(BLOCK_ROWS, rows - begin);
  const auto [p, column] = place(i);
  const long out = p->kernels[0].out;
  const long width = std::min<long>(COLUMNS, out - column);
  if (width <= 0) return;
  const float* rows = input() + begin * in;
  alignas(64) float results[2][BLOCK_ROWS * COLUMNS];
  for (size_t j = 0; j < p->kernels.size(); j++) {
    const Kernel& kernel = p->kernels[j];
    const long at = column / PANEL * in * PANEL + column % PANEL;
    if (kernel.is_half)
      sums<uint16_t, COLUMNS>((const uint16_t*)kernel.panels + at, rows, count,
                              results[j]);
    else
      sums<float, COLUMNS>((const float*)kernel.panels + at, rows, count,
                           results[j]);
    activate(kernel.activation, results[j], count * COLUMNS);
  }
  if (p->kernels.size() > 1)
    for (long j = 0; j < count * COLUMNS; j++) results[0][j] *= results[1][j];
  for (long row = 0; row < count; row++) {
    float* y = p->y + (begin + row) * out + column;
    const float* result = results[0] + row * COLUMNS;
    for (long j = 0; j < width; j++)
      y[j] = p->is_added ? y[j] + result[j] : result[j] * p->factor;
  }
}

static ffi::Error rows_times_panels(ffi::ThreadPool pool, ffi::AnyBuffer x,
                                    ffi::RemainingArgs kernels,
                                    ffi::RemainingRets results) {
  const long in = x.dimensions().back();
  const long rows = (long)x.element_count() / std::max(in, 1l);
  Products all((const float*)x.untyped_data(), rows, in);
  long weights = 0;
  for (size_t i = 0; i < results.size(); i++) {
    ffi::AnyBuffer kernel = *kernels.get<ffi::AnyBuffer>(i);
    ffi::AnyBuffer y = **results.get<ffi::AnyBuffer>(i);
    all.add({{kernel.untyped_data(), kernel.element_type() == ffi::BF16,
              y.dimensions().back()}},
            (float*)y.untyped_data());
    weights += kernel.element_count();
  }
  auto stages = std::make_shared<Stages>(worth(pool, weights, rows));
  std::move(all).stage(*stages);
  Stages::run(pool, stages);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(RowsTimesPanels, rows_times_panels,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets());
