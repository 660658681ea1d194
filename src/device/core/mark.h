// The end of a piece of work that a device does.
#pragma once

#include <memory>

#include "tensorbus/deadline.h"
#include "tensorbus/status.h"

namespace tensorbus::device {

// A plain value: copies are the same end. Any thread may ask.
class Mark {
 public:
  Mark();

  // Whether the work is over and this process knows it: the memory of the work is no longer
  // borrowed. Throws the Error that the work failed with; the device does not touch that memory any
  // more then, either.
  bool passed() const;
  // Sleeps until the work is over: true. False at the deadline: the memory is still borrowed.
  // Throws as passed(), and Error(interrupted).
  bool wait(Deadline deadline) const;

  // The same for who must not leave before the end, however that comes: asks for no Ctrl-C.
  bool wait_for_end(Deadline deadline) const noexcept;

  // By who does the work, once.
  void end(const Status& status) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tensorbus::device
