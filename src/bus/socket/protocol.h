// What a client and its agent write to each other over their socket.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "bus/channel/channel.h"
#include "bus/channel/command_fields.h"

namespace tensorbus::bus::protocol {

// Changes with every change of these messages.
inline constexpr std::uint64_t version = 4;

// From the client. The first message is Hello, and the answer to it comes before anything else. Of
// a Hello of another version only the version is read.
struct Hello {
  std::uint64_t version = protocol::version;
  std::string space;
  Rank rank = 0;
  std::uint64_t session = 0;
  std::int64_t pid = 0;  // as the client sees it
  friend bool operator==(const Hello&, const Hello&) = default;
};
// The descriptors of the loan come with it.
struct Submit {
  std::uint64_t sequence = 0;
  wire::Sealed<Command> command;          // written once, and journaled as it came
  std::optional<std::int64_t> time_left;  // nanoseconds; nothing: for ever
  std::optional<std::string> loan;
  bool quiet = false;  // its acceptance is not told: the outcome is waited for
  friend bool operator==(const Submit&, const Submit&) = default;
};
// Not wanted any more unless it is accepted: answered by Refused or Accepted.
struct Withdraw {
  std::uint64_t sequence = 0;
  friend bool operator==(const Withdraw&, const Withdraw&) = default;
};
struct Cancel {
  std::uint64_t sequence = 0;
  Status reason;
  friend bool operator==(const Cancel&, const Cancel&) = default;
};
struct Look {
  std::uint64_t request = 0;
  friend bool operator==(const Look&, const Look&) = default;
};
struct GuardSemaphore {
  std::uint64_t request = 0;
  std::string name;
  friend bool operator==(const GuardSemaphore&, const GuardSemaphore&) = default;
};
struct ReleaseSemaphore {
  std::string name;
  friend bool operator==(const ReleaseSemaphore&, const ReleaseSemaphore&) = default;
};
struct Bye {
  friend bool operator==(const Bye&, const Bye&) = default;
};
using FromClient =
    std::variant<Hello, Submit, Withdraw, Cancel, Look, GuardSemaphore, ReleaseSemaphore, Bye>;

// From the agent.
struct Welcome {
  std::int64_t pid = 0;
  std::uint64_t last_accepted = 0;  // of this session, by this agent or the one before it
  friend bool operator==(const Welcome&, const Welcome&) = default;
};
struct Rejected {
  Status reason;
  friend bool operator==(const Rejected&, const Rejected&) = default;
};
struct Accepted {
  std::uint64_t sequence = 0;
  friend bool operator==(const Accepted&, const Accepted&) = default;
};
struct Refused {
  std::uint64_t sequence = 0;
  Status reason;
  friend bool operator==(const Refused&, const Refused&) = default;
};
struct Done {
  std::uint64_t sequence = 0;
  Outcome outcome;
  friend bool operator==(const Done&, const Done&) = default;
};
struct Progress {
  std::uint64_t sequence = 0;
  std::int64_t done = 0;
  std::int64_t total = 0;
  friend bool operator==(const Progress&, const Progress&) = default;
};
struct Looked {
  std::uint64_t request = 0;
  QueueState state;
  friend bool operator==(const Looked&, const Looked&) = default;
};
struct Guarded {
  std::uint64_t request = 0;
  Status status;
  friend bool operator==(const Guarded&, const Guarded&) = default;
};
using FromAgent =
    std::variant<Welcome, Rejected, Accepted, Refused, Done, Progress, Looked, Guarded>;

// Decoding checks everything and throws Error(invalid_argument).
std::string encode(const FromClient& message);
std::string encode(const FromAgent& message);
FromClient decode_from_client(std::string_view bytes);
FromAgent decode_from_agent(std::string_view bytes);

}  // namespace tensorbus::bus::protocol
