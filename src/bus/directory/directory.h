// The store as an agent's loop needs it: nothing blocks, answers and changes come as events.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "tensorbus/status.h"

namespace tensorbus::bus {

// A key under the bus's prefix now holds a value, or (nothing) is gone. At the start there is one
// for every key there is.
struct Changed {
  std::string key;
  std::optional<std::string> value;
};
// The answer to compare_and_set(): whether the store swapped, and what the key holds now. Where the
// store did not answer at first, a key that holds what was desired counts as swapped.
struct Swapped {
  std::uint64_t request = 0;
  bool swapped = false;
  std::optional<std::string> value;
};
// The store took this agent for dead and has removed what the agent published. What was published
// before this event came out of poll() is not tried any more: publish again what shall be there.
struct LeaseLost {
  Status reason;
};
// The store cannot be reached (cancelled: this process itself has stopped it), or (ok) can be
// again. Requests wait meanwhile.
struct Reachable {
  Status status;
};
// The store will never take this publish(), whatever its state: too large, say.
struct Refused {
  std::string key;
  Status reason;
};
using DirectoryEvent = std::variant<Changed, Swapped, LeaseLost, Reachable, Refused>;

// Owned and polled by one thread; no call blocks. Requests are carried out in order, once each, and
// tried again while the store cannot be reached. Keys are relative to the bus's prefix.
class Directory {
 public:
  virtual ~Directory() = default;

  // The key vanishes when this process does.
  virtual void publish(std::string key, std::string value) = 0;
  virtual void withdraw(std::string key) = 0;
  // For people who look at the job, beside the keys of the bus: vanishes like what is published. A
  // hint, may be dropped.
  virtual void show(std::string /*key*/, std::string /*value*/) {}
  // A key that stays. Swapped follows.
  virtual void compare_and_set(std::string key, std::optional<std::string> expected,
                               std::string desired, std::uint64_t request) = 0;

  // Valid until the next call.
  virtual std::span<const DirectoryEvent> poll() = 0;
  // To sleep: arm(); if true wait until fd() is readable, then poll(). False: there is work now.
  virtual bool arm() = 0;
  virtual int fd() const noexcept = 0;
};

}  // namespace tensorbus::bus
