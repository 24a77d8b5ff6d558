// A pool of threads with the interface of XLA's, for programs that a sanitizer
// watches: it sees every lock here, and none inside XLA.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace xla::ffi {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads) {
    for (int i = 0; i < num_threads; i++)
      threads.emplace_back([this] { run(); });
  }

  ~ThreadPool() {
    {
      std::lock_guard lock(mutex);
      ends = true;
    }
    woken.notify_all();
    for (auto& thread : threads) thread.join();
  }

  template <class Task>
  void Schedule(Task task) {
    {
      std::lock_guard lock(mutex);
      tasks.push_back(std::move(task));
    }
    woken.notify_one();
  }

  long num_threads() const { return threads.size(); }

 private:
  std::mutex mutex;
  std::condition_variable woken;
  std::deque<std::function<void()>> tasks;
  bool ends = false;
  std::vector<std::thread> threads;

  void run() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex);
        woken.wait(lock, [this] { return ends || !tasks.empty(); });
        if (tasks.empty()) return;
        task = std::move(tasks.front());
        tasks.pop_front();
      }
      task();
    }
  }
};

}  // namespace xla::ffi
