// Settings from the environment: the only place that calls getenv. Each setting is also an argument
// of the call that uses it; the argument wins.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tensorbus::config {

struct Setting {
  std::string_view name;
  std::string_view fallback;  // what holds when the variable is not set
  std::string_view meaning;
  bool secret = false;  // never printed
};

// Every TENSORBUS_ variable there is.
std::span<const Setting> settings() noexcept;

// The variable's value; an empty one counts as not set.
std::optional<std::string> variable(const char* name);

// Names in the environment that start with TENSORBUS_ and mean nothing: typos.
std::vector<std::string> unknown_variables();

// Applies TENSORBUS_LOG and warns about unknown names, once per process. Called by every entry
// point.
void start();

}  // namespace tensorbus::config
