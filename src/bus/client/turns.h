// One call at a time, in the order in which the calls were begun.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>

#include "base/mutex.h"
#include "tensorbus/deadline.h"

namespace tensorbus::bus {

// Thread safe.
class Turns {
 public:
  bool taken() const;

 private:
  friend class Turn;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::deque<std::uint64_t> queue_ GUARDED_BY(mutex_);  // the first has its turn
};

// A place in the queue, until it is left.
class Turn {
 public:
  explicit Turn(std::shared_ptr<Turns> turns);
  ~Turn() { leave(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // False at the deadline. Throws Error(interrupted) or Error(cancelled).
  bool wait(Deadline deadline);
  bool is_next() const;
  void leave() noexcept;

 private:
  const std::shared_ptr<Turns> turns_;
  std::uint64_t place_ = 0;
};

}  // namespace tensorbus::bus
