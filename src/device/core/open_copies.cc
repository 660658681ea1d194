#include "device/core/open_copies.h"

#include <utility>

#include "base/log.h"
#include "base/mutex.h"

namespace tensorbus::device {
namespace {

// A device that does not end its copies by then has hung.
constexpr Duration patience = std::chrono::seconds(30);

// The device may write there for as long as this process lives.
void keep_for_good(std::shared_ptr<std::byte> memory) {
  static Mutex mutex;
  static auto* const kept GUARDED_BY(mutex) = new std::vector<std::shared_ptr<std::byte>>;
  const Lock lock(mutex);
  kept->push_back(std::move(memory));
}

}  // namespace

OpenCopies::~OpenCopies() { settle(); }

OpenCopies& OpenCopies::operator=(OpenCopies&& other) noexcept {
  if (this == &other) return *this;
  settle();
  marks_ = std::exchange(other.marks_, {});
  scratch_ = std::exchange(other.scratch_, nullptr);
  return *this;
}

bool OpenCopies::over() {
  for (; !marks_.empty(); marks_.pop_back()) {
    try {
      if (!marks_.back().passed()) return false;
    } catch (...) {
      marks_.pop_back();
      throw;
    }
  }
  return true;
}

bool OpenCopies::ended() noexcept {
  while (true) {
    try {
      return over();
    } catch (...) {
      continue;  // that one is over, too
    }
  }
}

bool OpenCopies::wait(Deadline deadline) {
  while (!over()) {
    if (!marks_.back().wait(deadline)) return false;
  }
  return true;
}

void OpenCopies::settle() noexcept {
  const Deadline latest = Deadline::after(patience);
  for (const Mark& mark : std::exchange(marks_, {})) {
    if (mark.wait_for_end(latest)) continue;
    log::error("a device does not end its copies; their memory is kept");
    if (scratch_ != nullptr) keep_for_good(scratch_);
  }
}

}  // namespace tensorbus::device
