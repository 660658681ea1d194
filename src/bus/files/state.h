// What an agent must find again after a restart, and what others may look at: small values under
// string keys, in a file (daemon) or in memory (embedded).
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tensorbus::bus {

// Owned by the agent's loop; calls take microseconds. What put() returned from survives any death
// of this process. Throws Error(failed) when the file cannot be written.
class StateStore {
 public:
  virtual ~StateStore() = default;
  virtual void put(const std::string& key, std::string_view value) = 0;
  virtual void erase(const std::string& key) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  // Every key that starts with `prefix`, in order.
  virtual std::map<std::string, std::string> scan(const std::string& prefix) = 0;
};

// Keys and their values, which `tensorbus agent --dump` prints:
//   heartbeat            Heartbeat, once a second
//   session/<id>/pair/.. the Command with which a client asked for what an agent must publish again

class MemoryState final : public StateStore {
 public:
  void put(const std::string& key, std::string_view value) override { values_[key] = value; }
  void erase(const std::string& key) override { values_.erase(key); }
  std::optional<std::string> get(const std::string& key) override {
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }
  std::map<std::string, std::string> scan(const std::string& prefix) override {
    const auto end =
        std::find_if(values_.lower_bound(prefix), values_.end(),
                     [&](const auto& entry) { return !entry.first.starts_with(prefix); });
    return {values_.lower_bound(prefix), end};
  }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace tensorbus::bus
