// Stages of work, which the calling thread and threads of XLA's pool do
// together.
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

// Stages of units of work. The units of a stage run at once, in any order; a
// stage begins when all units of the stage before it have run. Each thread has
// a share of the units, and then helps with the shares of others. The work is
// therefore done even if no other thread ever comes, and a thread that comes
// late joins in.
class Stages {
 public:
  // Returns stages to be filled, for so many threads.
  //
  // An object of an earlier call is used again where all threads have left it:
  // to allocate one took a tenth of a pass. A thread that was late for a call
  // may still hold the object of that call, so two are kept.
  static std::shared_ptr<Stages> create(long threads) {
    static thread_local std::shared_ptr<Stages> spare[2];
    for (auto& stages : spare)
      if (stages.use_count() == 1) {
        // The count is read without an order; what the thread that left wrote
        // must be seen before the memory is used again.
        std::atomic_thread_fence(std::memory_order_acquire);
        stages->threads = threads;
        stages->stages.clear();
        stages->memory.release();
        return stages;
      }
    std::swap(spare[0], spare[1]);
    return spare[0] = std::shared_ptr<Stages>(new Stages(threads));
  }

  // Adds a stage: run(i, n) does units i to i + n - 1. Units i to i + group -
  // 1, where group divides i, are run as one where a share holds them all.
  template <class Run>
  void add(long num_units, const Run& run, long group = 1) {
    // The memory is released as a whole, and no destructor runs.
    static_assert(std::is_trivially_destructible_v<Run>);
    void* room = memory.allocate(sizeof(Run), alignof(Run));
    const auto call = [](const void* work, long i, long n) {
      (*(const Run*)work)(i, n);
    };
    stages.push_back({num_units, group, new (room) Run(run), call});
  }

  // Returns when all units of all stages have run. A thread of the pool that
  // begins only then touches nothing but the stages, which it holds.
  static void run(ffi::ThreadPool& pool, std::shared_ptr<Stages> shared) {
    const size_t num_stages = shared->stages.size();
    shared->done = shared->counters(num_stages);
    shared->taken = shared->counters(num_stages * shared->threads);
    num_calls++;
    shared->processor = current_processor();
    // A thread that still waits in its seat is faster than one that is woken.
    for (long i = 1; i < shared->threads; i++)
      if (i >= MOST_SEATS || !seats[i].give(shared))
        pool.Schedule([shared, i] { help(shared, i); });
    shared->work(0);
  }

 private:
  struct Stage {
    long num_units, group;
    const void* work;  // a copy of the function object that was added
    void (*run)(const void* work, long i, long n);
  };
  // A counter has a cache line of its own, so that threads that count for
  // different shares do not wait for each other.
  struct alignas(64) Counter {
    std::atomic<long> count{0};
  };
  static constexpr int SPINS = 1 << 12;  // before a thread gives way

  // Where a thread of the pool waits for the work of the next call: to wake a
  // thread takes as long as some stages.
  //
  // `is_taken` lets one thread at a time wait here. Whoever turns `is_waiting`
  // from true to false decides how the wait ends: a caller, which then hands
  // over work, or the thread itself, which then leaves with none.
  class Seat {
    std::atomic<bool> is_taken{false}, is_waiting{false}, has_work{false};
    std::shared_ptr<Stages> work;

   public:
    // Hands the work to the thread that waits here; false if none does.
    bool give(const std::shared_ptr<Stages>& shared) {
      if (!is_waiting.exchange(false)) return false;
      work = shared;
      has_work = true;
      return true;
    }

    // Returns the work that is handed over here while calls follow each other
    // closely; none after that, or where another thread waits.
    std::shared_ptr<Stages> wait() {
      if (is_taken.exchange(true)) return nullptr;
      is_waiting = true;
      long known_calls = num_calls;
      for (int spin = 0; !has_work; spin++) {
        pause();
        // A call of any thread is a sign that more calls come.
        if (known_calls != num_calls) {
          known_calls = num_calls;
          spin = 0;
        }
        // If the exchange fails, a caller is about to hand over its work: the
        // loop continues until it has.
        if (spin > WAITING_SPINS && is_waiting.exchange(false)) break;
      }
      has_work = false;
      std::shared_ptr<Stages> received = std::move(work);
      is_taken = false;
      return received;
    }
  };

  // 30 to 100 us: longer than what XLA does between two calls; and short, since
  // XLA may want the thread itself.
  static constexpr int WAITING_SPINS = 2000;
  static constexpr int MOST_SEATS = 64;
  static inline std::atomic<long> num_calls{0};
  static Seat seats[MOST_SEATS];

  alignas(64) std::byte first_memory[1 << 16];
  std::pmr::monotonic_buffer_resource memory{first_memory, sizeof first_memory};
  long threads;
  int processor;  // that the caller runs on
  std::vector<Stage> stages;
  Counter* done;   // units that have run, by stage
  Counter* taken;  // units of a share that were taken, by stage and thread

  explicit Stages(long threads) : threads(threads) {}

  Counter* counters(size_t n) {
    void* room = memory.allocate(n * sizeof(Counter), alignof(Counter));
    return std::uninitialized_default_construct_n((Counter*)room, n) - n;
  }

  // Moves this thread to another processor if it was woken on the caller's. The
  // caller then waits for this thread, and some kernels leave both threads on
  // one processor for longer than all passes of a sentence take. To forbid a
  // processor moves the thread at once; then all are allowed again.
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
  static void help(std::shared_ptr<Stages> shared, long thread) {
    while (shared) {
      leave(shared->processor);
      shared->work(thread);
      // The caller may use the object again once nothing else holds it.
      shared.reset();
      if (thread < MOST_SEATS) shared = seats[thread].wait();
    }
  }

  // Returns the first unit of a thread's share. Of 7 units three threads have 0
  // and 1, 2 and 3, 4 to 6.
  long first(const Stage& stage, long thread) const {
    return thread * stage.num_units / threads;
  }

  void work(long thread) {
    for (size_t s = 0; s < stages.size(); s++) {
      const Stage& stage = stages[s];
      long num_run = 0;
      // This thread's own share, then the others'.
      for (long t = thread; t < thread + threads; t++) {
        const long owner = t % threads, begin = first(stage, owner);
        num_run += share(stage, begin, first(stage, owner + 1) - begin,
                         taken[s * threads + owner].count);
      }
      // Units that another thread has taken may still run.
      auto& num_done = done[s].count;
      num_done += num_run;
      for (int spin = 0; num_done < stage.num_units; spin++)
        spin < SPINS ? pause() : std::this_thread::yield();
    }
  }

  // Runs what is left of a share, and returns how many units it ran. Where the
  // group is 2 and the share begins with unit 3, unit 3 runs alone, then 4
  // and 5.
  long share(const Stage& stage, long begin, long size,
             std::atomic<long>& taken) {
    long num_run = 0, i = taken;
    while (i < size) {
      const long rest = stage.group - (begin + i) % stage.group;
      const long n = std::min(rest, size - i);
      // Where another thread was faster, i is what has been taken by now.
      if (!taken.compare_exchange_weak(i, i + n)) continue;
      stage.run(stage.work, begin + i, n);
      num_run += n;
      i = taken;
    }
    return num_run;
  }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
};

inline Stages::Seat Stages::seats[MOST_SEATS];
