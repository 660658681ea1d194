// The sign of life that an agent writes to its state once a second.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "wire/field.h"

namespace tensorbus::bus {

struct Heartbeat {
  std::int64_t wall_clock_ns = 0;
  std::string space;
  std::string command;  // what it was doing; empty: nothing
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

constexpr wire::Title title_of(const Heartbeat*) { return {"heartbeat"}; }
template <typename Archive>
void fields(Archive& a, Heartbeat& beat) {
  a("wall_clock_ns", beat.wall_clock_ns);
  a("space", beat.space);
  a("command", beat.command);
}

std::string encode(const Heartbeat& beat);
Heartbeat decode_heartbeat(std::string_view bytes);

// For messages about an agent that does not answer, from its state file, as a sentence: how old the
// last sign of life is and which command it was in, or that there is none.
std::string describe_heartbeat(const std::string& state_path);

}  // namespace tensorbus::bus
