// The requests of torch's TCPStore protocol (2.13), as a client writes them. Little-endian, no
// framing, no request ids: a reply belongs to the oldest request that has none yet.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "tensorbus/store.h"

namespace tensorbus::store {

// Torch's clients put a "/" before every key of their users; keys without one are their own.
inline std::string torch_key(std::string_view key) { return "/" + std::string(key); }
// Counts the clients that have joined.
inline constexpr std::string_view torch_join_key = "init/";

// What CHECK, WAIT and CANCEL_WAIT answer with.
enum class TorchReady : std::uint8_t { ready = 0, not_ready = 1 };
enum class TorchWake : std::uint8_t { all_exist = 0, cancelled = 1 };

// One or more requests, to be sent in one write. Keys are as on the wire.
class TorchRequest {
 public:
  TorchRequest& validate() { return op(0).number(std::uint32_t{0x3C85F7CE}); }
  TorchRequest& set(std::string_view key, std::string_view value) {
    return op(1).text(key).text(value);
  }
  TorchRequest& compare_set(std::string_view key, std::string_view expected,
                            std::string_view desired) {
    return op(2).text(key).text(expected).text(desired);
  }
  TorchRequest& add(std::string_view key, std::int64_t amount) {
    return op(4).text(key).number(amount);
  }
  TorchRequest& check(std::string_view key) { return op(5).number(std::uint64_t{1}).text(key); }
  TorchRequest& wait(std::span<const std::string> keys) { return op(6).texts(keys); }
  TorchRequest& delete_key(std::string_view key) { return op(8).text(key); }
  TorchRequest& multi_get(std::span<const std::string> keys) { return op(10).texts(keys); }
  TorchRequest& multi_set(std::span<const Entry> entries) {
    op(11).number(std::uint64_t{entries.size()});
    for (const Entry& entry : entries) text(entry.key).text(entry.value);
    return *this;
  }
  TorchRequest& cancel_wait() { return op(12); }
  TorchRequest& ping(std::uint32_t nonce) { return op(13).number(nonce); }
  TorchRequest& list_keys() { return op(17); }

  const std::string& bytes() const noexcept { return encoder_.bytes(); }

 private:
  TorchRequest& op(std::uint8_t code) { return number(code); }
  template <Integer T>
  TorchRequest& number(T value) {
    encoder_.integer(value);
    return *this;
  }
  TorchRequest& text(std::string_view value) {
    encoder_.integer(std::uint64_t{value.size()}).raw(value);
    return *this;
  }
  TorchRequest& texts(std::span<const std::string> values) {
    number(std::uint64_t{values.size()});
    for (const std::string& value : values) text(value);
    return *this;
  }

  Encoder encoder_;
};

}  // namespace tensorbus::store
