// Users of a simulated cluster: users fill their memory and send, receive and check every element,
// lose patience, die. Everything follows from the seed.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bus/round/step.h"
#include "bus/simulation/simulation.h"

namespace tensorbus::bus::simulation {

struct Faults {
  bool kills = false;    // processes die, agents alone die; both are started again
  bool stops = false;    // an agent stands still for a while; its worker goes on
  bool lapses = false;   // the store takes an agent for dead
  bool lines = false;    // connections break, ranks do not reach each other or the store, or late
  bool slow = false;     // copies take long, queues are full
  bool expires = false;  // deadlines, cancelled calls, workers that take their memory back
};
inline constexpr Faults all_faults{true, true, true, true, true, true};

// Whether such a fault can hit an agent that has just taken this step; all but a few can.
bool can_hit(const std::string& fault, Step step);

struct Report {
  std::vector<std::string> history;
  std::vector<std::string> violations;  // invariants that did not hold, by number
  std::map<std::string, std::size_t> counts;
  // How often each kind of fault hit an agent that had just taken this step.
  std::map<std::string, std::array<std::size_t, step_count>> hits;

  void add(const Report& other);
};

// Hurts the cluster for a while, then runs it until every user has had enough successes, closes
// everything and looks for what is left.
Report simulate(std::uint64_t seed, const Faults& faults);

}  // namespace tensorbus::bus::simulation
