// What a benchmark found: ours and a floor or ceiling measured in turns with it, as a table and as
// JSON.
#pragma once

#include <fmt/core.h>
#include <sys/types.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace tensorbus::bench {

inline double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(now() - start).count();
}

// That a process has used, all its threads together.
inline double cpu_seconds(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

inline double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

struct Row {
  std::string name;
  std::string floor;  // what ours is compared with
  std::string unit;
  double floor_value = 0;
  double value = 0;
  // Ours over the floor, round by round.
  std::vector<double> ratios = {};
  std::optional<double> at_least = {};
  std::optional<double> at_most = {};

  double ratio() const { return quantile(ratios, 0.5); }
  std::string aim() const {
    if (at_least) return fmt::format(">= {}", *at_least);
    return at_most ? fmt::format("<= {}", *at_most) : "";
  }
  std::string met() const {
    if (!at_least && !at_most) return "";
    return (at_least ? ratio() >= *at_least : ratio() <= *at_most) ? "yes" : "no";
  }
};

// Floor and ours take turns, so that both see the same weather; who goes first alternates, because
// the second may find its data in a cache. `work` gives a figure in the row's unit.
inline Row measure(Row row, int rounds, const std::function<double()>& floor,
                   const std::function<double()>& ours) {
  std::vector<double> floors;
  std::vector<double> values;
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    const bool floor_first = round % 2 == 0;
    const double before = floor_first ? floor() : 0;
    const double value = ours();
    const double after = floor_first ? before : floor();
    if (round < 0) continue;
    floors.push_back(after);
    values.push_back(value);
    row.ratios.push_back(value / after);
  }
  row.floor_value = quantile(floors, 0.5);
  row.value = quantile(values, 0.5);
  return row;
}

inline void print(const std::vector<Row>& rows) {
  fmt::print("{:<44}{:>26}{:>9}{:>9}{:>6}{:>22}{:>9}{:>5}\n", "what", "against", "it", "ours", "",
             "ratio (quartiles)", "aim", "met");
  for (const Row& row : rows) {
    const std::string spread = fmt::format("{:.2f} ({:.2f}-{:.2f})", row.ratio(),
                                           quantile(row.ratios, 0.25), quantile(row.ratios, 0.75));
    fmt::print("{:<44}{:>26}{:>9.2f}{:>9.2f}{:>6}{:>22}{:>9}{:>5}\n", row.name, row.floor,
               row.floor_value, row.value, row.unit, spread, row.aim(), row.met());
  }
}

inline void write_json(const std::vector<Row>& rows, const std::string& path) {
  std::ofstream file(path);
  file << "[";
  for (const Row& row : rows) {
    file
        << (&row == rows.data() ? "\n" : ",\n")
        << fmt::format(
               R"( {{"name": "{}", "against": "{}", "unit": "{}", "floor": {:.4g}, "ours": {:.4g}, )"
               R"("ratio": {:.4g}, "low": {:.4g}, "high": {:.4g}, "aim": "{}", "met": "{}"}})",
               row.name, row.floor, row.unit, row.floor_value, row.value, row.ratio(),
               quantile(row.ratios, 0.25), quantile(row.ratios, 0.75), row.aim(), row.met());
  }
  file << "\n]\n";
}

// Prints them and, told --json FILE, writes them there.
inline int report(const std::vector<Row>& rows, int argc, char** argv) {
  if (!rows.empty()) print(rows);
  if (argc == 3 && std::string_view(argv[1]) == "--json") write_json(rows, argv[2]);
  return 0;
}

}  // namespace tensorbus::bench
