// One connection to a server that speaks torch's TCPStore protocol.
#pragma once

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "os/io/poll.h"
#include "os/net/tcp.h"
#include "os/process/unshared_fd.h"
#include "store/protocol/torch_writer.h"
#include "tensorbus/store.h"

namespace tensorbus::store {

// When a blocked call ends without an answer: at its deadline, or when `stop` is signalled.
struct Until {
  Deadline deadline;
  const os::EventFd* stop;
};

// How long the server may take for a last word after a call's deadline: the end of a wait, the look
// that says what is missing.
inline constexpr Duration last_word_time = std::chrono::milliseconds(200);
Until last_word(const Until& until);

// The server went away in the middle of an exchange, so nobody knows whether the request was
// applied.
class ConnectionLost : public Error {
 public:
  explicit ConnectionLost(const std::string& message) : Error(Code::unreachable, message) {}
};

// Used by one call at a time. After any exception the connection's place in the stream of replies
// is unknown: destroy the connection.
class TorchConnection {
 public:
  // Connects and says hello. Throws Error(unreachable) if there is no server, ConnectionLost if the
  // server hung up at the hello, Error(failed) if the server does not speak torch's protocol.
  TorchConnection(const StoreUrl::Host& host, const Until& until);
  TorchConnection(TorchConnection&&) = default;
  TorchConnection& operator=(TorchConnection&&) = default;

  // False if the server has hung up, or sent what nobody asked for.
  bool usable() const noexcept;

  void send(const TorchWriter& request, const Until& until);

  // The next reply, by its type.
  template <Integer T>
  T integer(const Until& until) {
    T value;
    std::memcpy(&value, raw(sizeof(T), until).data(), sizeof(T));
    return value;
  }
  std::string text(const Until& until);
  bool check(const Until& until);
  void pong(std::uint32_t nonce, const Until& until);

  // One value per key, all of one moment; nothing for an absent key.
  std::vector<std::optional<std::string>> values(std::span<const std::string> keys,
                                                 const Until& until);
  // True when all keys exist, false at the deadline.
  bool wait_for_all(std::span<const std::string> keys, const Until& until);

  // Throws the Error(failed) for a reply that cannot be.
  [[noreturn]] void reject(std::string_view what) const;

 private:
  // False at the deadline.
  bool readable(const Until& until);
  // Appends what has arrived; throws ConnectionLost at the end of the connection.
  void receive();
  // Valid until the next call.
  std::string_view raw(std::size_t size, const Until& until);

  std::string address_;
  os::UnsharedFd socket_;
  std::string received_;
  std::size_t taken_ = 0;  // of `received_`
};

}  // namespace tensorbus::store
