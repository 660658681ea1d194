// What does not fit, in one message: a line for each, the same causes together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tensorbus::bus {

// In the order in which they are told.
enum class Cause : std::uint8_t {
  disagreement,
  not_sent,
  not_taken,
  shape,
  type,
  partial,
  not_held
};

// For the end of a message about a name that nobody knows: what there is instead. Empty if there is
// nothing.
std::string did_you_mean(const std::set<std::string>& names);

class Problems {
 public:
  void add(Cause cause, std::string line) { lines_[cause].push_back(std::move(line)); }
  // Follows the lines, whatever their number.
  void hint(std::string line) { hints_.push_back(std::move(line)); }
  bool empty() const noexcept { return lines_.empty(); }
  // Throws Error(invalid_argument) with `what` and at most most_lines lines, unless there are none.
  void refuse_if_any(const std::string& what) const;

  static constexpr std::size_t most_lines = 20;

 private:
  std::map<Cause, std::vector<std::string>> lines_;
  std::vector<std::string> hints_;
};

}  // namespace tensorbus::bus
