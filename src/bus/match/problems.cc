#include "bus/match/problems.h"

#include <fmt/format.h>

#include "base/refuse.h"

namespace tensorbus::bus {

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
