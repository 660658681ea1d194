// What can go wrong, named by what the caller can do next.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#pragma GCC visibility push(default)

namespace tensorbus {

enum class Code : std::uint8_t {
  ok,
  invalid_argument,  // fix the call
  timeout,           // the deadline passed; try again or give more time
  unreachable,       // the other process cannot be reached (now); try again later
  denied,            // credentials are wrong; fix the set-up
  unsupported,       // this backend cannot do it; choose another
  peer_lost,         // a member is gone; go on without it
  queue_full,        // slow down
  cancelled,         // the caller itself, or a close(), ended it
  interrupted,       // a signal asked the caller to stop
  failed,            // anything else; the message says what
  withdrawn,         // the owner took its memory back; ask for what it offers next
};

std::string_view to_string(Code code) noexcept;

// How errors cross threads, processes and wires.
struct Status {
  Code code = Code::ok;
  std::string message;

  bool ok() const noexcept { return code == Code::ok; }
  friend bool operator==(const Status&, const Status&) = default;
};

// How errors travel inside one call stack.
class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  explicit Error(const Status& status) : Error(status.code, status.message) {}

  Code code() const noexcept { return code_; }
  Status status() const { return {code_, what()}; }

 private:
  Code code_;
};

// The status of an exception that is being handled, whatever its type.
Status current_exception_status() noexcept;

}  // namespace tensorbus

#pragma GCC visibility pop
