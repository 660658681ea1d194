// Lists of values as MessagePack, checked while they are read.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tensorbus::bus {

using Json = nlohmann::json;

std::string pack(const Json& value);
// Error(invalid_argument) for what is no MessagePack or nested deeper than anything of ours.
Json unpack(std::string_view bytes, std::string_view what);

Json binary(std::string_view bytes);

// Takes the fields of a list one after the other. Whatever is missing, too much or of another type
// is an Error(invalid_argument) that names `what`.
class Fields {
 public:
  Fields(const Json& list, std::string_view what);

  std::string string(std::size_t most = 4096);
  std::string bytes();
  std::int64_t integer();
  std::uint64_t natural(std::uint64_t most = UINT64_MAX);
  bool boolean();
  std::vector<std::int64_t> integers(std::size_t most = 64);
  const Json& list(std::size_t most = 1'000'000);
  const Json& any();

  // Null means none.
  template <typename Take>
  auto optional(Take take) -> std::optional<decltype(take(*this))> {
    if (peek().is_null()) {
      ++next_;
      return std::nullopt;
    }
    return take(*this);
  }

  void end() const;
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  const Json& peek() const;

  const Json& list_;
  std::string_view what_;
  std::size_t next_ = 0;
};

}  // namespace tensorbus::bus
