#include "store/etcd/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/secret.h"

namespace tensorbus::store::etcd {
namespace {

const Json nothing;

}  // namespace

std::string own_key(std::string_view rest) { return std::string(own_prefix).append(rest); }

bool is_own(std::string_view key) noexcept { return key.starts_with(own_prefix); }

std::string from_base64(std::string_view text) {
  auto bytes = bytes_of_base64(text);
  if (!bytes) throw Error(Code::failed, "etcd's answer holds bytes that are not base64");
  return std::move(*bytes);
}

const Json& child(const Json& object, const char* field) {
  if (!object.is_object()) return nothing;
  const auto found = object.find(field);
  return found == object.end() ? nothing : *found;
}

std::int64_t number(const Json& object, const char* field) {
  const Json& value = child(object, field);
  if (value.is_number_integer()) return value.get<std::int64_t>();
  std::int64_t parsed = 0;
  if (value.is_string()) {
    const auto& digits = value.get_ref<const std::string&>();
    std::from_chars(digits.data(), digits.data() + digits.size(), parsed);
  }
  return parsed;
}

std::string text(const Json& object, const char* field) {
  const Json& value = child(object, field);
  return value.is_string() ? value.get<std::string>() : std::string();
}

bool flag(const Json& object, const char* field) {
  const Json& value = child(object, field);
  return value.is_boolean() && value.get<bool>();
}

std::vector<KeyValue> key_values(const Json& range_answer) {
  std::vector<KeyValue> found;
  const Json& list = child(range_answer, "kvs");
  if (!list.is_array()) return found;
  found.reserve(list.size());
  for (const Json& item : list) {
    found.push_back({from_base64(text(item, "key")), from_base64(text(item, "value")),
                     number(item, "create_revision"), number(item, "mod_revision"),
                     number(item, "version"), number(item, "lease")});
  }
  return found;
}

std::int64_t revision_of(const Json& answer) { return number(child(answer, "header"), "revision"); }

const Json& response_at(const Json& txn_answer, std::size_t index, const char* kind) {
  const Json& responses = child(txn_answer, "responses");
  if (!responses.is_array() || index >= responses.size()) return nothing;
  return child(responses[index], kind);
}

KeyRange KeyRange::prefix(std::string_view prefix) {
  // The first key behind all that start with it; a zero byte stands for "no end".
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  if (end.empty()) {
    end.assign(1, '\0');
  } else {
    end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  }
  return {prefix.empty() ? std::string(1, '\0') : std::string(prefix), end};
}

Json range_fields(const KeyRange& range) {
  Json fields = {{"key", to_base64(range.begin)}};
  if (!range.end.empty()) fields["range_end"] = to_base64(range.end);
  return fields;
}

Json version_is(std::string_view key, std::int64_t version) {
  return {{"key", to_base64(key)},
          {"target", "VERSION"},
          {"result", "EQUAL"},
          {"version", std::to_string(version)}};
}

Json exists(std::string_view key) {
  return {{"key", to_base64(key)}, {"target", "VERSION"}, {"result", "GREATER"}, {"version", "0"}};
}

Json unchanged_since(std::string_view key, std::int64_t mod_revision) {
  return {{"key", to_base64(key)},
          {"target", "MOD"},
          {"result", "EQUAL"},
          {"mod_revision", std::to_string(mod_revision)}};
}

Json put(std::string_view key, std::string_view value, std::int64_t lease) {
  Json fields = {{"key", to_base64(key)}, {"value", to_base64(value)}};
  if (lease != 0) fields["lease"] = std::to_string(lease);
  return {{"request_put", std::move(fields)}};
}

Json erase(std::string_view key) {
  return {{"request_delete_range", range_fields(KeyRange::one(std::string(key)))}};
}

Json range(const KeyRange& range, bool keys_only) {
  Json fields = range_fields(range);
  if (keys_only) fields["keys_only"] = true;
  return {{"request_range", std::move(fields)}};
}

Json packed(std::vector<Json> operations) {
  // A list of n operations may hold inner lists of at most 128 - n each.
  constexpr std::size_t inner_size = 64;
  static_assert(max_packed_operations <= (max_operations - inner_size - 1) * inner_size);
  if (operations.size() > max_packed_operations) {
    throw Error(Code::invalid_argument,
                fmt::format("etcd cannot change {} keys at one moment, only {}", operations.size(),
                            max_packed_operations));
  }
  Json list = Json::array();
  if (operations.size() < max_operations) {
    for (Json& operation : operations) list.push_back(std::move(operation));
    return list;
  }
  for (std::size_t at = 0; at < operations.size(); at += inner_size) {
    Json inner = Json::array();
    const std::size_t end = std::min(at + inner_size, operations.size());
    for (std::size_t i = at; i < end; ++i) inner.push_back(std::move(operations[i]));
    list.push_back({{"request_txn", {{"success", std::move(inner)}}}});
  }
  return list;
}

std::string random_name() {
  return fmt::format("{:016x}{:016x}", random_number(), random_number());
}

std::int64_t random_lease_id() { return static_cast<std::int64_t>((random_number() >> 1) | 1); }

}  // namespace tensorbus::store::etcd
