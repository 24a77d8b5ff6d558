// See attention.h.
#include "attention.h"

#include <cmath>
#include <iterator>
#include <vector>

constexpr long MOST_QUERIES = 6;  // of a tile

// Adds numbers to scores [n], if there are any.
static void add(const float* added, long n, float* scores) {
  for (long i = 0; added && i < n; i++) scores[i] += added[i];
}

// Turns scores [width] into weights, exp(score - max), and returns the sum of
// the weights. The query sees slots `begin` to `seen` - 1; `width` is whole
// vectors, `seen` or more.
static float softmax(float* scores, long begin, long seen, long width) {
  // Slots that are not seen have weight 0, whatever they hold.
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

// Writes x [M, n] times w [n, N * LANES] to y [M, N * LANES]. The rows of each
// are a step apart. The M * N sums stay in registers while the tile walks down
// w.
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

// Writes x [M, n] times w [n, columns] to y, for LANES columns or more.
//
// Columns past the wide tiles are done a vector at a time. With 16 lanes, 4
// vectors a tile and 100 columns: one tile of 64, then vectors from 64 and 80
// on, and the last from 100 - 16 = 84 on, which computes columns 84 to 95 once
// more.
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

// Returns rows [n, columns] whose rows can be read by whole vectors. Where a
// row is shorter than a vector, the rows are copied to `room` [n, LANES]; what
// stands in the lanes after a row is computed with and not looked at.
static const float* widened(const float* rows, long n, long columns,
                            float* room) {
  if (columns >= LANES) return rows;
  for (long i = 0; i < n; i++)
    std::copy_n(rows + i * columns, columns, room + i * LANES);
  return room;
}

static long whole_vectors(long n) { return (n + LANES - 1) / LANES * LANES; }

void Attention::operator()(long unit) const {
  static thread_local std::vector<float> memory;
  const long K = H / group, b = unit / K, head = unit % K;
  const long cache_unit = cache_row(b) * K + head;
  // Room for widened keys [D, LANES] and values [L, LANES], then for the scores
  // and the results of one tile of queries.
  const long wide = whole_vectors(L), depth = std::max<long>(D, LANES);
  const long needed = (D + L) * LANES + MOST_QUERIES * (wide + depth);
  memory.resize(std::max<long>(memory.size(), needed));
  float* scores = memory.data() + (D + L) * LANES;
  const float* keys = widened(key + cache_unit * D * L, D, L, memory.data());
  const float* values =
      widened(value + cache_unit * L * D, L, D, memory.data() + D * LANES);
  constexpr decltype(&Attention::attend<1>) ATTEND[] = {
      &Attention::attend<1>, &Attention::attend<2>, &Attention::attend<3>,
      &Attention::attend<4>, &Attention::attend<5>, &Attention::attend<6>};
  static_assert(std::size(ATTEND) == MOST_QUERIES);
  for (long h = head * group; h < (head + 1) * group; h++) {
    // Tiles as even as can be: 8 queries are 4 and 4.
    long n = 0;
    for (long tiles = (N + MOST_QUERIES - 1) / MOST_QUERIES; tiles; tiles--) {
      const long m = (N - n + tiles - 1) / tiles;
      (this->*ATTEND[m - 1])(b, h, n, keys, values, scores);
      n += m;
    }
  }
}

// Adds the biases of distances to the scores of the slots in a tree's window,
// for the query at a slot of row b; those that it does not see are -infinity.
// distances[d] is the bias of distance d, if there are biases.
void Attention::look_at_window(long b, long slot, const float* distances,
                               float* scores) const {
  const long from = cache_row(b), first = tree.first(b);
  const bool* seen = tree.seen_at(b, from, slot);
  const int32_t* depth = tree.depth + from * tree.W;
  const long own = tree.depth_at(b, from, slot);
  // A window that begins before the row, or ends after the cache, is that of a
  // row whose results mean nothing.
  for (long c = std::max(-first, 0l); c < std::min(tree.W, L - first); c++) {
    // A query always sees itself: weights without a sum would be NaN.
    const long distance = std::clamp(depth[c] - own, 1 - L, L - 1);
    const bool is_seen = seen[c] && (!window || -distance < window);
    float& score = scores[first + c];
    if (!is_seen && first + c != slot)
      score = -INFINITY;
    else if (distances)
      score += distances[distance];
  }
}

// Writes the results of queries n to n + M - 1.
template <int M>
void Attention::attend(long b, long h, long n, const float* keys,
                       const float* values, float* scores) const {
  const long from = cache_row(b);
  long ends[M];  // the first slot that each query does not see
  for (int m = 0; m < M; m++) {
    long end = slot ? slot[b * N + n + m] + 1 : reach ? reach[from] : L;
    // A token of a tree may see any slot of the window.
    if (tree) end = tree.first(b) + tree.W;
    ends[m] = std::clamp<long>(end, 1, L);
  }
  const long width = whole_vectors(*std::max_element(ends, ends + M));
  const long seen = std::min(width, L), depth = std::max<long>(D, LANES);
  const long first = ((b * N + n) * H + h) * D;
  float* context = scores + M * width;
  // Scores of all slots that any of the queries sees.
  product<M>(query + first, H * D, keys, std::max<long>(L, LANES), scores,
             width, D, std::max<long>(seen, LANES));
  float sums[M];
  for (int m = 0; m < M; m++) {
    float* own_scores = scores + m * width;
    const float* biases =
        bias ? bias + from * bias_row + h * bias_head + (n + m) * bias_query
             : nullptr;
    // The position of the query, and how many slots hold a chain.
    long place = ends[m] - 1, chain = ends[m];
    if (tree) {
      const long own_slot = slot[b * N + n + m], first = tree.first(b);
      const long depth = tree.depth_at(b, from, own_slot);
      place = std::clamp<long>(first + depth, 0, L - 1);
      chain = std::clamp<long>(first, 0, L);
      look_at_window(b, own_slot, biases, own_scores);
    }
    // With L = 4 a row of 2 L - 1 = 7 biases has distance 0 at entry 3, where
    // `bias` points. For a query at position 2 slot 0 is at distance -2: its
    // biases begin 2 entries earlier, at entry 1.
    add(biases ? biases - (slot ? place : 0) : nullptr, chain, own_scores);
    add(mask ? mask + from * L : nullptr, ends[m], own_scores);
    const long begin = window ? std::max<long>(place + 1 - window, 0) : 0;
    sums[m] = softmax(own_scores, std::min(begin, chain), ends[m], width);
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
  Attention attention;
  attention.query = query.typed_data();
  attention.key = key.typed_data();
  attention.value = value.typed_data();
  attention.y = y->typed_data();
  attention.N = N;
  attention.H = H;
  attention.D = D;
  attention.L = L;
  attention.bias = bias.typed_data();
  // An axis of length 1 is broadcast.
  attention.bias_row = steps[0] > 1 ? heads * queries * L : 0;
  attention.bias_head = heads > 1 ? queries * L : 0;
  attention.bias_query = queries > 1 ? L : 0;
  attention.reach = reach.typed_data();
  const long weights = 2 * B * H * D * std::min(farthest, L);
  auto stages = Stages::create(worth(pool, weights, N));
  stages->add(B * H, [attention](long i, long) { attention(i); });
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
