// Rows [M, in] times kernels packed as panels [P, in, 64], called by XLA.
//
// Panel p of a kernel [in, out] holds its columns 64 p to 64 p + 63, so that a
// thread reads one stream of memory. Every sum goes over the inputs in order,
// in one accumulator: a row's result, to the bit, depends neither on the rows
// beside it nor on which thread computes it.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "shared.h"

constexpr int BLOCK_ROWS = 48;  // of a unit of work; its sums fit the L1 cache
constexpr int DEPTH = 128;      // rows of a panel that tiles read in turn

typedef uint16_t Halves __attribute__((vector_size(LANES * 2), aligned(2)));

// A bfloat16 is the upper half of a float32.
static inline Floats load(const uint16_t* p) {
  return (Floats)(__builtin_convertvector(*(const Halves*)p, Words) << 16);
}

// Adds x [M, n] times w [n, N * LANES] to sums, and fetches the weights DEPTH
// rows on. Rows of w and sums are PANEL apart, those of x are `in` apart.
template <int M, int N, typename Weight>
static inline void tile(const float* x, long in, const Weight* w, float* sums,
                        long n) {
  Floats sum[M][N];
  for (int m = 0; m < M; m++)
    for (int v = 0; v < N; v++) sum[m][v] = load(sums + m * PANEL + v * LANES);
  for (long k = 0; k < n; k++, w += PANEL) {
    for (int j = 0; j < N * LANES; j += 64 / sizeof(Weight))
      __builtin_prefetch(w + DEPTH * PANEL + j, 0, 2);
    Floats weights[N];
#pragma GCC unroll 16
    for (int v = 0; v < N; v++) weights[v] = load(w + v * LANES);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 16
      for (int v = 0; v < N; v++)
        sum[m][v] = multiply_add(x[m * in + k], weights[v], sum[m][v]);
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < N; v++) store(sums + m * PANEL + v * LANES, sum[m][v]);
}

// The same for all columns of a panel.
template <int M, typename Weight>
static void strip(const float* x, long in, const Weight* w, float* sums,
                  long n) {
  constexpr int N = vectors(M);
  for (int j = 0; j < PANEL; j += N * LANES)
    tile<M, N>(x, in, w + j, sums + j, n);
}

// The same for any number of rows, in tiles as even as can be.
template <typename Weight>
static void strips(const float* x, long rows, long in, const Weight* w,
                   float* sums, long n) {
  constexpr decltype(&strip<1, Weight>) STRIPS[] = {
      strip<1, Weight>, strip<2, Weight>, strip<3, Weight>,
      strip<4, Weight>, strip<5, Weight>, strip<6, Weight>};
  constexpr long MOST = std::size(STRIPS);
  for (long tiles = (rows + MOST - 1) / MOST; tiles; tiles--) {
    const long m = (rows + tiles - 1) / tiles;
    STRIPS[m - 1](x, in, w, sums, n);
    x += m * in, sums += m * PANEL, rows -= m;
  }
}

// Products of the same rows with several kernels, cut into units of work: one
// panel and at most BLOCK_ROWS rows each.
template <typename Weight>
struct Products {
  struct Product {
    const Weight* panels;
    float* y;
    long out, first;  // columns, and the number of panels before these
  };
  const float* x;
  long rows, in, num_blocks;
  std::vector<Product> products;

  void operator()(long i) const {
    const Product* p = &products.back();
    while (p->first > i / num_blocks) p--;
    const long panel = i / num_blocks - p->first;
    const long begin = i % num_blocks * BLOCK_ROWS;
    const long count = std::min<long>(BLOCK_ROWS, rows - begin);
    const Weight* w = p->panels + panel * in * PANEL;
    alignas(64) float sums[BLOCK_ROWS * PANEL];
    std::memset(sums, 0, count * PANEL * sizeof(float));
    for (long k = 0; k < in; k += DEPTH)
      strips(x + begin * in + k, count, in, w + k * PANEL, sums,
             std::min<long>(DEPTH, in - k));
    const long width = std::min<long>(PANEL, p->out - panel * PANEL);
    for (long row = 0; row < count; row++)
      std::memcpy(p->y + (begin + row) * p->out + panel * PANEL,
                  sums + row * PANEL, width * sizeof(float));
  }
};

template <typename Weight>
static ffi::Error multiply(ffi::ThreadPool& pool, ffi::AnyBuffer x,
                           ffi::RemainingArgs kernels,
                           ffi::RemainingRets results) {
  Products<Weight> all;
  all.x = (const float*)x.untyped_data();
  all.in = x.dimensions().back();
  all.rows = (long)x.element_count() / std::max(all.in, 1l);
  all.num_blocks = (all.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  long panels = 0;
  for (size_t i = 0; i < results.size(); i++) {
    ffi::AnyBuffer kernel = *kernels.get<ffi::AnyBuffer>(i);
    ffi::AnyBuffer y = **results.get<ffi::AnyBuffer>(i);
    all.products.push_back({(const Weight*)kernel.untyped_data(),
                            (float*)y.untyped_data(), y.dimensions().back(),
                            panels});
    panels += kernel.dimensions()[0];
  }
  share(pool, panels * PANEL * all.in, all.rows, panels * all.num_blocks,
        std::move(all));
  return ffi::Error::Success();
}

static ffi::Error rows_times_panels(ffi::ThreadPool pool, ffi::AnyBuffer x,
                                    ffi::RemainingArgs kernels,
                                    ffi::RemainingRets results) {
  auto type = kernels.get<ffi::AnyBuffer>(0)->element_type();
  if (type == ffi::BF16) return multiply<uint16_t>(pool, x, kernels, results);
  return multiply<float>(pool, x, kernels, results);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(RowsTimesPanels, rows_times_panels,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets());
