// What `tensorbus doctor` looks at. Each look adds what it found; nothing is changed, and nothing
// leaves this machine but what a peer is asked.
#pragma once

#include <string>
#include <vector>

#include "fabric/core/port_range.h"

namespace tensorbus::program {

struct Finding {
  enum class State { fine, note, problem };

  std::string section;
  std::string name;
  std::string value;
  State state = State::fine;
  std::string advice = {};  // what to do; empty when all is well
};
using Findings = std::vector<Finding>;

void look_at_machine(Findings& findings);
void look_at_limits(Findings& findings);
// Whether processes of this host can share memory, and read each other's.
void look_at_shared_memory(Findings& findings);
// `bind`: the address that an agent is to listen on; empty: no network.
void look_at_network(Findings& findings, const std::string& bind, const fabric::PortRange& ports);
// `peer`: an encoded address or descriptor.
void look_at_peer(Findings& findings, const std::string& peer, const std::string& bind);
void look_at_settings(Findings& findings);
// Loads the CUDA driver and uses its devices for a few seconds.
void look_at_devices(Findings& findings);

// A table for people; problems with what to do about them.
std::string to_text(const Findings& findings);
std::string to_json(const Findings& findings);

}  // namespace tensorbus::program
