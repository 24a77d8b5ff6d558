// A layer of a T5's decoder in one to three launches, for blocks of a few tokens.
//
//   attend_self    norm, queries, keys, values, attention with the writes to the
//                  cache, and the output's products
//   attend_source  the same for the source, whose keys and values are given
//   gated          norm, gate and up, activation, and the way back
//
// A cluster of 8 blocks has one head, or one slice of the MLP's width. Block r
// of a cluster has the r-th part of the inputs of the first products and the
// r-th part of the outputs of the second ones, so that each weight is read by
// one block, once. A block first asks for what the launch before it computed,
// then starts all copies of weights to shared memory: they come while it adds up
// rows, multiplies and waits for its cluster. What the blocks of a cluster need of
// one another they read from each other's shared memory.
//
// In these, clusters do not wait for one another. Each writes its part of the sum
// over heads, or over slices, and the next launch adds the parts to the residual
// before its norm, in one order: the numbers of a token depend neither on the
// run nor on the other tokens of its block. The norm's factor multiplies the
// products, after they are added over the cluster.
//
// A layer is fewer launches where clusters do wait for one another; its numbers
// are the same, bit for bit:
//
//   attend_both    both attentions
//   layer          all three, for small models
//
// Axes: M tokens of all rows, E model width, C outputs of the first products,
// D head width, L slots, S the slots of one block.
#ifdef ON_CPU
#include "emulated.h"
#else
#include "device.h"
#endif

DEFINE_SIZE(ROWS)      // of the batch
DEFINE_SIZE(FED)       // tokens of a row
DEFINE_SIZE(EMB)       // E
DEFINE_SIZE(HEADS)     // heads
DEFINE_SIZE(WIDTH)     // D
DEFINE_SIZE(SLOTS)     // L
DEFINE_SIZE(PARTS)     // sums that are added to the residual first
DEFINE_SIZE(BIAS_ROW)  // strides of the bias; 0 where it is the same for all
DEFINE_SIZE(BIAS_HEAD)
DEFINE_SIZE(BIAS_TOKEN)
DEFINE_SIZE(SOURCE_SLOTS)  // of the source, where a layer is one launch
DEFINE_SIZE(SOURCE_BIAS_ROW)
DEFINE_SIZE(SOURCE_BIAS_HEAD)
DEFINE_SIZE(SOURCE_BIAS_TOKEN)
DEFINE_SIZE(INNER)  // width of the MLP
DEFINE_SIZE(SLICE)  // of one cluster
DEFINE_SIZE(GATES)  // kernels before the activation: 1 or 2
DEFINE_SIZE(ACTIVATION_0)
DEFINE_SIZE(ACTIVATION_1)
DEFINE_SIZE(NEXT_0)  // bytes of later launches' kernels
DEFINE_SIZE(NEXT_1)
DEFINE_SIZE(NEXT_2)
DEFINE_SIZE(NEXT_3)
DEFINE_SIZE(NEXT_4)
DEFINE_SIZE(NEXT_5)
DEFINE_SIZE(NEXT_6)
DEFINE_SIZE(NEXT_7)
DEFINE_SIZE(PACKETS)  // that a launch exchanges
DEFINE_SIZE(SHARED)  // bytes of shared memory

constexpr int kLanes = 32, kWarps = kThreads / kLanes;
constexpr int kGroups = 2;     // of the first products' weights
constexpr int kMostTiles = 4;  // of 16 outputs that a warp adds up
constexpr int kPrefetched = 4096;  // bytes of one request
// What a thread asks for before the copies of weights: loads come behind them.
constexpr int kAsked = 4, kParts = 16;       // pieces of rows, and their parts
constexpr int kAskedKeys = 8, kAskedBias = 2;
constexpr float kNone = -1e30f;    // the score of a slot that does not exist
constexpr float kEpsilon = 1e-6f;

DEVICE int lane() { return unsigned(thread()) % kLanes; }
DEVICE int warp() { return unsigned(thread()) / kLanes; }
DEVICE int rank() { return unsigned(block()) % kCluster; }
DEVICE int turns(int count) { return (count + kThreads - 1) / kThreads; }
DEVICE int num_tokens() { return size_ROWS() * size_FED(); }
// The row of a token, and its place among the fed tokens.
DEVICE int row_of(int token) {
  return size_ROWS() == 1 ? 0 : unsigned(token) / unsigned(size_FED());
}
DEVICE int place_of(int token) { return token - row_of(token) * size_FED(); }

// Returns bytes from row to row, an odd number of 16 bytes: 8 rows that are read
// at once then lie in different banks.
DEVICE int pitch(int num_bytes) { return (num_bytes / 16 | 1) * 16; }

struct Arena {
  char* at;

  DEVICE char* take(int num_bytes) {
    char* taken = at;
    at += (num_bytes + 15) / 16 * 16;
    return taken;
  }
  DEVICE float* floats(int count) {
    return reinterpret_cast<float*>(take(count * 4));
  }
  DEVICE bf16* halves(int count) {
    return reinterpret_cast<bf16*>(take(count * 2));
  }
};

// Calls f(row, column) for all places of a table, each thread for its column. The
// compiler knows all sizes, so that no place costs a division.
template <int kUnrolled, class F>
DEVICE void each(int num_rows, int num_columns, const F& f) {
  const int across = num_columns < kThreads ? num_columns : kThreads;
  const int at_once = kThreads / across;
  const int row = thread() / across, column = thread() % across;
  if (row >= at_once) return;
#pragma unroll kUnrolled
  for (int turn = 0; turn < (num_rows + at_once - 1) / at_once; ++turn) {
    const int at = row + turn * at_once;
    // (Of whole turns the compiler knows that all rows exist.)
    if ((turn + 1) * at_once <= num_rows || at < num_rows) {
#pragma unroll
      for (int more = 0; more < (num_columns + across - 1) / across; ++more) {
        const int place = column + more * across;
        if ((more + 1) * across <= num_columns || place < num_columns) {
          f(at, place);
        }
      }
    }
  }
}

// What a thread has asked for of a table, until it puts it where it belongs. Of
// larger tables nothing is asked for.
template <int kMost>
struct Asked {
  bf16 taken[kMost];

  DEVICE static bool holds(int num_rows, int num_columns) {
    return num_columns <= kThreads &&
           num_rows <= kThreads / num_columns * kMost;
  }

  template <class At>
  DEVICE void ask(int num_rows, int num_columns, const At& at) {
    if (!holds(num_rows, num_columns)) return;
    int number = 0;
    each<kMost>(num_rows, num_columns, [&](int row, int column) {
      taken[number++] = at(row, column);
    });
  }

  // Calls put(row, column, number) for all places of the table.
  template <class At, class Put>
  DEVICE void take(int num_rows, int num_columns, const At& at,
                   const Put& put) const {
    if (holds(num_rows, num_columns)) {
      int number = 0;
      each<kMost>(num_rows, num_columns, [&](int row, int column) {
        put(row, column, taken[number++]);
      });
    } else {
      each<4>(num_rows, num_columns, [&](int row, int column) {
        put(row, column, at(row, column));
      });
    }
  }
};

// Starts copies of rows; `stride` and `to_stride` are numbers of bfloat16.
DEVICE void fetch(bf16* to, int to_stride, const bf16* from, int stride,
                  int num_rows, int num_columns) {
  const int chunks = num_columns / 8, at_once = kThreads / chunks;
  const int row = thread() / chunks, chunk = thread() % chunks;
  // (Both grow by a constant from turn to turn.)
  Place place = address(to) + (row * to_stride + chunk * 8) * 2;
  const bf16* source = from + static_cast<long long>(row) * stride + chunk * 8;
  if (row >= at_once) return;
#pragma unroll 32
  for (int turn = 0; turn < (num_rows + at_once - 1) / at_once; ++turn) {
    if ((turn + 1) * at_once <= num_rows || row + turn * at_once < num_rows) {
      copy16(place, source);
    }
    place += at_once * to_stride * 2;
    source += static_cast<long long>(at_once) * stride;
  }
}

// Asks for this block's part of an array that a later launch reads.
DEVICE void ask_for(const bf16* next, int num_bytes) {
  const int part = (num_bytes / 16 + num_blocks() - 1) / num_blocks() * 16;
  const int first = block() * part;
  const char* bytes = reinterpret_cast<const char*>(next) + first;
  const int held = num_bytes - first < part ? num_bytes - first : part;
#pragma unroll 4
  for (int turn = 0; turn < turns((part + kPrefetched - 1) / kPrefetched);
       ++turn) {
    const int at = (thread() + turn * kThreads) * kPrefetched;
    if (at < held) {
      prefetch(bytes + at, held - at < kPrefetched ? held - at : kPrefetched);
    }
  }
}

// What later launches read.
#define NEXT_PARAMETERS                                                       \
  const bf16 *next_0, const bf16 *next_1, const bf16 *next_2,                 \
      const bf16 *next_3, const bf16 *next_4, const bf16 *next_5,             \
      const bf16 *next_6, const bf16 *next_7
#define NEXT_ARRAYS \
  next_0, next_1, next_2, next_3, next_4, next_5, next_6, next_7

DEVICE void ask_for_next(NEXT_PARAMETERS) {
  ask_for(next_0, size_NEXT_0());
  ask_for(next_1, size_NEXT_1());
  ask_for(next_2, size_NEXT_2());
  ask_for(next_3, size_NEXT_3());
  ask_for(next_4, size_NEXT_4());
  ask_for(next_5, size_NEXT_5());
  ask_for(next_6, size_NEXT_6());
  ask_for(next_7, size_NEXT_7());
}

// Returns a sum over the cluster, after the cluster met.
DEVICE float over_cluster(const Peers& peers, const float* p) {
  float sum = 0;
#pragma unroll
  for (int other = 0; other < kCluster; ++other) sum += peers.read(p, other);
  return sum;
}

// Returns a sum over the lanes of a warp.
DEVICE float over_warp(float x) {
  warp_sync();
#pragma unroll
  for (int far = kLanes / 2; far; far /= 2) x += from_lane(x, far);
  return x;
}

// Where the heads of a launch leave their sums for all clusters of it: numbered
// by phase, head, token and output. A packet has the launch's number beside its
// own, and is written and read as one, so that it needs no barrier, and what an
// earlier launch left there is not taken for it. Blocks wait for one another: all
// of a launch must fit the GPU at once.
struct Exchange {
  int phase;
  unsigned launch;

  DEVICE int place(int head, int token, int output) const {
    return ((phase * size_HEADS() + head) * num_tokens() + token) * size_EMB() +
           output;
  }

  // Takes a number of each head, after it has come.
  DEVICE void receive(float (&parts)[kParts], int token, int output) const {
    bool has_come = false;
#pragma unroll 1
    for (int turn = 0; !has_come; ++turn) {
      if (turn) wait_for_packets(turn);
      has_come = true;
#pragma unroll
      for (int head = 0; head < kParts; ++head) {
        if (head < size_HEADS()) {
          const Packet packet = read_packet(place(head, token, output));
          parts[head] = packet.number;
          has_come = has_come && packet.launch == launch;
        }
      }
    }
  }
};

// What a thread has asked for, of a piece of a row.
struct Piece {
  bf16 x, scale;
  float parts[kParts];
};

// The rows that all blocks read, as this block needs them.
struct Rows {
  bf16* scaled;    // [M, E / 8], times the norm's scale
  int stride;      // of `scaled`
  int pieces;      // of a row: a lane of a warp has one input
  float* squares;  // [M, pieces], sums
  float* energy;   // [M], sums of the squares: the cluster reads them
  bf16* totals;    // [M, E / 8], the residual; null where one sum is all
  Piece asked[kAsked];

  DEVICE void place(Arena& arena, int padded, bool keeps) {
    const int inputs = size_EMB() / kCluster;
    stride = pitch(inputs * 2) / 2;
    pieces = (inputs + kLanes - 1) / kLanes;
    scaled = arena.halves(padded * stride);
    squares = arena.floats(padded * pieces);
    energy = arena.floats(padded);
    totals = keeps ? arena.halves(padded * inputs) : nullptr;
  }

  DEVICE int count() const { return num_tokens() * pieces; }

  // Asks for the first pieces.
  DEVICE void ask(const bf16* x, const float* parts, const bf16* scale) {
#pragma unroll
    for (int turn = 0; turn < kAsked; ++turn) {
      if (turn * kWarps < count()) ask(asked[turn], turn, x, parts, scale);
    }
  }

  // Adds the parts to the residual, a warp for a piece of a row. Cluster 0 writes
  // the sums.
  DEVICE void add(const bf16* x, const float* parts, const bf16* scale,
                  bf16* new_x) const {
#pragma unroll
    for (int turn = 0; turn < kAsked; ++turn) {
      if (turn * kWarps < count()) {
        add(asked[turn], turn, size_PARTS(), parts, new_x);
      }
    }
#pragma unroll 1
    for (int turn = kAsked; turn < (count() + kWarps - 1) / kWarps; ++turn) {
      Piece piece;
      ask(piece, turn, x, parts, scale);
      add(piece, turn, size_PARTS(), parts, new_x);
    }
  }

  // Adds what the heads of this launch have sent to the residual that `add` kept.
  DEVICE void add_sent(const Exchange& exchange, const bf16* scale,
                       bf16* new_x) const {
    const int emb = size_EMB(), first = rank() * emb / kCluster;
#pragma unroll 1
    for (int turn = 0; turn < (count() + kWarps - 1) / kWarps; ++turn) {
      const int number = warp() + turn * kWarps;
      Piece piece;
      if (has(number)) {
        const int token = number / pieces;
        piece.x = totals[token * (emb / kCluster) + column(number)];
        piece.scale = scale[first + column(number)];
        exchange.receive(piece.parts, token, first + column(number));
      }
      add(piece, turn, size_HEADS(), nullptr, new_x);
    }
  }

  // Where this thread's number of a piece is in a row, and whether it has one.
  DEVICE int column(int piece) const { return piece % pieces * kLanes + lane(); }
  DEVICE bool has(int piece) const {
    const int inputs = size_EMB() / kCluster;
    return piece < count() && (inputs % kLanes == 0 || column(piece) < inputs);
  }

  DEVICE void ask(Piece& asked, int turn, const bf16* x, const float* parts,
                  const bf16* scale) const {
    const int emb = size_EMB(), first = rank() * emb / kCluster;
    const int piece = warp() + turn * kWarps;
    if (!has(piece)) return;
    const int at = piece / pieces * emb + first + column(piece);
    asked.x = x[at];
    asked.scale = scale[first + column(piece)];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part < size_PARTS()) {
        asked.parts[part] = parts[part * num_tokens() * emb + at];
      }
    }
  }

  DEVICE void add(const Piece& asked, int turn, int num_parts,
                  const float* parts, bf16* new_x) const {
    const int emb = size_EMB(), first = rank() * emb / kCluster;
    const int piece = warp() + turn * kWarps;
    if (piece >= count()) return;
    float square = 0;
    if (has(piece)) {
      const int token = piece / pieces, at = token * emb + first + column(piece);
      float sum = to_float(asked.x);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (part < num_parts) sum += asked.parts[part];
      }
#pragma unroll 16
      for (int part = kParts; part < num_parts; ++part) {
        sum += parts[part * num_tokens() * emb + at];
      }
      const bf16 total = rounded(sum);
      const float number = to_float(total);
      square = number * number;
      scaled[token * stride + column(piece)] =
          rounded(number * to_float(asked.scale));
      if (totals) totals[token * (emb / kCluster) + column(piece)] = total;
      if (new_x && block() < kCluster) new_x[at] = total;
    }
    square = over_warp(square);
    if (lane() == 0) squares[piece] = square;
  }

  // Adds the squares, in one order for any number of tokens.
  DEVICE void add_squares() const {
    const int token = thread();
    if (token >= num_tokens()) return;
    float sum = 0;
#pragma unroll 16
    for (int piece = 0; piece < pieces; ++piece) {
      sum += squares[token * pieces + piece];
    }
    energy[token] = sum;
  }

  // Returns the factor of the norm, after the cluster met.
  DEVICE float factor(const Peers& peers, int token) const {
    const float sum = over_cluster(peers, energy + token);
    return rsqrtf(sum / size_EMB() + kEpsilon);
  }
};

// Products of all tokens with tiles of 16 outputs: a warp has each eighth tile.
// Rows of tokens that do not exist hold anything: each token has sums of its own.
template <int kTiles>
struct Products {
  float sums[kMostTiles][kTiles][4];

  DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kMostTiles; ++i) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][t][j] = 0;
      }
    }
  }

  // Adds `count` tiles of 16 inputs from tile `from` on. A lane has two
  // neighbouring inputs of a token at four places, as the instruction wants it.
  DEVICE void add(const bf16* kernel, int stride, const bf16* rows,
                  int row_stride, int num_outputs, int from, int count) {
    const int mine = lane();
    const bf16* row = rows + mine / 4 * row_stride + mine % 4 * 2;
    const Place tile = address(kernel + (mine % 8 + mine / 16 * 8) * stride +
                               mine / 8 % 2 * 8 + warp() * 16);
#pragma unroll 16
    for (int turn = 0; turn < count; ++turn) {
      const int k = from + turn;
      unsigned b[kTiles][2];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const bf16* at = row + t * 8 * row_stride + k * 16;
        b[t][0] = *reinterpret_cast<const unsigned*>(at);
        b[t][1] = *reinterpret_cast<const unsigned*>(at + 8);
      }
#pragma unroll
      for (int i = 0; i < kMostTiles; ++i) {
        const int first = i * kWarps * 16;  // of the first warp
        if (first >= num_outputs) break;
        if (first + kWarps * 16 <= num_outputs ||
            first + warp() * 16 < num_outputs) {
          unsigned a[4];
          load_turned(a, tile + (k * 16 * stride + first) * 2);
#pragma unroll
          for (int t = 0; t < kTiles; ++t) multiply_add(sums[i][t], a, b[t]);
        }
      }
    }
  }

  // Calls put(token, output, sum) for all of the first `tokens` tokens.
  template <class Put>
  DEVICE void put(int num_outputs, int tokens, const Put& put) const {
#pragma unroll
    for (int i = 0; i < kMostTiles; ++i) {
      const int first = i * kWarps * 16;  // of the first warp
      if (first >= num_outputs) break;
      if (first + kWarps * 16 > num_outputs && first + warp() * 16 >= num_outputs)
        break;
      const int output = first + warp() * 16 + lane() / 4;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int token = t * 8 + lane() % 4 * 2;
#pragma unroll
        for (int more = 0; more < 2; ++more) {
          // (The compiler knows that a single token is never the second of two.)
          if (t * 8 + more < tokens && token + more < tokens) {
            put(token + more, output, sums[i][t][more]);
            put(token + more, output + 8, sums[i][t][more + 2]);
          }
        }
      }
    }
  }
};

// Tiles of 16 inputs of a block, and of the first products' groups.
DEVICE int num_inputs() { return size_EMB() / kCluster / 16; }
DEVICE int of_group() { return (num_inputs() + kGroups - 1) / kGroups; }
DEVICE int in_group(int group) {
  const int left = num_inputs() - group * of_group();
  return left < of_group() ? left : of_group();
}

// The first products, for as many inputs as this block has; `kLater` groups of
// copies were started after theirs.
template <int kTiles, int kLater>
DEVICE void first_products(const bf16* kernels, int stride, const Rows& rows,
                           float* sums, int columns) {
  Products<kTiles> products;
  products.clear();
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    wait_groups(kGroups - 1 - group + kLater);
    block_sync();
    if (group == 0) rows.add_squares();
    warp_sync();
    products.add(kernels, stride, rows.scaled, rows.stride, columns,
                 group * of_group(), in_group(group));
  }
  products.put(columns, num_tokens(), [=](int token, int at, float sum) {
    sums[token * columns + at] = sum;
  });
}

// Starts the copies of the first products' weights, in groups of inputs.
template <int kKernels>
DEVICE void fetch_groups(bf16* to, int to_stride,
                         const bf16* const (&kernels)[kKernels], int used,
                         int stride, int first_column, int num_columns) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int from = group * of_group() * 16;
#pragma unroll
    for (int i = 0; i < kKernels; ++i) {
      if (i < used) {
        const long long row = rank() * num_inputs() * 16 + from;
        fetch(to + from * to_stride + i * num_columns, to_stride,
              kernels[i] + row * stride + first_column, stride,
              in_group(group) * 16, num_columns);
      }
    }
    end_group();
  }
}

// Returns the number, or 0 in place of NaN and infinities.
DEVICE bf16 finite(bf16 x) {
  return (x.bits & 0x7f80) == 0x7f80 ? bf16{0} : x;
}

// Where a product's sums go: this cluster's part of the residual.
DEVICE auto at_part(float* new_parts) {
  const long long part =
      static_cast<long long>(block() / kCluster) * num_tokens();
  float* const to =
      new_parts + part * size_EMB() + rank() * (size_EMB() / kCluster);
  return [=](int token, int output, float sum) {
    to[token * size_EMB() + output] = sum;
  };
}

// Attention of one head in a cluster. `kMore` groups of copies are started after
// its own before it runs; `kOfLayer`: the other attention is in the same launch.
template <bool kSelf, int kTiles, int kMore, bool kOfLayer>
struct Attention {
  static constexpr int kKernels = kSelf ? 3 : 1, kPadded = kTiles * 8;
  const bf16 *query_kernel, *key_kernel, *value_kernel, *out_kernel, *bias, *keys,
      *values;
  const int* start;
  bf16 *new_keys, *new_values;

  bf16 *kernels, *out;
  float *sums, *queries;  // the cluster reads the sums
  bf16 *my_keys, *my_values;  // [B, D, S], [B, S, D and padding]
  float *weights, *limits, *mixtures;  // the cluster reads limits and mixtures
  bf16* mixed;
  int* starts;
  Asked<kAskedKeys> asked_keys;
  Asked<kAskedBias> asked_bias;
  int asked_start;

  DEVICE static bool is_second() { return kOfLayer && !kSelf; }
  DEVICE static int num_slots() {
    return is_second() ? size_SOURCE_SLOTS() : size_SLOTS();
  }
  DEVICE static int share() { return (num_slots() + kCluster - 1) / kCluster; }
  DEVICE static int first() { return rank() * share(); }
  DEVICE static int held() {
    const int left = num_slots() - first();
    return left < share() ? left : share();
  }
  DEVICE static int head() { return block() / kCluster; }
  DEVICE static int columns() { return kKernels * size_WIDTH(); }
  DEVICE static int outputs() { return size_EMB() / kCluster; }
  DEVICE static int stride() { return pitch(columns() * 2) / 2; }
  DEVICE static int out_stride() { return pitch(outputs() * 2) / 2; }
  DEVICE static int value_stride() { return size_WIDTH() + 8; }

  DEVICE void place_weights(Arena& arena) {
    kernels = arena.halves(outputs() * stride());
    out = arena.halves(size_WIDTH() * out_stride());
  }
  DEVICE void place(Arena& arena) {
    const int num_rows = size_ROWS(), width = size_WIDTH();
    sums = arena.floats(kPadded * columns());
    queries = arena.floats(kPadded * width);
    my_keys = arena.halves(num_rows * width * share());
    my_values = arena.halves(num_rows * share() * value_stride());
    weights = arena.floats(num_tokens() * share());
    limits = arena.floats(kPadded * 2);
    mixtures = arena.floats(kPadded * width);
    mixed = arena.halves(kPadded * (pitch(width * 2) / 2));
    starts = reinterpret_cast<int*>(arena.take(num_rows * 4));
  }

  // A cache's rows of keys have any alignment, so they are copied one by one.
  DEVICE bf16 key_at(int line, int slot) const {
    const int width = size_WIDTH(), row = line / width, place = line % width;
    const long long at = (row * size_HEADS() + head()) * width + place;
    return slot < held() ? keys[at * num_slots() + first() + slot] : bf16{0};
  }
  DEVICE bf16 bias_at(int token, int slot) const {
    const int of_row = is_second() ? size_SOURCE_BIAS_ROW() : size_BIAS_ROW();
    const int of_head = is_second() ? size_SOURCE_BIAS_HEAD() : size_BIAS_HEAD();
    const int of_token =
        is_second() ? size_SOURCE_BIAS_TOKEN() : size_BIAS_TOKEN();
    const int at = row_of(token) * of_row + head() * of_head +
                   place_of(token) * of_token + first() + slot;
    return slot < held() ? bias[at] : bf16{0};
  }

  // Asks for the slots' keys and bias.
  DEVICE void ask() {
    asked_keys.ask(size_ROWS() * size_WIDTH(), share(),
                   [&](int line, int slot) { return key_at(line, slot); });
    asked_bias.ask(num_tokens(), share(),
                   [&](int token, int slot) { return bias_at(token, slot); });
    asked_start = kSelf && thread() < size_ROWS() ? start[thread()] : 0;
  }

  // Starts the copies: groups of weights, the values, the output's weights.
  DEVICE void copy() const {
    const int width = size_WIDTH();
    const bf16* const first_kernels[3] = {query_kernel, key_kernel, value_kernel};
    fetch_groups(kernels, stride(), first_kernels, kKernels,
                 size_HEADS() * width, head() * width, width);
    const int within = held();
#pragma unroll 1
    for (int row = 0; row < size_ROWS(); ++row) {
      const long long at = (row * size_HEADS() + head()) * width *
                           static_cast<long long>(num_slots());
      const bf16* from = values + at + static_cast<long long>(first()) * width;
      bf16* to = my_values + row * share() * value_stride();
      each<4>(share(), width / 8, [=](int slot, int chunk) {
        if (slot < within) {
          copy16(address(to + slot * value_stride() + chunk * 8),
                 from + slot * width + chunk * 8);
        }
      });
    }
    end_group();
    const int first_output = rank() * outputs();
    fetch(out, out_stride(),
          out_kernel + static_cast<long long>(head()) * width * size_EMB() +
              first_output,
          size_EMB(), width, outputs());
    end_group();
  }

  // Puts where it belongs what was asked for.
  DEVICE void take() const {
    const int num_rows = size_ROWS(), within = held();
    bf16* const to_keys = my_keys;
    float* const to_weights = weights;
    asked_keys.take(
        num_rows * size_WIDTH(), share(),
        [&](int line, int slot) { return key_at(line, slot); },
        [=](int line, int slot, bf16 key) { to_keys[line * share() + slot] = key; });
    asked_bias.take(
        num_tokens(), share(),
        [&](int token, int slot) { return bias_at(token, slot); },
        [=](int token, int slot, bf16 number) {
          to_weights[token * share() + slot] =
              slot < within ? to_float(number) : kNone;
        });
    // Slots that do not exist have a weight of 0, and 0 times NaN is NaN.
    if (share() * kCluster > num_slots()) {
      bf16* const lines = my_values;
      each<4>(num_rows * share(), value_stride() / 8, [=](int line, int chunk) {
        if (line % share() >= within) {
          clear16(lines + line * value_stride() + chunk * 8);
        }
      });
    }
    if (kSelf && thread() < num_rows) starts[thread()] = asked_start;
  }

  // Calls put(token, output, sum) for this head's part of the output, and two
  // functions while the cluster's first and second meetings take place.
  template <class Put, class First, class Second>
  DEVICE void run(const Rows& rows, const Peers& peers, const Put& put,
                  const First& in_first, const Second& in_second) const {
    const int width = size_WIDTH(), columns = this->columns();
    const int outputs = this->outputs(), num_slots = this->num_slots();
    const int share = this->share(), first = this->first(), held = this->held();
    const int stride = this->stride(), out_stride = this->out_stride();
    const int value_stride = this->value_stride(), head = this->head();
    const int mixed_stride = pitch(width * 2) / 2;
    // (A lambda copies what it uses of these, and not the whole structure.)
    float* const sums = this->sums;
    float* const queries = this->queries;
    bf16* const my_keys = this->my_keys;
    bf16* const my_values = this->my_values;
    float* const weights = this->weights;
    float* const limits = this->limits;
    float* const mixtures = this->mixtures;
    bf16* const mixed = this->mixed;
    int* const starts = this->starts;
    bf16* const new_keys = this->new_keys;
    bf16* const new_values = this->new_values;
    first_products<kTiles, 2 + kMore>(kernels, stride, rows, sums, columns);
    wait_groups(1 + kMore);  // for the values
    cluster_arrive();
    in_first();
    cluster_wait();
    const auto join = [=](int token, int column) {
      const int row = row_of(token);
      int slot = 0;
      if (kSelf && column >= width) {
        slot = starts[row] + place_of(token) - first;
        if (slot < 0 || slot >= held) return;
      }
      const float sum = over_cluster(peers, sums + token * columns + column);
      const bf16 y = rounded(sum * rows.factor(peers, token));
      if (column < width) {
        queries[token * width + column] = to_float(y);
      } else if (kSelf) {
        const int place = column % width;
        const long long line = row * size_HEADS() + head;
        if (column < 2 * width) {
          my_keys[(row * width + place) * share + slot] = finite(y);
          new_keys[(line * width + place) * num_slots + first + slot] = finite(y);
        } else {
          my_values[(row * share + slot) * value_stride + place] = finite(y);
          new_values[(line * num_slots + first + slot) * width + place] =
              finite(y);
        }
      }
    };
    if (!kSelf || num_tokens() * columns <= kThreads) {
      each<4>(num_tokens(), columns, join);
    } else {
      // Most blocks have no slot of the new keys and values.
      each<4>(num_tokens(), width, join);
      each<4>(num_tokens(), 2 * width, [=](int token, int column) {
        join(token, width + column);
      });
    }
    block_sync();

    // Eight lanes add up a score, so that few slots keep many lanes busy.
#pragma unroll 2
    for (int turn = 0; turn < turns(num_tokens() * share * 8); ++turn) {
      const int i = thread() + turn * kThreads, item = unsigned(i) / 8;
      const int token = unsigned(item) / unsigned(share);
      const int slot = item - token * share;
      const bool is_item = token < num_tokens();
      float sum = 0;
      if (is_item) {
        const int mine = i & 7;
        const float* query = queries + token * width + mine;
        const bf16* key =
            my_keys + row_of(token) * width * share + mine * share + slot;
#pragma unroll 16
        for (int at = 0; at < width; at += 8) {
          sum += query[at] * to_float(key[at * share]);
        }
      }
      warp_sync();
      sum += from_lane(sum, 1);
      sum += from_lane(sum, 2);
      sum += from_lane(sum, 4);
      if (is_item && (i & 7) == 0) weights[item] += sum;
    }
    block_sync();
#pragma unroll 1
    for (int token = warp(); token < num_tokens(); token += kWarps) {
      float* mine = weights + token * share;
      float most = kNone, total = 0;
#pragma unroll 1
      for (int turn = 0; turn < (share + kLanes - 1) / kLanes; ++turn) {
        const int slot = lane() + turn * kLanes;
        if (slot < held) most = fmaxf(most, mine[slot]);
      }
      warp_sync();
#pragma unroll
      for (int far = kLanes / 2; far; far /= 2) {
        most = fmaxf(most, from_lane(most, far));
      }
#pragma unroll 1
      for (int turn = 0; turn < (share + kLanes - 1) / kLanes; ++turn) {
        const int slot = lane() + turn * kLanes;
        if (slot < share) {
          const float weight = slot < held ? exponential(mine[slot] - most) : 0;
          mine[slot] = weight;
          total += weight;
        }
      }
      warp_sync();
#pragma unroll
      for (int far = kLanes / 2; far; far /= 2) total += from_lane(total, far);
      if (lane() == 0) {
        limits[token * 2] = most;
        limits[token * 2 + 1] = total;
      }
    }
    block_sync();
    // Of many slots, each of four lanes adds up a fourth.
    const int lanes = share > 32 ? 4 : 1;
#pragma unroll 2
    for (int turn = 0; turn < turns(num_tokens() * width * lanes); ++turn) {
      const int i = thread() + turn * kThreads, item = unsigned(i) / lanes;
      const int token = unsigned(item) / unsigned(width);
      const bool is_item = token < num_tokens();
      float sum = 0;
      if (is_item) {
        const int mine = i & (lanes - 1), column = item - token * width;
        const float* weight = weights + token * share + mine;
        const bf16* value = my_values + row_of(token) * share * value_stride +
                            mine * value_stride + column;
#pragma unroll 16
        for (int slot = 0; slot < share; slot += lanes) {
          if (lanes == 1 || slot + mine < share) {
            sum += weight[slot] * to_float(value[slot * value_stride]);
          }
        }
      }
      if (lanes > 1) {
        warp_sync();
        sum += from_lane(sum, 1);
        sum += from_lane(sum, 2);
      }
      if (is_item && (i & (lanes - 1)) == 0) mixtures[item] = sum;
    }
    wait_groups(kMore);
    cluster_arrive();
    in_second();
    cluster_wait();
    each<4>(num_tokens(), width, [=](int token, int column) {
      float most[kCluster], top = kNone, total = 0, sum = 0;
#pragma unroll
      for (int other = 0; other < kCluster; ++other) {
        most[other] = peers.read(limits + token * 2, other);
        top = fmaxf(top, most[other]);
      }
#pragma unroll
      for (int other = 0; other < kCluster; ++other) {
        const float part = exponential(most[other] - top);
        total += peers.read(limits + token * 2 + 1, other) * part;
        sum += peers.read(mixtures + token * width + column, other) * part;
      }
      mixed[token * mixed_stride + column] = rounded(quotient(sum, total));
    });
    // A block stays until the others have read from it.
    cluster_arrive();
    block_sync();
    Products<kTiles> products;
    products.clear();
    products.add(out, out_stride, mixed, mixed_stride, outputs, 0, width / 16);
    products.put(outputs, num_tokens(), put);
    cluster_wait();
  }
};

template <bool kSelf, int kTiles>
DEVICE void attention(const bf16* x, const float* parts, const bf16* scale,
                      const bf16* query_kernel, const bf16* key_kernel,
                      const bf16* value_kernel, const bf16* out_kernel,
                      const bf16* bias, const bf16* keys, const bf16* values,
                      const int* start, NEXT_PARAMETERS, bf16* new_x,
                      float* new_parts, bf16* new_keys, bf16* new_values) {
  const Peers peers;
  Attention<kSelf, kTiles, 0, false> one{
      query_kernel, key_kernel, value_kernel, out_kernel, bias,
      keys,         values,     start,        new_keys,   new_values};
  Arena arena{shared_memory()};
  one.place_weights(arena);
  one.place(arena);
  Rows rows;
  rows.place(arena, kTiles * 8, false);
  ends_at(arena.at, size_SHARED());

  wait_for_inputs();
  rows.ask(x, parts, scale);
  one.ask();
  one.copy();
  ask_for_next(NEXT_ARRAYS);
  rows.add(x, parts, scale, new_x);
  one.take();
  one.run(rows, peers, at_part(new_parts), [] {}, [] {});
}

DEVICE float activated(float x, int activation) {
  if (activation == 0) {  // gelu by tanh(u), and (1 + tanh(u)) / 2 is this
    const float twice = 1.5957691216057308f * (x + .044715f * x * x * x);
    return quotient(x, 1 + exponential(-twice));
  }
  if (activation == 1) return fmaxf(x, 0.f);         // relu
  if (activation == 2) return quotient(x, 1 + exponential(-x));  // silu
  return x;
}

// A slice of an MLP in a cluster.
template <int kTiles>
struct Mlp {
  static constexpr int kPadded = kTiles * 8;
  const bf16 *gate_kernel, *up_kernel, *down_kernel;

  bf16 *kernels, *down;
  float* sums;  // the cluster reads them
  bf16* inner;  // the cluster writes it

  DEVICE static int columns() { return size_GATES() * size_SLICE(); }
  DEVICE static int outputs() { return size_EMB() / kCluster; }
  DEVICE static int stride() { return pitch(columns() * 2) / 2; }
  DEVICE static int down_stride() { return pitch(outputs() * 2) / 2; }
  DEVICE static int inner_stride() { return pitch(size_SLICE() * 2) / 2; }

  DEVICE void place(Arena& arena) {
    kernels = arena.halves(outputs() * stride());
    down = arena.halves(size_SLICE() * down_stride());
    sums = arena.floats(kPadded * columns());
    inner = arena.halves(kPadded * inner_stride());
  }

  // Starts the copies: groups of weights, and those of the way back.
  DEVICE void copy() const {
    const int slice = size_SLICE(), first = block() / kCluster * slice;
    const bf16* const first_kernels[2] = {gate_kernel, up_kernel};
    fetch_groups(kernels, stride(), first_kernels, size_GATES(), size_INNER(),
                 first, slice);
    fetch(down, down_stride(),
          down_kernel + static_cast<long long>(first) * size_EMB() +
              rank() * outputs(),
          size_EMB(), slice, outputs());
    end_group();
  }

  // Calls put(token, output, sum) for this slice's part of the output.
  template <class Put>
  DEVICE void run(const Rows& rows, const Peers& peers, const Put& put) const {
    const int slice = size_SLICE(), columns = this->columns();
    const int outputs = this->outputs(), down_stride = this->down_stride();
    const int inner_stride = this->inner_stride();
    float* const sums = this->sums;
    bf16* const inner = this->inner;
    first_products<kTiles, 1>(kernels, stride(), rows, sums, columns);
    cluster_arrive();
    cluster_wait();
    // Each block adds up an eighth of the slice and gives it to all.
    const int share = (slice + kCluster - 1) / kCluster, mine = rank() * share;
    each<4>(num_tokens(), share, [=](int token, int place) {
      const int column = mine + place;
      if (column >= slice) return;
      const float factor = rows.factor(peers, token);
      const float* sum = sums + token * columns + column;
      const float gate = over_cluster(peers, sum) * factor;
      float product = activated(to_float(rounded(gate)), size_ACTIVATION_0());
      if (size_GATES() == 2) {
        const float up = over_cluster(peers, sum + slice) * factor;
        product *= activated(to_float(rounded(up)), size_ACTIVATION_1());
      }
      const bf16 result = rounded(product);
#pragma unroll
      for (int other = 0; other < kCluster; ++other) {
        peers.write(inner + token * inner_stride + column, other, result);
      }
    });
    wait_groups(0);
    cluster_arrive();
    cluster_wait();
    Products<kTiles> products;
    products.clear();
    products.add(down, down_stride, inner, inner_stride, outputs, 0, slice / 16);
    products.put(outputs, num_tokens(), put);
  }
};

template <int kTiles>
DEVICE void gated_mlp(const bf16* x, const float* parts, const bf16* scale,
                      const bf16* gate_kernel, const bf16* up_kernel,
                      const bf16* down_kernel, NEXT_PARAMETERS, bf16* new_x,
                      float* new_parts) {
  const Peers peers;
  Mlp<kTiles> mlp{gate_kernel, up_kernel, down_kernel};
  Arena arena{shared_memory()};
  mlp.place(arena);
  Rows rows;
  rows.place(arena, kTiles * 8, false);
  ends_at(arena.at, size_SHARED());

  wait_for_inputs();
  rows.ask(x, parts, scale);
  mlp.copy();
  ask_for_next(NEXT_ARRAYS);
  rows.add(x, parts, scale, new_x);
  mlp.run(rows, peers, at_part(new_parts));
}

// Both attentions of a layer, and in small models the MLP. Copies of weights that
// come later are started while a cluster meets, and a head's output goes to all
// clusters by an exchange.
template <bool kHasMlp, int kTiles>
DEVICE void joined_layer(
    const bf16* x, const float* parts, const bf16* self_scale,
    const bf16* query, const bf16* key, const bf16* value, const bf16* out,
    const bf16* bias, const bf16* keys, const bf16* values, const int* start,
    const bf16* source_scale, const bf16* source_query, const bf16* source_out,
    const bf16* source_bias, const bf16* source_keys, const bf16* source_values,
    const bf16* mlp_scale, const bf16* gate, const bf16* up, const bf16* down,
    NEXT_PARAMETERS, bf16* new_x, float* new_parts, bf16* read_x, bf16* new_keys,
    bf16* new_values) {
  // (Groups of copies of the MLP.)
  constexpr int kOfMlp = kHasMlp ? kGroups + 1 : 0;
  const Peers peers;
  Attention<true, kTiles, 0, true> to_block{
      query, key, value, out, bias, keys, values, start, new_keys, new_values};
  Attention<false, kTiles, kOfMlp, true> to_source{
      source_query, nullptr,       nullptr, source_out, source_bias,
      source_keys,  source_values, nullptr, nullptr,    nullptr};
  Mlp<kTiles> mlp{gate, up, down};
  Arena arena{shared_memory()};
  to_block.place_weights(arena);
  to_block.place(arena);
  // When the first products are made, the source's weights take their place.
  Arena free{reinterpret_cast<char*>(to_block.kernels)};
  to_source.place_weights(free);
  to_source.place(arena);
  if constexpr (kHasMlp) mlp.place(arena);
  Rows rows;
  rows.place(arena, kTiles * 8, true);
  ends_at(arena.at, size_SHARED());

  wait_for_inputs();
  // (With an MLP there may be more clusters than heads.)
  const bool has_head = !kHasMlp || block() / kCluster < size_HEADS();
  const int head = block() / kCluster;
  const int first_output = rank() * (size_EMB() / kCluster);
  rows.ask(x, parts, self_scale);
  Exchange exchange{0, launch_number()};
  const auto send = [&](int token, int output, float sum) {
    write_packet(exchange.place(head, token, first_output + output), sum,
                 exchange.launch);
  };
  if (has_head) {
    to_block.ask();
    to_block.copy();
  } else if constexpr (kHasMlp) {
    mlp.copy();
    ask_for_next(NEXT_ARRAYS);
  }
  rows.add(x, parts, self_scale, read_x);
  if (has_head) {
    to_block.take();
    to_block.run(
        rows, peers, send,
        [&] {
          if constexpr (!kHasMlp) ask_for_next(NEXT_ARRAYS);
        },
        [&] {
          // (Loads come behind the copies that were started before them.)
          to_source.ask();
          to_source.copy();
        });
    // What is done here is done while the heads' numbers come.
    to_source.take();
    if constexpr (kHasMlp) {
      mlp.copy();
      ask_for_next(NEXT_ARRAYS);
    }
  }
  rows.add_sent(exchange, source_scale, kHasMlp ? nullptr : new_x);
  exchange.phase = 1;
  if constexpr (!kHasMlp) {
    to_source.run(rows, peers, at_part(new_parts), [] {}, [] {});
  } else {
    if (has_head) to_source.run(rows, peers, send, [] {}, [] {});
    rows.add_sent(exchange, mlp_scale, new_x);
    mlp.run(rows, peers, at_part(new_parts));
  }
  if (thread() == 0) end_launch(exchange.launch);
}

#define SELF_PARAMETERS                                                       \
  (const bf16* x, const float* parts, const bf16* scale, const bf16* query,   \
   const bf16* key, const bf16* value, const bf16* out, const bf16* bias,     \
   const bf16* keys, const bf16* values, const int* start, NEXT_PARAMETERS,   \
   bf16* new_x, float* new_parts, bf16* new_keys, bf16* new_values)
#define SOURCE_PARAMETERS                                                     \
  (const bf16* x, const float* parts, const bf16* scale, const bf16* query,   \
   const bf16* out, const bf16* bias, const bf16* keys, const bf16* values,   \
   NEXT_PARAMETERS, bf16* new_x, float* new_parts)
#define GATED_PARAMETERS                                                      \
  (const bf16* x, const float* parts, const bf16* scale, const bf16* gate,    \
   const bf16* up, const bf16* down, NEXT_PARAMETERS, bf16* new_x,            \
   float* new_parts)
#define BOTH_PARAMETERS                                                       \
  (const bf16* x, const float* parts, const bf16* scale_0, const bf16* query,   \
   const bf16* key, const bf16* value, const bf16* out, const bf16* bias,     \
   const bf16* keys, const bf16* values, const int* start,                    \
   const bf16* scale_1, const bf16* query_1, const bf16* out_1,               \
   const bf16* bias_1, const bf16* keys_1, const bf16* values_1,              \
   NEXT_PARAMETERS, bf16* new_x, float* new_parts, bf16* read_x,              \
   bf16* new_keys, bf16* new_values)
#define LAYER_PARAMETERS                                                      \
  (const bf16* x, const float* parts, const bf16* scale_0, const bf16* query,   \
   const bf16* key, const bf16* value, const bf16* out, const bf16* bias,     \
   const bf16* keys, const bf16* values, const int* start,                    \
   const bf16* scale_1, const bf16* query_1, const bf16* out_1,               \
   const bf16* bias_1, const bf16* keys_1, const bf16* values_1,              \
   const bf16* scale_2, const bf16* gate, const bf16* up, const bf16* down,   \
   NEXT_PARAMETERS, bf16* new_x, float* new_parts, bf16* read_x,              \
   bf16* new_keys, bf16* new_values)
// For blocks of up to 8 `tiles` tokens.
#define ATTEND_SELF(tiles)                                                    \
  ENTRY(attend_self_##tiles, SELF_PARAMETERS,                                 \
        (attention<true, tiles>(x, parts, scale, query, key, value, out,      \
                                bias, keys, values, start, NEXT_ARRAYS,       \
                                new_x, new_parts, new_keys, new_values)))
#define ATTEND_SOURCE(tiles)                                                  \
  ENTRY(attend_source_##tiles, SOURCE_PARAMETERS,                             \
        (attention<false, tiles>(x, parts, scale, query, nullptr, nullptr,    \
                                 out, bias, keys, values, nullptr,            \
                                 NEXT_ARRAYS, new_x, new_parts, nullptr,      \
                                 nullptr)))
#define GATED(tiles)                                                          \
  ENTRY(gated_##tiles, GATED_PARAMETERS,                                      \
        (gated_mlp<tiles>(x, parts, scale, gate, up, down, NEXT_ARRAYS,       \
                          new_x, new_parts)))

#define LAYER(tiles)                                                          \
  ENTRY_AT_ONCE(layer_##tiles, LAYER_PARAMETERS,                              \
        (joined_layer<true, tiles>(                                           \
            x, parts, scale_0, query, key, value, out, bias, keys, values,    \
            start, scale_1, query_1, out_1, bias_1, keys_1, values_1,         \
            scale_2, gate, up, down, NEXT_ARRAYS, new_x, new_parts, read_x,   \
            new_keys, new_values)))
#define ATTEND_BOTH(tiles)                                                    \
  ENTRY_AT_ONCE(attend_both_##tiles, BOTH_PARAMETERS,                         \
        (joined_layer<false, tiles>(                                          \
            x, parts, scale_0, query, key, value, out, bias, keys, values,    \
            start, scale_1, query_1, out_1, bias_1, keys_1, values_1,         \
            nullptr, nullptr, nullptr, nullptr, NEXT_ARRAYS, new_x,           \
            new_parts, read_x, new_keys, new_values)))

#ifdef ON_CPU
ATTEND_SELF(1)
ATTEND_SELF(2)
ATTEND_SELF(4)
ATTEND_SOURCE(1)
ATTEND_SOURCE(2)
ATTEND_SOURCE(4)
GATED(1)
GATED(2)
GATED(4)
ATTEND_BOTH(1)
ATTEND_BOTH(2)
ATTEND_BOTH(4)
LAYER(1)
LAYER(2)
LAYER(4)
#else
// The compiler is given which one, and its tiles.
#define ENTER(tiles) ENTERED(tiles)
ENTER(TILES)
#endif
