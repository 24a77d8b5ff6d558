// Two callers at once run stages on one pool of threads. Each checks that every
// unit of its stages ran once, and after all units of the stage before it.
#include <atomic>
#include <memory>

// ThreadSanitizer does not know fences. The one fence of stages.h orders the
// read of a count of owners; a copy of the owner reads that count in order, too.
#ifdef KNOWS_FENCE
#define atomic_thread_fence(order) \
  atomic_thread_fence(order), (void)std::shared_ptr<Stages>(stages)
#endif
#include "stages.h"

#include <cstdio>
#include <cstdlib>
#include <random>

static constexpr int CALLS = 10000;
static constexpr long MOST_UNITS = 96;

static void call(ffi::ThreadPool& pool, int seed) {
  std::mt19937 random(seed);
  std::vector<long> first(MOST_UNITS), second(MOST_UNITS);
  long *x = first.data(), *y = second.data();
  for (int i = 0; i < CALLS; i++) {
    auto stages = Stages::create(1 + random() % 3);
    const long n = 1 + random() % MOST_UNITS;
    std::fill_n(x, n, 0);
    std::fill_n(y, n, 0);
    stages->add(
        n,
        [x](long i, long m) {
          for (long k = i; k < i + m; k++) x[k] += k + 1;
        },
        1 + random() % 2);
    // Each unit reads what another unit of the stage before it wrote.
    stages->add(n, [x, y, n](long i, long m) {
      for (long k = i; k < i + m; k++) y[k] += x[n - 1 - k];
    });
    stages->add(n, [x, y, n](long i, long m) {
      for (long k = i; k < i + m; k++) x[k] += y[n - 1 - k];
    });
    Stages::run(pool, stages);
    for (long k = 0; k < n; k++)
      if (x[k] != 2 * (k + 1) || y[k] != n - k) {
        std::printf("call %d, unit %ld of %ld: %ld, %ld\n", i, k, n, x[k],
                    y[k]);
        std::exit(1);
      }
  }
}

int main() {
  ffi::ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int seed = 0; seed < 2; seed++)
    callers.emplace_back([&pool, seed] { call(pool, seed); });
  for (auto& caller : callers) caller.join();
  std::puts("every unit ran once");
}
