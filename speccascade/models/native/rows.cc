// Rows [M, in] times kernels packed as panels [P, in, 64], called by XLA.
//
// Panel p of a kernel [in, out] holds its columns 64 p to 64 p + 63, so that a
// thread reads one stream of memory. Every sum goes over the inputs in order,
// in one accumulator: a row's result, to the bit, depends neither on the rows
// beside it nor on which thread computes it.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int LANES = 8, REGISTERS = 16;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif
constexpr int PANEL = 64;
constexpr int BLOCK_ROWS = 48;  // of a unit of work; its sums fit the L1 cache
constexpr int DEPTH = 128;      // rows of a panel that tiles read in turn
// Multiplications, as if of six rows, that are worth the wake of a thread.
constexpr long LEAST_SHARED = 3 << 16;

typedef float Floats __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2), aligned(2)));

static inline Floats load(const float* p) { return *(const Floats*)p; }

// A bfloat16 is the upper half of a float32.
static inline Floats load(const uint16_t* p) {
  return (Floats)(__builtin_convertvector(*(const Halves*)p, Words) << 16);
}

// The most vectors side by side such that sums, weights and an input of M rows
// fit the registers.
constexpr int vectors(int M) {
  int n = PANEL / LANES;
  while (n > 1 && M * n + (M > 1 ? n : 1) + 1 > REGISTERS) n /= 2;
  return n;
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
      for (int v = 0; v < N; v++) sum[m][v] += x[m * in + k] * weights[v];
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < N; v++)
      *(Floats*)(sums + m * PANEL + v * LANES) = sum[m][v];
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
struct Job {
  struct Product {
    const Weight* panels;
    float* y;
    long out, first;  // columns, and the number of panels before these
  };
  const float* x;
  long rows, in, num_blocks, num_units, step;
  std::vector<Product> products;
  std::atomic<long> next{0}, busy{0};

  void unit(long i) const {
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

  void work() {
    busy++;
    for (long i; (i = next.fetch_add(step)) < num_units;)
      for (long j = i; j < std::min(i + step, num_units); j++) unit(j);
    busy--;
  }
};

template <typename Weight>
static ffi::Error multiply(ffi::ThreadPool& pool, ffi::AnyBuffer x,
                           ffi::RemainingArgs kernels,
                           ffi::RemainingRets results) {
  auto job = std::make_shared<Job<Weight>>();
  job->x = (const float*)x.untyped_data();
  job->in = x.dimensions().back();
  job->rows = (long)x.element_count() / std::max(job->in, 1l);
  long panels = 0;
  for (size_t i = 0; i < results.size(); i++) {
    ffi::AnyBuffer kernel = *kernels.get<ffi::AnyBuffer>(i);
    ffi::AnyBuffer y = **results.get<ffi::AnyBuffer>(i);
    job->products.push_back({(const Weight*)kernel.untyped_data(),
                             (float*)y.untyped_data(), y.dimensions().back(),
                             panels});
    panels += kernel.dimensions()[0];
  }
  job->num_blocks = (job->rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  job->num_units = panels * job->num_blocks;
  const long shares =
      panels * PANEL * job->in * std::max(job->rows, 6l) / 6 / LEAST_SHARED;
  const long threads = std::min<long>(pool.num_threads(), shares);
  job->step = std::max(1l, job->num_units / std::max(1l, 4 * threads));
  for (long i = 1; i < threads; i++) pool.Schedule([job] { job->work(); });
  job->work();
  // A thread that begins only now finds nothing to do: no need to wait for it.
  while (job->busy > 0) std::this_thread::yield();
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
