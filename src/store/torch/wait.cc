#include "store/torch/wait.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "store/common/pattern.h"

namespace tensorbus::store {
namespace {

using Values = std::vector<std::optional<std::string>>;

// The keys that can satisfy the condition, sorted, each once.
std::vector<std::string> candidates_of(const Condition& condition) {
  if (!condition.is_pattern) return {condition.key};
  if (condition.candidates.empty()) {
    throw Error(Code::invalid_argument,
                fmt::format("waiting for pattern \"{}\" on torch's server needs candidate keys: it "
                            "cannot be asked to match patterns",
                            condition.key));
  }
  std::set<std::string> matching;
  for (const std::string& key : condition.candidates) {
    if (matches(condition.key, key)) matching.insert(key);
  }
  if (matching.size() < condition.count) {
    throw Error(Code::invalid_argument,
                fmt::format("only {} of the candidate keys match \"{}\", so {} never will",
                            matching.size(), condition.key, condition.count));
  }
  return {matching.begin(), matching.end()};
}

bool satisfies(const Condition& condition, const std::optional<std::string>& value) {
  return value && (!condition.value || *value == *condition.value);
}

std::string describe_missing(const Condition& condition, std::size_t needed,
                             const std::vector<std::string>& keys, const Values& values) {
  constexpr std::size_t most_named = 8;
  constexpr std::size_t most_shown = 40;
  std::string names;
  std::size_t missing = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (satisfies(condition, values[i])) continue;
    if (++missing > most_named) continue;
    names += fmt::format("{}\"{}\"", missing > 1 ? ", " : "", keys[i]);
    if (values[i]) {
      names += fmt::format(" (it holds \"{}\", not \"{}\")", values[i]->substr(0, most_shown),
                           condition.value->substr(0, most_shown));
    }
  }
  if (missing > most_named) names += fmt::format(", ... ({} in all)", missing);
  if (!condition.is_pattern) return "missing: " + names;
  return fmt::format("{} of {} keys match \"{}\"; missing: {}", keys.size() - missing, needed,
                     condition.key, names);
}

}  // namespace

WaitResult torch_wait(TorchPool& pool, const Condition& condition, const Until& until) {
  const std::vector<std::string> keys = candidates_of(condition);
  const std::size_t needed = condition.is_pattern ? condition.count : 1;
  if (needed == 0) return {};
  std::vector<std::string> wire_keys;
  for (const std::string& key : keys) wire_keys.push_back(torch_key(key));

  for (Backoff backoff;;) {
    // Asked before the look, so that the last look comes after the deadline.
    const bool last = until.deadline.expired();
    const Until end = last_word(until);
    const Values values = pool.repeat(
        end, [&](TorchConnection& connection) { return connection.values(wire_keys, end); });

    WaitResult result;
    for (std::size_t i = 0; i < keys.size() && result.keys.size() < needed; ++i) {
      if (satisfies(condition, values[i])) result.keys.push_back(keys[i]);
    }
    if (result.keys.size() == needed) {
      if (!condition.is_pattern) result.value = *values.front();
      return result;
    }
    if (last) {
      throw Error(Code::timeout, "timed out: " + describe_missing(condition, needed, keys, values));
    }

    const bool some_absent = std::find(values.begin(), values.end(), std::nullopt) != values.end();
    if (some_absent && needed == keys.size()) {
      pool.repeat(until, [&](TorchConnection& connection) {
        return connection.wait_for_all(wire_keys, until);
      });
    } else {
      backoff.pause(until);
    }
  }
}

}  // namespace tensorbus::store
