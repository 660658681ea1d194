// What an agent tells of itself to whoever looks at the job: one small record in the store, which
// goes with the agent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensorbus/layout.h"

namespace tensorbus::bus {

// Bytes of the record in the store.
inline constexpr std::size_t largest_status = 1024;

struct BatchStatus {
  std::string batch;
  std::string side;
  std::string work;             // "pull", "send", ...: what it does, or did last
  std::int64_t version = 0;     // that it published, sent or read last
  std::int64_t moved_at = 0;    // then, in nanoseconds since 1970
  std::int64_t bytes = 0;       // and
  std::int64_t took = 0;        // nanoseconds, without waiting
  std::int64_t world_size = 0;  // ranks of the side; 0: not known
  std::int64_t since = 0;       // what runs, began then, in nanoseconds since 1970; 0: nothing runs
  std::int64_t bytes_done = 0;
  std::int64_t bytes_total = 0;
  // The version that it reads now; 0: of a batch without versions. Nothing: it reads nothing.
  std::optional<std::int64_t> reads{};
  std::vector<Rank> from{};     // whom it reads from, or else read from last
  std::vector<Rank> awaited{};  // whom it waits for
  std::string waits{};          // for what; may be cut
  friend bool operator==(const BatchStatus&, const BatchStatus&) = default;
};

struct AgentStatus {
  Rank rank = 0;
  std::string host;
  std::int64_t pid = 0;
  bool embedded = false;
  std::int64_t written_at = 0;  // nanoseconds since 1970
  std::vector<BatchStatus> batches;
  std::int64_t left_out = 0;  // batches for which there was no room
  std::string metrics{};      // URL of its page, if it has one
  // Not in the record, the store says it: the share of its lease that is left, if nobody renews it.
  std::optional<double> lease_left{};
  friend bool operator==(const AgentStatus&, const AgentStatus&) = default;
};

// The batch as its users know it: "shelf of trainer/policy" is what the trainer publishes as
// "policy".
std::string_view shown_batch(std::string_view batch) noexcept;
// The key within its component.
std::string status_key(Rank rank);
// At most largest_status bytes: names are cut, then reasons left out, then the last batches.
std::string encode(AgentStatus status);
// Error(invalid_argument) if it is none.
AgentStatus decode_status(std::string_view bytes);
// Lines of names and values.
std::string print_status(std::string_view bytes);

}  // namespace tensorbus::bus
