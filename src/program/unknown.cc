#include "program/unknown.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace tensorbus::program {
namespace {

// How many letters to put in, to leave out, to change, or neighbours to exchange.
std::size_t distance(std::string_view one, std::string_view other) {
  std::vector<std::vector<std::size_t>> of(one.size() + 1,
                                           std::vector<std::size_t>(other.size() + 1));
  for (std::size_t i = 0; i <= one.size(); ++i) {
    for (std::size_t j = 0; j <= other.size(); ++j) {
      if (i == 0 || j == 0) {
        of[i][j] = i + j;
        continue;
      }
      const std::size_t changed = of[i - 1][j - 1] + (one[i - 1] == other[j - 1] ? 0 : 1);
      of[i][j] = std::min({changed, of[i - 1][j] + 1, of[i][j - 1] + 1});
      const bool swapped =
          i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
      if (swapped) of[i][j] = std::min(of[i][j], of[i - 2][j - 2] + 1);
    }
  }
  return of[one.size()][other.size()];
}

std::string say(const std::string& word, const char* what, std::vector<std::string> known) {
  std::ranges::sort(known);
  const auto nearest = std::ranges::min_element(
      known, {}, [&](const std::string& each) { return distance(word, each); });
  if (nearest != known.end() &&
      distance(word, *nearest) <= std::max<std::size_t>(word.size() / 3, 1)) {
    return fmt::format("\"{}\" is no {}; did you mean \"{}\"?", word, what, *nearest);
  }
  return fmt::format("\"{}\" is no {}; there are {}", word, what, fmt::join(known, ", "));
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(each->get_name());
  }
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* each : app.get_options()) {
    if (each->get_group().empty()) continue;  // not shown
    for (const std::string& name : each->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

bool is_option(const std::string& word) { return word.starts_with("--"); }

}  // namespace

std::optional<std::string> unknown_word(const CLI::App& app,
                                        const std::vector<std::string>& words) {
  const CLI::App* level = &app;
  for (const std::string& word : words) {
    const bool wants_command = level->get_require_subcommand_min() > 0;
    if (word == "--" || level->get_prefix_command()) return std::nullopt;
    if (is_option(word)) {
      const std::string name = word.substr(0, word.find('='));
      if (level->get_option_no_throw(name) != nullptr) continue;
      return say(name, "option", options_of(*level));
    }
    if (!wants_command || word.starts_with("-")) continue;
    const auto commands =
        level->get_subcommands([&](const CLI::App* each) { return each->get_name() == word; });
    if (commands.empty()) return say(word, "command", commands_of(*level));
    level = commands.front();
  }
  return std::nullopt;
}

}  // namespace tensorbus::program
