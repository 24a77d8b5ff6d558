// What `layers.cu` asks of a GPU, on a CPU: `device.h` has the same functions.
//
// A cluster's threads are fibers of one thread of the CPU, which go on in turns
// from one wait to the next, so that barriers, exchanges between lanes and
// copies that are still under way are those of the source. The order of turns is
// chosen, and copies land at once or as late as they may: a missing barrier or
// wait gives other numbers in one of the orders. Clusters run one after another,
// as they may not wait for one another, but for kernels that are said to have all
// of theirs at once. Shared memory is NaN before it is
// written, and again when its block has ended. What a GPU would refuse or hang
// on is said in one line.
#pragma once

#undef _FORTIFY_SOURCE  // fibers change stacks by longjmp

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#define DEVICE inline
constexpr int kThreads = 256, kCluster = 8;

struct bf16 {
  unsigned short bits;
};

DEVICE float to_float(bf16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

DEVICE bf16 rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return {0x7fff};
  return {static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

namespace emulated {

constexpr int kLanesOfWarp = 32, kWarpsOfBlock = kThreads / kLanesOfWarp;
constexpr int kFibers = kThreads * kCluster;  // of a cluster
constexpr size_t kStack = 64 << 10;

// Counts who is there; a turn ends when all are.
struct Meeting {
  int here = 0;
  int turn = 0;

  void arrive(int wanted) {
    if (++here == wanted) here = 0, ++turn;
  }
};

struct Copy {
  void* to;
  const void* from;
};

struct Fiber {
  ucontext_t first;
  jmp_buf later;
  bool has_begun, has_ended;
  const Meeting* waits_for;  // null: it can go on
  int turn;
  int cluster_turn;  // of the cluster's barrier, when it arrived
  bool has_arrived;
  std::vector<std::vector<Copy>> groups;  // copies under way; the last is open
};

// What the lanes of a warp hand to one another.
struct Warp {
  Meeting meeting;
  const void* rows[kLanesOfWarp];
  float number[kLanesOfWarp], numbers[kLanesOfWarp];
  unsigned a[kLanesOfWarp][4], b[kLanesOfWarp][2], turned[kLanesOfWarp][4];
  float c[kLanesOfWarp][4];
};

struct Packet {
  float number;
  unsigned launch;
};

struct Machine {
  std::mutex lock;
  int num_fibers = 0;  // of the clusters that run at once, the first is `number`
  std::vector<Fiber> fibers;
  char* stacks = nullptr;
  int num_stacks = 0;
  std::vector<Warp> warps;
  std::vector<Meeting> blocks, clusters;
  std::vector<int> running_of_block;
  std::vector<char> shared;
  int shared_bytes = 0, num_clusters = 0, number = 0;
  std::vector<Packet> packets;
  Meeting sent;  // a turn for each packet that is written
  unsigned launches = 0;
  bool is_counted = false;  // whether a block asked for the launch's number
  std::vector<int> ends;    // how often each block ended the launch
  bool is_late = false;
  int current = 0;
  jmp_buf scheduler;
  std::function<void()> kernel;
  std::string fault;
};

inline Machine& machine() {
  static Machine* one = new Machine;
  return *one;
}

inline Fiber& self() { return machine().fibers[machine().current]; }
inline Warp& warp_of_self() {
  return machine().warps[machine().current / kLanesOfWarp];
}
inline int lane_of_self() { return machine().current % kLanesOfWarp; }
// Among those that run.
inline int block_of_self() { return machine().current / kThreads; }
inline Meeting& cluster_of_self() {
  return machine().clusters[machine().current / kFibers];
}

// Goes back to the scheduler, which ends the launch.
[[noreturn]] inline void fail(const std::string& fault) {
  if (machine().fault.empty()) machine().fault = fault;
  longjmp(machine().scheduler, 1);
}

// Lets other fibers go on until a meeting's turn is over.
__attribute__((noinline)) inline void wait(const Meeting& meeting, int turn) {
  Fiber& fiber = self();
  if (meeting.turn != turn) return;
  fiber.waits_for = &meeting;
  fiber.turn = turn;
  if (_setjmp(fiber.later) == 0) _longjmp(machine().scheduler, 1);
}

inline void meet(Meeting& meeting, int wanted) {
  const int turn = meeting.turn;
  meeting.arrive(wanted);
  wait(meeting, turn);
}

inline char* shared_of(int block) {
  return machine().shared.data() + size_t(block) * machine().shared_bytes;
}

// Whether bytes are in this block's shared memory.
inline void check_shared(const void* p, int num_bytes, const char* what) {
  const char* from = static_cast<const char*>(p);
  const char* mine = shared_of(block_of_self());
  if (from < mine || from + num_bytes > mine + machine().shared_bytes) {
    fail(std::string(what) + " outside of shared memory");
  }
  if ((from - mine) % 16) fail(std::string(what) + " at an odd address");
}

inline void land(std::vector<std::vector<Copy>>& groups, size_t keep) {
  while (groups.size() > keep) {
    for (const Copy& copy : groups.front()) {
      std::memcpy(copy.to, copy.from, 16);
    }
    groups.erase(groups.begin());
  }
}

inline void begin() {
  machine().kernel();
  Fiber& fiber = self();
  fiber.has_ended = true;
  if (fiber.groups.size() > 1) fail("copies are under way at the end");
  const int block = block_of_self();
  if (--machine().running_of_block[block] == 0) {
    std::memset(shared_of(block), 0xff, machine().shared_bytes);
  }
  _longjmp(machine().scheduler, 1);
}

// Lets a fiber go on, until it waits or ends.
__attribute__((noinline)) inline void go_on(int number) {
  Machine& all = machine();
  all.current = number;
  Fiber& fiber = all.fibers[number];
  fiber.waits_for = nullptr;
  if (_setjmp(all.scheduler) == 0) {
    if (fiber.has_begun) _longjmp(fiber.later, 1);
    fiber.has_begun = true;
    setcontext(&fiber.first);
  }
}

// Which threads go on together, and how far the next ones are.
struct Turns {
  int together, stride;
};

// Orders 0 and 1 let all threads go on from one wait to the next, forward and
// backward. In 2 and 3 a warp runs as far as it can before the next one does, and
// in 4 and 5 a block, which may end while others still need its shared memory.
inline Turns turns_of(int order) {
  const int all = machine().num_fibers;
  switch (order) {
    case 0:
      return {1, 1};
    case 1:
      return {1, all - 1};
    case 2:
      return {kLanesOfWarp, kLanesOfWarp};
    case 3:
      return {kLanesOfWarp, all - kLanesOfWarp};
    case 4:
      return {kThreads, kThreads};
    default:
      return {kThreads, all - kThreads};
  }
}

// Runs some clusters at once.
inline void run_clusters(int number, int order) {
  Machine& all = machine();
  all.number = number;
  all.clusters.assign(all.num_fibers / kFibers, {});
  std::memset(all.shared.data(), 0xff, all.shared.size());
  for (Warp& warp : all.warps) warp.meeting = {};
  all.blocks.assign(all.num_fibers / kThreads, {});
  all.running_of_block.assign(all.num_fibers / kThreads, kThreads);
  for (int i = 0; i < all.num_fibers; ++i) {
    Fiber& fiber = all.fibers[i];
    fiber.has_begun = fiber.has_ended = fiber.has_arrived = false;
    fiber.waits_for = nullptr;
    fiber.groups.assign(1, {});
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = all.stacks + size_t(i) * kStack;
    fiber.first.uc_stack.ss_size = kStack;
    fiber.first.uc_link = nullptr;
    makecontext(&fiber.first, begin, 0);
  }
  const Turns turns = turns_of(order);
  bool is_running = true;
  while (is_running && all.fault.empty()) {
    is_running = false;
    bool has_moved = false;
    for (int i = 0; i < all.num_fibers / turns.together && all.fault.empty(); ++i) {
      const int first = int(int64_t(i) * turns.stride % all.num_fibers) /
                        turns.together * turns.together;
      bool moves = true;
      while (moves && all.fault.empty()) {
        moves = false;
        for (int at = first; at < first + turns.together; ++at) {
          const Fiber& fiber = all.fibers[at];
          if (fiber.has_ended) continue;
          is_running = true;
          if (fiber.waits_for && fiber.waits_for->turn == fiber.turn) continue;
          has_moved = moves = true;
          go_on(at);
          if (!all.fault.empty()) break;
        }
        if (turns.together == 1) break;
      }
    }
    if (is_running && !has_moved) {
      all.fault = "some threads wait for ever at a barrier, or for a packet";
    }
  }
}

// Returns what was wrong, or an empty text.
inline const char* run(const std::function<void()>& kernel, int num_clusters,
                       int at_once, int num_packets, int shared_bytes,
                       int order) {
  Machine& all = machine();
  std::lock_guard<std::mutex> guard(all.lock);
  all.num_fibers = at_once * kFibers;
  if (all.num_stacks < all.num_fibers) {
    if (all.stacks) munmap(all.stacks, kStack * all.num_stacks);
    all.stacks = nullptr, all.num_stacks = 0;
    void* stacks =
        mmap(nullptr, kStack * all.num_fibers, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) return "no memory for the threads' stacks";
    all.stacks = static_cast<char*>(stacks);
    all.num_stacks = all.num_fibers;
  }
  all.fibers.resize(all.num_fibers);
  all.warps.resize(all.num_fibers / kLanesOfWarp);
  // What earlier launches left is there, and is not to be taken.
  all.packets.resize(num_packets, {0, 0});
  for (Packet& each : all.packets) each.number = NAN;
  ++all.launches;
  all.kernel = kernel;
  all.num_clusters = num_clusters;
  all.shared_bytes = shared_bytes;
  all.is_counted = false;
  all.ends.assign(num_clusters * kCluster, 0);
  all.shared.assign(size_t(shared_bytes) * kCluster * at_once, 0);
  all.is_late = order % 2 == 0;
  all.fault.clear();
  for (int i = 0; i < num_clusters && all.fault.empty(); i += at_once) {
    run_clusters(i, order);
  }
  for (int ends : all.ends) {
    if (all.is_counted && ends != 1 && all.fault.empty()) {
      all.fault = "a block ends a launch " + std::to_string(ends) + " times";
    }
  }
  return all.fault.c_str();
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void* const* arrays, std::index_sequence<I...>) {
  kernel(static_cast<A>(arrays[I])...);
}

template <class... A>
void call(void (*kernel)(A...), void* const* arrays) {
  call(kernel, arrays, std::index_sequence_for<A...>());
}

}  // namespace emulated

// Each size is a symbol, which the caller sets before a launch.
#define DEFINE_SIZE(name)         \
  extern "C" { int SIZE_OF_##name; } \
  DEVICE int size_##name() { return SIZE_OF_##name; }

// The arguments are those of XLA's custom call: operands, then results.
#define ENTRY_OF(name, parameters, body, at_once)                              \
  static void name parameters { body; }                                        \
  extern "C" const char* run_##name(void* const* arrays, int clusters,         \
                                    int order) {                               \
    return emulated::run([=] { emulated::call(name, arrays); }, clusters,      \
                         at_once, SIZE_OF_PACKETS, SIZE_OF_SHARED, order);     \
  }
#define ENTRY(name, parameters, body) ENTRY_OF(name, parameters, body, 1)
#define ENTRY_AT_ONCE(name, parameters, body) \
  ENTRY_OF(name, parameters, body, clusters)

DEVICE int thread() { return emulated::machine().current % kThreads; }
DEVICE int block() {
  return emulated::machine().number * kCluster + emulated::block_of_self();
}
DEVICE int num_blocks() { return emulated::machine().num_clusters * kCluster; }
DEVICE char* shared_memory() {
  return emulated::shared_of(emulated::block_of_self());
}
DEVICE void ends_at(const char* end, int num_bytes) {
  if (end - shared_memory() != num_bytes) {
    emulated::fail("shared memory of " + std::to_string(end - shared_memory()) +
                   " bytes, and " + std::to_string(num_bytes) + " were given");
  }
}

struct Peers {
  template <class T>
  T& at(T* p, int rank) const {
    const auto offset = reinterpret_cast<const char*>(p) - shared_memory();
    if (offset < 0 || offset >= emulated::machine().shared_bytes) {
      emulated::fail("a peer is asked for what is not in shared memory");
    }
    const int first = emulated::block_of_self() / kCluster * kCluster;
    return *reinterpret_cast<T*>(emulated::shared_of(first + rank) + offset);
  }
  float read(const float* p, int rank) const {
    return at(const_cast<float*>(p), rank);
  }
  void write(bf16* p, int rank, bf16 x) const { at(p, rank) = x; }
};

DEVICE void block_sync() {
  emulated::meet(emulated::machine().blocks[emulated::block_of_self()],
                 kThreads);
}
DEVICE void warp_sync() {
  emulated::meet(emulated::warp_of_self().meeting, emulated::kLanesOfWarp);
}
DEVICE void cluster_arrive() {
  emulated::Fiber& fiber = emulated::self();
  if (fiber.has_arrived) emulated::fail("a thread arrives twice at a cluster");
  fiber.has_arrived = true;
  fiber.cluster_turn = emulated::cluster_of_self().turn;
  emulated::cluster_of_self().arrive(emulated::kFibers);
}
DEVICE void cluster_wait() {
  emulated::Fiber& fiber = emulated::self();
  if (!fiber.has_arrived) emulated::fail("a thread waits before it arrives");
  fiber.has_arrived = false;
  emulated::wait(emulated::cluster_of_self(), fiber.cluster_turn);
}

using Place = char*;
DEVICE Place address(const void* shared) {
  return static_cast<char*>(const_cast<void*>(shared));
}

DEVICE void copy16(Place to, const void* from) {
  emulated::check_shared(to, 16, "a copy");
  if (reinterpret_cast<uintptr_t>(from) % 16) emulated::fail("a copy is unaligned");
  if (emulated::machine().is_late) {
    emulated::self().groups.back().push_back({to, from});
  } else {
    std::memcpy(to, from, 16);
  }
}
DEVICE void clear16(void* p) {
  emulated::check_shared(p, 16, "a row");
  std::memset(p, 0, 16);
}
DEVICE void end_group() { emulated::self().groups.push_back({}); }
DEVICE void wait_groups(int newest) {
  emulated::land(emulated::self().groups, size_t(newest) + 1);
}
DEVICE void prefetch(const void* from, int num_bytes) {
  if (num_bytes <= 0 || num_bytes % 16 ||
      reinterpret_cast<uintptr_t>(from) % 16) {
    emulated::fail("a prefetch is unaligned");
  }
  // (Reads the ends, so that an address sanitizer sees a wrong one.)
  const volatile char* bytes = static_cast<const char*>(from);
  (void)bytes[0];
  (void)bytes[num_bytes - 1];
}
DEVICE void wait_for_inputs() {}

using emulated::Packet;
DEVICE Packet& packet_at(int place) {
  if (place < 0 || place >= int(emulated::machine().packets.size())) {
    emulated::fail("a packet has no place");
  }
  return emulated::machine().packets[place];
}
DEVICE void write_packet(int place, float number, unsigned launch) {
  packet_at(place) = {number, launch};
  ++emulated::machine().sent.turn;
}
DEVICE Packet read_packet(int place) { return packet_at(place); }
// Until another packet is written.
DEVICE void wait_for_packets(int) {
  emulated::wait(emulated::machine().sent, emulated::machine().sent.turn);
}
DEVICE unsigned launch_number() {
  emulated::machine().is_counted = true;
  return emulated::machine().launches;
}
DEVICE void end_launch(unsigned number) {
  if (number != emulated::machine().launches) {
    emulated::fail("a block ends another launch");
  }
  ++emulated::machine().ends[block()];
}

DEVICE float exponential(float x) { return std::exp(x); }
DEVICE float quotient(float x, float y) { return x / y; }

DEVICE float from_lane(float x, int mask) {
  emulated::Warp& warp = emulated::warp_of_self();
  const int lane = emulated::lane_of_self();
  warp.number[lane] = x;
  if (warp.meeting.here == emulated::kLanesOfWarp - 1) {
    std::memcpy(warp.numbers, warp.number, sizeof(warp.number));
  }
  warp_sync();
  return warp.numbers[lane ^ mask];
}

// Matrix i is of the 8 rows that lanes 8 i to 8 i + 7 point at. Lane l gets
// column l / 4 of it, of rows 2 (l % 4) and the one after.
DEVICE void load_turned(unsigned (&a)[4], Place row) {
  emulated::Warp& warp = emulated::warp_of_self();
  const int lane = emulated::lane_of_self();
  emulated::check_shared(row, 16, "a matrix");
  warp.rows[lane] = row;
  if (warp.meeting.here == emulated::kLanesOfWarp - 1) {
    for (int i = 0; i < 4; ++i) {
      for (int l = 0; l < emulated::kLanesOfWarp; ++l) {
        unsigned two[2];
        for (int k = 0; k < 2; ++k) {
          const void* from = warp.rows[8 * i + l % 4 * 2 + k];
          two[k] = static_cast<const bf16*>(from)[l / 4].bits;
        }
        warp.turned[l][i] = two[0] | two[1] << 16;
      }
    }
  }
  warp_sync();
  std::memcpy(a, warp.turned[lane], sizeof(a));
}

// Lane l has outputs l / 4 and 8 later, inputs 2 (l % 4), the one after, and 8
// later; of tokens, inputs of token l / 4; of sums, tokens 2 (l % 4) and after.
DEVICE void multiply_add(float (&c)[4], const unsigned (&a)[4],
                         const unsigned (&b)[2]) {
  emulated::Warp& warp = emulated::warp_of_self();
  const int lane = emulated::lane_of_self();
  std::memcpy(warp.a[lane], a, sizeof(a));
  std::memcpy(warp.b[lane], b, sizeof(b));
  std::memcpy(warp.c[lane], c, sizeof(c));
  if (warp.meeting.here == emulated::kLanesOfWarp - 1) {
    float outputs[16][16], tokens[16][8];
    for (int l = 0; l < emulated::kLanesOfWarp; ++l) {
      for (int k = 0; k < 2; ++k) {
        const int input = l % 4 * 2 + k;
        auto half = [k](unsigned x) {
          return to_float({static_cast<unsigned short>(x >> 16 * k)});
        };
        outputs[l / 4][input] = half(warp.a[l][0]);
        outputs[l / 4 + 8][input] = half(warp.a[l][1]);
        outputs[l / 4][input + 8] = half(warp.a[l][2]);
        outputs[l / 4 + 8][input + 8] = half(warp.a[l][3]);
        tokens[input][l / 4] = half(warp.b[l][0]);
        tokens[input + 8][l / 4] = half(warp.b[l][1]);
      }
    }
    float sums[16][8] = {};
    for (int m = 0; m < 16; ++m) {
      for (int k = 0; k < 16; ++k) {
        for (int n = 0; n < 8; ++n) sums[m][n] += outputs[m][k] * tokens[k][n];
      }
    }
    for (int l = 0; l < emulated::kLanesOfWarp; ++l) {
      for (int j = 0; j < 4; ++j) {
        warp.c[l][j] += sums[l / 4 + j / 2 * 8][l % 4 * 2 + j % 2];
      }
    }
  }
  warp_sync();
  std::memcpy(c, warp.c[lane], sizeof(c));
}

static inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
