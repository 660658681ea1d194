#include "bus/match/problems.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/refuse.h"

namespace tensorbus::bus {

std::string did_you_mean(const std::set<std::string>& names) {
  if (names.empty()) return {};
  const std::size_t count = std::min(names.size(), Problems::most_lines);
  const std::vector<std::string> shown(
      names.begin(), std::next(names.begin(), static_cast<std::ptrdiff_t>(count)));
  const std::size_t more = names.size() - count;
  return fmt::format("; there {} \"{}\"{}: did you mean {}?", names.size() == 1 ? "is" : "are",
                     fmt::join(shown, "\", \""), more > 0 ? fmt::format(" and {} more", more) : "",
                     names.size() == 1 ? "it" : "one of these");
}

void Problems::refuse_if_any(const std::string& what) const {
  if (empty()) return;
  std::string text = what + ":";
  std::size_t count = 0;
  for (const auto& [cause, lines] : lines_) {
    for (const std::string& line : lines) {
      if (++count <= most_lines) text += "\n  " + line;
    }
  }
  if (count > most_lines) text += fmt::format("\n  and {} more", count - most_lines);
  for (const std::string& hint : hints_) text += "\n  " + hint;
  refuse(text);
}

}  // namespace tensorbus::bus
