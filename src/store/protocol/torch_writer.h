// torch's TCPStore protocol, as a client writes it. Without request ids a reply belongs to the
// oldest request that has none yet.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "store/protocol/torch_protocol.h"
#include "tensorbus/store.h"

namespace tensorbus::store {

// Torch's clients put a "/" before every key of their users; keys without a "/" are the clients'
// own.
inline std::string torch_key(std::string_view key) { return "/" + std::string(key); }
// Counts the clients that have joined.
inline constexpr std::string_view torch_join_key = "init/";

// What CHECK, WAIT and CANCEL_WAIT answer with.
enum class TorchReady : std::uint8_t { ready = 0, not_ready = 1 };
enum class TorchWake : std::uint8_t { all_exist = 0, cancelled = 1 };

// One or more requests, to be sent in one write. Keys are as on the wire.
class TorchWriter {
 public:
  TorchWriter& validate() { return op(TorchOp::validate).number(torch_magic); }
  TorchWriter& set(std::string_view key, std::string_view value) {
    return op(TorchOp::set).text(key).text(value);
  }
  TorchWriter& compare_set(std::string_view key, std::string_view expected,
                           std::string_view desired) {
    return op(TorchOp::compare_set).text(key).text(expected).text(desired);
  }
  TorchWriter& add(std::string_view key, std::int64_t amount) {
    return op(TorchOp::add).text(key).number(amount);
  }
  TorchWriter& check(std::string_view key) {
    return op(TorchOp::check).number(std::uint64_t{1}).text(key);
  }
  TorchWriter& wait(std::span<const std::string> keys) { return op(TorchOp::wait).texts(keys); }
  TorchWriter& delete_key(std::string_view key) { return op(TorchOp::delete_key).text(key); }
  TorchWriter& multi_get(std::span<const std::string> keys) {
    return op(TorchOp::multi_get).texts(keys);
  }
  TorchWriter& multi_set(std::span<const Entry> entries) {
    op(TorchOp::multi_set).number(std::uint64_t{entries.size()});
    for (const Entry& entry : entries) text(entry.key).text(entry.value);
    return *this;
  }
  TorchWriter& cancel_wait() { return op(TorchOp::cancel_wait); }
  TorchWriter& ping(std::uint32_t nonce) { return op(TorchOp::ping).number(nonce); }
  TorchWriter& list_keys() { return op(TorchOp::list_keys); }

  const std::string& bytes() const noexcept { return encoder_.bytes(); }

 private:
  TorchWriter& op(TorchOp code) { return number(static_cast<std::uint8_t>(code)); }
  template <Integer T>
  TorchWriter& number(T value) {
    encoder_.integer(value);
    return *this;
  }
  TorchWriter& text(std::string_view value) {
    encoder_.integer(std::uint64_t{value.size()}).raw(value);
    return *this;
  }
  TorchWriter& texts(std::span<const std::string> values) {
    number(std::uint64_t{values.size()});
    for (const std::string& value : values) text(value);
    return *this;
  }

  Encoder encoder_;
};

}  // namespace tensorbus::store
