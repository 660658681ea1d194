// What this process counts, as numbers: those of its page of metrics. See docs/operate.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tensorbus {

struct Series {
  std::map<std::string, std::string> labels;  // rank, path, outcome, ...
  double value = 0;                           // of durations: their sum, in seconds
  std::optional<std::uint64_t> count{};       // of durations: how many
};

// By name, without the "_total" of what only grows.
using Stats = std::map<std::string, std::vector<Series>>;

// Of all that have these labels, which are left out: stats({{"namespace", "default"}, {"rank",
// "3"}}) is what the agent of rank 3 counts. An agent that is a process of its own counts there,
// not here.
Stats stats(const std::map<std::string, std::string>& of = {});

}  // namespace tensorbus

#pragma GCC visibility pop
