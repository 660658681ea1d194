// proves: B3.8, B3.10
#include <gtest/gtest.h>

#include "base/config.h"
#include "bus/simulation/users.h"

namespace tensorbus::bus::simulation {
namespace {

Report expect_clean(std::uint64_t seed, const Faults& faults) {
  Report report = simulate(seed, faults);
  if (!report.violations.empty()) {
    std::string history;
    for (const std::string& line : report.history) history += line + "\n";
    ADD_FAILURE() << "seed " << seed << ": " << report.violations.front() << "\n" << history;
  }
  return report;
}

Report run(std::uint64_t seeds, const Faults& faults) {
  Report sum;
  for (std::uint64_t seed = 1; seed <= seeds && !testing::Test::HasFailure(); ++seed) {
    sum.add(expect_clean(seed, faults));
  }
  return sum;
}

constexpr std::size_t all_faults_count = 17;  // kinds

bool is_long() { return config::variable("TENSORBUS_TEST_LONG").has_value(); }

TEST(Simulation, WithoutFaults) { run(is_long() ? 200 : 5, {}); }

TEST(Simulation, WithDeadlinesAndCancels) {
  run(is_long() ? 200 : 5, {.slow = true, .expires = true});
}

TEST(Simulation, WithKillsAndRestarts) { run(is_long() ? 200 : 5, {.kills = true}); }

TEST(Simulation, WithLinesThatBreak) { run(is_long() ? 200 : 5, {.lines = true}); }

TEST(Simulation, WithEverything) {
  const Report report = run(is_long() ? 600 : 20, all_faults);
  EXPECT_EQ(report.hits.size(), all_faults_count);
  if (!is_long()) return;  // some steps are rare
  for (std::size_t at = 0; at < step_count; ++at) {
    std::size_t hits = 0;
    for (const auto& [fault, steps] : report.hits) hits += steps[at];
    EXPECT_GT(hits, 0u) << "nothing ever hit an agent after " << to_string(static_cast<Step>(at));
  }
}

TEST(Simulation, TheSameSeedGivesTheSameHistory) {
  EXPECT_EQ(simulate(7, all_faults).history, simulate(7, all_faults).history);
}

}  // namespace
}  // namespace tensorbus::bus::simulation
