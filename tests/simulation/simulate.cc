// Simulated clusters from seeds. One is told line by line; of many, how often each kind of fault
// hit each step ("-": it cannot). Exits with 1 if an invariant broke.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "bus/simulation/users.h"

namespace {

using namespace tensorbus::bus;
using simulation::can_hit;

void print_hits(const simulation::Report& report) {
  std::vector<std::string> faults;
  for (const auto& [fault, steps] : report.hits) faults.push_back(fault);
  for (std::size_t at = 0; at < faults.size(); ++at) {
    std::cout << fmt::format("{:>3}  {}\n", fmt::format("F{}", at + 1), faults[at]);
  }
  std::cout << fmt::format("\n{:<17}", "after");
  for (std::size_t at = 0; at < faults.size(); ++at) {
    std::cout << fmt::format("{:>8}", fmt::format("F{}", at + 1));
  }
  std::cout << '\n';
  for (std::size_t step = 0; step < step_count; ++step) {
    std::cout << fmt::format("{:<17}", to_string(static_cast<Step>(step)));
    for (const std::string& fault : faults) {
      const bool possible = can_hit(fault, static_cast<Step>(step));
      std::cout << fmt::format("{:>8}",
                               possible ? std::to_string(report.hits.at(fault)[step]) : "-");
    }
    std::cout << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Simulates agents and their users from a seed and prints what happened.");
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
  simulation::Faults faults = simulation::all_faults;
  app.add_option("--seed", seed, "Where to begin");
  app.add_option("--count", count, "How many seeds, one after the other; prints sums")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000'000}));
  app.add_flag("--kills,!--no-kills", faults.kills, "Processes die and are started again");
  app.add_flag("--stops,!--no-stops", faults.stops, "Agents stand still for a while");
  app.add_flag("--lapses,!--no-lapses", faults.lapses, "The store takes agents for dead");
  app.add_flag("--lines,!--no-lines", faults.lines, "Connections break, ranks are cut off");
  app.add_flag("--slow,!--no-slow", faults.slow, "Slow copies, full queues");
  app.add_flag("--expires,!--no-expires", faults.expires, "Short deadlines, cancelled calls");
  CLI11_PARSE(app, argc, argv);

  simulation::Report sum;
  const bool watched = count > 1 && isatty(STDERR_FILENO) == 1;
  for (std::uint64_t each = seed; each < seed + count; ++each) {
    const auto report = simulation::simulate(each, faults);
    sum.add(report);
    if (watched && (each - seed) % 100 == 0) {
      std::cerr << fmt::format("\r{} of {} seeds", each - seed, count);
    }
    if (count == 1 || !report.violations.empty()) {
      for (const std::string& line : report.history) std::cout << line << '\n';
    }
    if (!report.violations.empty()) {
      std::cout << "seed " << each << " broke " << report.violations.front() << '\n';
      return 1;
    }
  }
  if (watched) std::cerr << "\r\x1b[K";
  for (const auto& [what, how_often] : sum.counts) std::cout << what << ": " << how_often << '\n';
  if (count == 1) return 0;
  std::cout << '\n';
  print_hits(sum);
  return 0;
}
