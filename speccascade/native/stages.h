// Stages of work, which the caller and threads of XLA's pool do together.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// Stages of units of work. Units of a stage run at once, in any order; a stage
// begins when that before it has ended. Each thread has a share of the units,
// and then helps with those of others: all is done even if no other thread
// ever comes, and one that comes late joins in.
class Stages {
 public:
  // Returns no stages yet, for so many threads. The memory is that of a call
  // before, where all threads have left it: to allocate took a tenth of a pass.
  static std::shared_ptr<Stages> create(long threads) {
    static thread_local std::shared_ptr<Stages> kept[2];
    for (auto& stages : kept)
      if (stages.use_count() == 1) {
        std::atomic_thread_fence(std::memory_order_acquire);
        stages->threads = threads;
        stages->stages.clear();
        stages->memory.release();
        return stages;
      }
    std::swap(kept[0], kept[1]);
    return kept[0] = std::shared_ptr<Stages>(new Stages(threads));
  }

  // Adds a stage: run(i, n) does units i to i + n - 1. Units i to
  // i + group - 1, i a multiple of it, are run as one.
  template <class Run>
  void add(long num_units, const Run& run, long group = 1) {
    static_assert(std::is_trivially_destructible_v<Run>);
    void* room = memory.allocate(sizeof(Run), alignof(Run));
    const auto call = [](const void* kept, long i, long n) {
      (*(const Run*)kept)(i, n);
    };
    stages.push_back({num_units, group, new (room) Run(run), call});
  }

  // Returns when all units of all stages have run. A thread of the pool that
  // begins only then touches nothing but the stages.
  static void run(ffi::ThreadPool& pool, std::shared_ptr<Stages> all) {
    const size_t num_stages = all->stages.size();
    all->done = all->counters(num_stages);
    all->taken = all->counters(num_stages * all->threads);
    num_calls++;
    all->processor = current_processor();
    for (long i = 1; i < all->threads; i++)
      if (i >= MOST_SEATS || !seats[i].give(all))
        pool.Schedule([all, i] { help(all, i); });
    all->work(0);
  }

 private:
  struct Stage {
    long num_units, group;
    const void* kept;  // a copy of what was added
    void (*run)(const void* kept, long i, long n);
  };
  struct alignas(64) Counter {
    std::atomic<long> count{0};
  };
  static constexpr int SPINS = 1 << 12;  // before a thread gives way

  // Where a thread of the pool waits for the work of the next call: to wake one
  // takes as long as some stages.
  class Seat {
    std::atomic<bool> is_taken{false}, is_waiting{false}, has_work{false};
    std::shared_ptr<Stages> work;

   public:
    // Whether a thread waits here; then the work is its.
    bool give(const std::shared_ptr<Stages>& given) {
      if (!is_waiting.exchange(false)) return false;
      work = given;
      has_work = true;
      return true;
    }

    // Returns what is given here while calls follow each other closely; none
    // after that, or where another thread waits.
    std::shared_ptr<Stages> wait() {
      if (is_taken.exchange(true)) return nullptr;
      is_waiting = true;
      long known = num_calls;
      for (int spin = 0; !has_work; spin++) {
        pause();
        if (known != num_calls) known = num_calls, spin = 0;
        if (spin > WAITING_SPINS && is_waiting.exchange(false)) break;
      }
      has_work = false;
      std::shared_ptr<Stages> given = std::move(work);
      is_taken = false;
      return given;
    }
  };

  // 30 to 100 us: longer than what XLA does between two calls, and short, for
  // it may want the thread itself.
  static constexpr int WAITING_SPINS = 2000;
  static constexpr int MOST_SEATS = 64;
  static inline std::atomic<long> num_calls{0};
  static Seat seats[MOST_SEATS];

  alignas(64) std::byte first_memory[1 << 16];
  std::pmr::monotonic_buffer_resource memory{first_memory, sizeof first_memory};
  long threads;
  int processor;  // of the caller
  std::vector<Stage> stages;
  Counter *done, *taken;  // of each stage; and each thread

  explicit Stages(long threads) : threads(threads) {}

  Counter* counters(size_t n) {
    void* room = memory.allocate(n * sizeof(Counter), alignof(Counter));
    return std::uninitialized_default_construct_n((Counter*)room, n) - n;
  }

  // Has this thread go on elsewhere if it was woken on the processor of the
  // caller, which then waits for it: some kernels leave both there for longer
  // than all passes of a sentence take.
  static void leave(int processor) {
#if defined(__linux__)
    cpu_set_t allowed;
    if (processor != current_processor() ||
        sched_getaffinity(0, sizeof allowed, &allowed))
      return;
    cpu_set_t others = allowed;
    CPU_CLR(processor, &others);
    if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others))
      sched_setaffinity(0, sizeof allowed, &allowed);
#endif
  }

  static int current_processor() {
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
  }

  // What a thread of the pool does.
  static void help(std::shared_ptr<Stages> all, long thread) {
    while (all) {
      leave(all->processor);
      all->work(thread);
      all.reset();
      if (thread < MOST_SEATS) all = seats[thread].wait();
    }
  }

  // Returns the first unit of a thread's share.
  long first(const Stage& stage, long thread) const {
    return thread * stage.num_units / threads;
  }

  void work(long thread) {
    for (size_t s = 0; s < stages.size(); s++) {
      const Stage& stage = stages[s];
      long mine = 0;
      for (long t = thread; t < thread + threads; t++) {
        const long owner = t % threads, begin = first(stage, owner);
        mine += share(stage, begin, first(stage, owner + 1) - begin,
                      taken[s * threads + owner].count);
      }
      auto& all = done[s].count;
      all += mine;
      for (int spin = 0; all < stage.num_units; spin++)
        spin < SPINS ? pause() : std::this_thread::yield();
    }
  }

  // Runs what is left of a share, and returns how many units that were.
  long share(const Stage& stage, long begin, long size,
             std::atomic<long>& taken) {
    long mine = 0, i = taken;
    while (i < size) {
      const long rest = stage.group - (begin + i) % stage.group;
      const long n = std::min(rest, size - i);
      if (!taken.compare_exchange_weak(i, i + n)) continue;
      stage.run(stage.kept, begin + i, n);
      mine += n, i = taken;
    }
    return mine;
  }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
};

inline Stages::Seat Stages::seats[MOST_SEATS];
