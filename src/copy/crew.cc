#include "copy/crew.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/hot/ticker.h"
#include "base/log.h"
#include "base/mutex.h"
#include "os/process/process.h"

namespace tensorbus::copy {
namespace {

// Looks at a condition some tens of microseconds long. The next run of a long copy comes sooner
// than a thread wakes up.
constexpr int looks = 2000;

template <typename Holds>
bool spin_until(Holds holds) {
  for (int i = 0; i < looks; ++i) {
    if (holds()) return true;
    relax();
  }
  return false;
}

}  // namespace

// The pieces of one run, taken one by one by whoever is free.
class Crew::Work {
 public:
  explicit Work(const Pieces& pieces) : pieces_(pieces) {}

  void take_part() noexcept {
    for (std::size_t at = next_++; at < pieces_.count; at = next_++) {
      try {
        pieces_.call(pieces_.piece, at);
      } catch (...) {
        keep(std::current_exception());
      }
    }
  }
  // When nobody takes part any more, so that nobody can change the error: unchecked, as no mutex is
  // needed.
  void rethrow() LOCKS_UNCHECKED {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  // Keeps the first exception; the pieces that have not begun are left out.
  void keep(std::exception_ptr error) {
    const Lock lock(mutex_);
    if (!error_) error_ = std::move(error);
    next_ = pieces_.count;
  }

  const Pieces pieces_;
  std::atomic<std::size_t> next_ = 0;
  Mutex mutex_;
  std::exception_ptr error_ GUARDED_BY(mutex_);
};

class Crew::Threads {
 public:
  Threads() = default;
  ~Threads() {
    {
      const Lock lock(mutex_);
      closing_ = true;
    }
    called_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Takes part in the work together with so many threads; returns when all are done with it.
  void share(Work& work, std::size_t helpers) {
    helpers = started(helpers);
    call(work, helpers);
    work.take_part();
    dismiss();
  }

 private:
  std::size_t started(std::size_t wanted) {
    try {
      while (threads_.size() < wanted) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& error) {
      log::warn("a copy has {} threads instead of {}: {}", threads_.size() + 1, wanted + 1,
                error.what());
    }
    return std::min(wanted, threads_.size());
  }

  void call(Work& work, std::size_t helpers) {
    {
      const Lock lock(mutex_);
      work_ = &work;
      places_ = helpers;
    }
    called_.notify_all();
  }

  // Threads that have not come yet need not; the others finish what they have in hand.
  void dismiss() {
    {
      const Lock lock(mutex_);
      places_ = 0;
    }
    if (spin_until([&] { return working_.load(std::memory_order_acquire) == 0; })) return;
    Lock lock(mutex_);
    while (working_ > 0) left_.wait(lock);
  }

  void serve() {
    os::block_signals_in_this_thread();
    ::pthread_setname_np(::pthread_self(), "tensorbus copy");
    while (Work* const work = enter()) {
      work->take_part();
      leave();
    }
  }

  // Null: the crew is closed.
  Work* enter() {
    spin_until([&] { return places_.load(std::memory_order_relaxed) > 0; });
    Lock lock(mutex_);
    while (places_ == 0 && !closing_) called_.wait(lock);
    if (closing_) return nullptr;
    --places_;
    ++working_;
    return work_;
  }

  void leave() {
    const Lock lock(mutex_);
    if (--working_ == 0) left_.notify_all();
  }

  std::vector<std::thread> threads_;
  Mutex mutex_;
  std::condition_variable called_;
  std::condition_variable left_;
  Work* work_ GUARDED_BY(mutex_) = nullptr;
  bool closing_ GUARDED_BY(mutex_) = false;
  // Written by holders of the mutex; a thread that spins reads these without it.
  std::atomic<std::size_t> places_ = 0;  // for threads that come yet
  std::atomic<std::size_t> working_ = 0;
};

Crew::Crew(std::size_t size) : size_(0) { resize(size); }

Crew::~Crew() {
  if (os::fork_generation() == generation_) return;
  [[maybe_unused]] const Threads* const lost = threads_.release();
}

void Crew::resize(std::size_t size) noexcept {
  size_.store(std::clamp<std::size_t>(size, 1, most_threads), std::memory_order_relaxed);
}

void Crew::dismiss() noexcept {
  if (os::fork_generation() != generation_) return;
  if (taken_.exchange(true, std::memory_order_acquire)) return;
  threads_.reset();
  taken_.store(false, std::memory_order_release);
}

void Crew::share(const Pieces& pieces) {
  Work work(pieces);
  if (taken_.exchange(true, std::memory_order_acquire)) {
    work.take_part();
  } else {
    if (threads_ == nullptr) threads_ = std::make_unique<Threads>();
    threads_->share(work, std::min(size(), pieces.count) - 1);
    taken_.store(false, std::memory_order_release);
  }
  work.rethrow();
}

}  // namespace tensorbus::copy
