// The vocabulary of etcd's JSON gateway: 64-bit integers are strings, absent fields are zero, bytes
// are base64.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "store/common/base64.h"
#include "tensorbus/store.h"

namespace tensorbus::store::etcd {

using Json = nlohmann::json;

// Our own keys in the user's etcd. Users neither see nor set them.
inline constexpr std::string_view own_prefix = "__tensorbus_store/";
std::string own_key(std::string_view rest);
bool is_own(std::string_view key) noexcept;

// Throws Error(failed) if the text is not base64.
std::string from_base64(std::string_view text);

// Fields of an answer. What is absent or of another type reads as nothing.
std::int64_t number(const Json& object, const char* field);
std::string text(const Json& object, const char* field);
bool flag(const Json& object, const char* field);
const Json& child(const Json& object, const char* field);

struct KeyValue {
  std::string key;
  std::string value;
  std::int64_t create_revision = 0;
  std::int64_t mod_revision = 0;
  std::int64_t version = 0;
  std::int64_t lease = 0;
};
std::vector<KeyValue> key_values(const Json& range_answer);
std::int64_t revision_of(const Json& answer);
// The part of a transaction's answer that belongs to its `index`-th operation.
const Json& response_at(const Json& txn_answer, std::size_t index, const char* kind);

// From `begin` up to `end` (not included); one key if `end` is empty.
struct KeyRange {
  std::string begin;
  std::string end;

  static KeyRange one(std::string key) { return {std::move(key), {}}; }
  static KeyRange prefix(std::string_view prefix);
};
Json range_fields(const KeyRange& range);

// Conditions and operations of a transaction.
Json version_is(std::string_view key, std::int64_t version);
Json exists(std::string_view key);
Json unchanged_since(std::string_view key, std::int64_t mod_revision);
Json put(std::string_view key, std::string_view value, std::int64_t lease = 0);
Json erase(std::string_view key);
Json range(const KeyRange& range, bool keys_only = false);

// A list of operations that leaves a place for one more. Beyond what etcd allows in one list,
// operations go into transactions inside the transaction, still at one moment.
Json packed(std::vector<Json> operations);
inline constexpr std::size_t max_operations = 128;          // in one list, etcd's own default
inline constexpr std::size_t max_packed_operations = 4000;  // what packed() can take

// What identifies one call, session or lease among all clients.
std::string random_name();
std::int64_t random_lease_id();

}  // namespace tensorbus::store::etcd
