// MessagePack values that say what they are: ["tensorbus <what>", version, fields...].
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/core/identity.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {

using Json = nlohmann::json;

inline Json binary(std::string_view bytes) {
  return Json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
}

inline std::string bytes_of(const Json& json) {
  const auto& bytes = json.get_binary();
  return {bytes.begin(), bytes.end()};
}

template <typename T>
T unsigned_of(const Json& json) {
  if (!json.is_number_unsigned()) throw std::invalid_argument("a negative or broken number");
  return json.get<T>();
}

Json to_json(const Identity& identity);
Identity identity_from(const Json& json);

std::string pack(const std::string& what, std::vector<Json> fields);

// The fields. Error(invalid_argument) for anything else.
std::vector<Json> unpack_fields(std::string_view bytes, const std::string& what, std::size_t count,
                                std::size_t most_bytes);
[[noreturn]] void refuse(const std::string& what, const std::string& why);

// `read` makes a value of the fields; what it throws becomes Error(invalid_argument).
template <typename Read>
auto unpack(std::string_view bytes, const std::string& what, std::size_t count,
            std::size_t most_bytes, Read read) {
  try {
    return read(unpack_fields(bytes, what, count, most_bytes));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    refuse(what, error.what());
  }
}

}  // namespace tensorbus::fabric
