// Many threads that start one task at the same moment. The threads live from one task to the next,
// so that no thread is created in a measurement.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tensorbus::bench {

class Crowd {
 public:
  using Task = std::function<void(std::size_t member)>;

  explicit Crowd(std::size_t size) {
    for (std::size_t member = 0; member < size; ++member) {
      threads_.emplace_back([this, member] { live(member); });
    }
  }
  ~Crowd() { run(nullptr); }

  // From the start until the last member is done. A task that throws ends the program.
  std::chrono::nanoseconds run(Task task) {
    std::unique_lock lock(mutex_);
    task_ = std::move(task);
    working_ = threads_.size();
    ++round_;
    const auto start = std::chrono::steady_clock::now();
    started_.notify_all();
    finished_.wait(lock, [this] { return working_ == 0; });
    return std::chrono::steady_clock::now() - start;
  }

 private:
  void live(std::size_t member) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      started_.wait(lock, [&] { return round_ != seen; });
      seen = round_;
      const bool last = !task_;
      lock.unlock();
      if (!last) task_(member);
      lock.lock();
      if (--working_ == 0) finished_.notify_one();
      if (last) return;
    }
  }

  std::mutex mutex_;
  std::condition_variable started_;
  std::condition_variable finished_;
  Task task_;
  std::uint64_t round_ = 0;
  std::size_t working_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace tensorbus::bench
