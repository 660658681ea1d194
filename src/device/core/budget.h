// So many bytes, taken and given back by any thread.
#pragma once

#include <cstddef>

#include "base/mutex.h"

namespace tensorbus::device {

class Budget {
 public:
  explicit Budget(std::size_t bytes) : left_(bytes) {}

  // False, and nothing is taken, if there is less left.
  bool take(std::size_t bytes) {
    const Lock lock(mutex_);
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  void give_back(std::size_t bytes) {
    const Lock lock(mutex_);
    left_ += bytes;
  }

 private:
  Mutex mutex_;
  std::size_t left_ GUARDED_BY(mutex_);
};

}  // namespace tensorbus::device
