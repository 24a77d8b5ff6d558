// See attention.h.
#include "attention.h"

#include <cmath>
#include <iterator>
#include <vector>

constexpr long MOST = 6;  // queries at once

// Makes scores [width] weights, exp(score + bias + mask - max), and returns
// their sum. Scores from `begin` to `seen` are looked at, of whole vectors in
// all.
static float softmax(float* scores, const float* bias, const float* mask,
                     long begin, long seen, long width) {
  for (const float* added : {bias, mask})
    for (long i = 0; added && i < seen; i++) scores[i] += added[i];
  std::fill(scores, scores + begin, -INFINITY);
  std::fill(scores + seen, scores + width, -INFINITY);
  Floats tops = load(scores), sums = {};
  for (long i = LANES; i < width; i += LANES) {
    const Floats x = load(scores + i);
    tops = x > tops ? x : tops;
  }
  float top = tops[0], sum = 0;
  for (int i = 1; i < LANES; i++) top = tops[i] > top ? tops[i] : top;
  for (long i = 0; i < width; i += LANES) {
    const Floats x = exponential(load(scores + i) - top);
    store(scores + i, x);
    sums += x;
  }
  for (int i = 0; i < LANES; i++) sum += sums[i];
  return sum;
}

// Writes x [M, n] times w [n, N * LANES] to y. Rows are a step apart.
template <int M, int N>
static inline void tile(const float* x, long x_step, const float* w,
                        long w_step, float* y, long y_step, long n) {
  Floats sum[M][N] = {};
  for (long k = 0; k < n; k++, w += w_step) {
    Floats weights[N];
#pragma GCC unroll 16
    for (int v = 0; v < N; v++) keep(weights[v] = load(w + v * LANES));
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 16
      for (int v = 0; v < N; v++)
        sum[m][v] = multiply_add(x[m * x_step + k], weights[v], sum[m][v]);
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < N; v++) store(y + m * y_step + v * LANES, sum[m][v]);
}

// The same for any number of columns from LANES on; the last tile may overlap.
template <int M>
static void product(const float* x, long x_step, const float* w, long w_step,
                    float* y, long y_step, long n, long columns) {
  constexpr int N = vectors(M);
  long j = 0;
  for (; j + N * LANES <= columns; j += N * LANES)
    tile<M, N>(x, x_step, w + j, w_step, y + j, y_step, n);
  for (; j < columns; j += LANES) {
    const long at = std::min(j, columns - LANES);
    tile<M, 1>(x, x_step, w + at, w_step, y + at, y_step, n);
  }
}

// Returns rows [n, columns] that are at least a vector wide: copied to `room`
// [n, LANES] where they are not.
static const float* widened(const float* rows, long n, long columns,
                            float* room) {
  if (columns >= LANES) return rows;
  for (long i = 0; i < n; i++)
    std::copy_n(rows + i * columns, columns, room + i * LANES);
  return room;
}

static long whole_vectors(long n) { return (n + LANES - 1) / LANES * LANES; }

void Attention::operator()(long unit) const {
  static thread_local std::vector<float> room;
  const long heads = H / group, b = unit / heads, head = unit % heads;
  const long kept = kept_row(b) * heads + head;
  const long wide = whole_vectors(L);
  const long depth = std::max<long>(D, LANES);
  room.resize(
      std::max<long>(room.size(), (D + L) * LANES + MOST * (wide + depth)));
  float* scores = room.data() + (D + L) * LANES;
  const float* keys = widened(key + kept * D * L, D, L, room.data());
  const float* values =
      widened(value + kept * L * D, L, D, room.data() + D * LANES);
  constexpr decltype(&Attention::attend<1>) ATTEND[] = {
      &Attention::attend<1>, &Attention::attend<2>, &Attention::attend<3>,
      &Attention::attend<4>, &Attention::attend<5>, &Attention::attend<6>};
  static_assert(std::size(ATTEND) == MOST);
  for (long h = head * group; h < (head + 1) * group; h++) {
    long n = 0;
    for (long tiles = (N + MOST - 1) / MOST; tiles; tiles--) {
      const long m = (N - n + tiles - 1) / tiles;
      (this->*ATTEND[m - 1])(b, h, n, keys, values, scores);
      n += m;
    }
  }
}

// Writes the results of queries n to n + M - 1.
template <int M>
void Attention::attend(long b, long h, long n, const float* keys,
                       const float* values, float* scores) const {
  const long kept = kept_row(b);
  long ends[M];  // of what each query looks at
  for (int m = 0; m < M; m++) {
    const long end = slot ? slot[b * N + n + m] + 1 : reach ? reach[kept] : L;
    ends[m] = std::clamp<long>(end, 1, L);
  }
  const long width = whole_vectors(*std::max_element(ends, ends + M));
  const long seen = std::min(width, L), depth = std::max<long>(D, LANES);
  const long first = ((b * N + n) * H + h) * D;
  float* context = scores + M * width;
  product<M>(query + first, H * D, keys, std::max<long>(L, LANES), scores,
             width, D, std::max<long>(seen, LANES));
  float sums[M];
  for (int m = 0; m < M; m++) {
    const long moved = (n + m) * bias_query - (slot ? ends[m] - 1 : 0);
    sums[m] = softmax(
        scores + m * width,
        bias ? bias + kept * bias_row + h * bias_head + moved : nullptr,
        mask ? mask + kept * L : nullptr,
        window ? std::max<long>(ends[m] - window, 0) : 0, ends[m], width);
  }
  product<M>(scores, width, values, depth, context, depth, seen, depth);
  for (int m = 0; m < M; m++)
    for (long d = 0; d < D; d++)
      y[first + m * H * D + d] = context[m * depth + d] / sums[m];
}

static ffi::Error attend(ffi::ThreadPool pool, ffi::BufferR4<ffi::F32> query,
                         ffi::BufferR4<ffi::F32> key,
                         ffi::BufferR4<ffi::F32> value,
                         ffi::BufferR4<ffi::F32> bias,
                         ffi::BufferR1<ffi::S32> reach,
                         ffi::ResultBufferR4<ffi::F32> y) {
  const auto sizes = query.dimensions(), steps = bias.dimensions();
  const long B = sizes[0], N = sizes[1], H = sizes[2], D = sizes[3];
  const long L = key.dimensions()[3], heads = steps[1], queries = steps[2];
  long farthest = 1;
  for (long b = 0; b < B; b++)
    farthest = std::max<long>(farthest, reach.typed_data()[b]);
  Attention all;
  all.query = query.typed_data();
  all.key = key.typed_data();
  all.value = value.typed_data();
  all.y = y->typed_data();
  all.N = N, all.H = H, all.D = D, all.L = L;
  all.bias = bias.typed_data();
  // An axis of one bias is broadcast.
  all.bias_row = steps[0] > 1 ? heads * queries * L : 0;
  all.bias_head = heads > 1 ? queries * L : 0;
  all.bias_query = queries > 1 ? L : 0;
  all.reach = reach.typed_data();
  const long weights = 2 * B * H * D * std::min(farthest, L);
  auto stages = Stages::create(worth(pool, weights, N));
  stages->add(B * H, [all](long i, long) { all(i); });
  Stages::run(pool, stages);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(Attend, attend,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR4<ffi::F32>>());
