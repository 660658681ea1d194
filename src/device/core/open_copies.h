// Copies that a device may still be at, and the host memory that they use.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "device/core/mark.h"

namespace tensorbus::device {

// Used by one thread. Whoever drops it waits until the device is at none of the copies any more.
class OpenCopies {
 public:
  OpenCopies() = default;
  explicit OpenCopies(std::shared_ptr<std::byte> scratch) : scratch_(std::move(scratch)) {}
  ~OpenCopies();
  OpenCopies(OpenCopies&&) noexcept = default;
  OpenCopies& operator=(OpenCopies&& other) noexcept;

  void add(Mark mark) { marks_.push_back(std::move(mark)); }
  // Whether all are over: then none is open any more. Throws the Error of one that failed.
  bool over();
  // The same for who does not care how the copies ended.
  bool ended() noexcept;
  // Sleeps until all are over. False at the deadline. Throws as over(), and Error(interrupted).
  bool wait(Deadline deadline);
  // Sleeps until none is under way, however it ended.
  void settle() noexcept;

 private:
  std::vector<Mark> marks_;
  std::shared_ptr<std::byte> scratch_;
};

}  // namespace tensorbus::device
