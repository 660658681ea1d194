// An agent's state in an LMDB file.
#pragma once

#include <memory>
#include <string>

#include "bus/files/lmdb_file.h"
#include "bus/files/state.h"

namespace tensorbus::bus {

class LmdbState final : public StateStore {
 public:
  static constexpr const char* kind = "state";

  explicit LmdbState(const std::string& path, std::size_t bytes = LmdbFile::usual_bytes)
      : file_(path, kind, bytes) {}

  void put(const std::string& key, std::string_view value) override {
    file_.write({{key, std::string(value)}});
  }
  void erase(const std::string& key) override { file_.write({{key, std::nullopt}}); }
  std::optional<std::string> get(const std::string& key) override { return file_.get(key); }
  std::map<std::string, std::string> scan(const std::string& prefix) override {
    std::map<std::string, std::string> entries;
    for (auto& [key, value] : file_.scan(prefix)) entries.emplace(key, std::move(value));
    return entries;
  }
  void remove_at_close() noexcept { file_.remove_at_close(); }

 private:
  LmdbFile file_;
};

}  // namespace tensorbus::bus
