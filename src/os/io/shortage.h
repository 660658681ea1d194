// Accepting connections when descriptors or memory run out.
#pragma once

#include <string>

#include "tensorbus/deadline.h"

namespace tensorbus::os {

// Whether accept() failed for a lack of descriptors or memory. The listener stays ready then, and
// clients wait in its backlog.
bool is_shortage(int error_number) noexcept;

// For who accepts: do not ask again before until(), and stop watching the listener for so long. The
// log says once when a shortage begins and once when it is over, however long it lasts.
class Shortage {
 public:
  // `who`: for the log.
  explicit Shortage(std::string who) : who_(std::move(who)) {}

  // accept() failed with this error.
  void begin(int error_number, TimePoint now);
  // True once when until() has come: watch the listener again.
  bool pause_is_over(TimePoint now) noexcept;
  // Somebody was accepted.
  void end();
  // When to try again; max if nothing is short.
  TimePoint until() const noexcept { return until_; }

 private:
  const std::string who_;
  TimePoint until_ = TimePoint::max();
  bool told_ = false;
};

}  // namespace tensorbus::os
