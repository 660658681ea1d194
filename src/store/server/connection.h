// One client of the server: its socket, its buffers, and how far the client has introduced itself.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "os/process/unshared_fd.h"
#include "store/engine/waits.h"
#include "store/protocol/protocol.h"
#include "tensorbus/deadline.h"

namespace tensorbus::store {

struct Connection {
  enum class State : std::uint8_t {
    greeting,  // nothing known yet
    proving,   // said hello, owes the token's proof
    native,
    torch_greeting,  // owes VALIDATE
    torch,
  };

  // Reads what is there, up to a share that leaves time for others. False when the client is gone.
  bool receive();
  // Sends what the socket takes. False when the client is gone or reads too slowly to be kept.
  bool flush();

  std::string_view input() const { return std::string_view(in).substr(in_at); }
  void consume(std::size_t size);
  void reply(std::uint64_t id, Code code, std::string_view body);
  bool has_output() const noexcept { return out_at < out.size(); }
  // The client reads its replies too slowly: its next requests must wait.
  bool congested() const noexcept;
  void unblock(std::uint64_t id) {
    blocked.erase(id);
    patterns.erase(id);
  }
  // There may be a whole request in the input.
  bool has_work() const noexcept { return !closing && !congested() && in.size() - in_at >= needed; }

  std::uint64_t number = 0;
  os::UnsharedFd socket;
  State state = State::greeting;
  TimePoint accepted{};
  std::string in;
  std::size_t in_at = 0;
  std::size_t needed = 1;  // no use parsing before there is this much input
  std::string out;
  std::size_t out_at = 0;
  bool closing = false;        // as soon as the output is sent
  bool dirty = false;          // has output that waits for the end of the turn
  std::uint32_t interest = 0;  // what its socket is polled for

  Hello client_hello;
  Hello server_hello;
  std::map<std::uint64_t, Ticket> blocked;  // native: tickets by request id
  std::set<std::uint64_t> patterns;         // those of them that wait for a pattern or watch
  std::optional<Ticket> torch_wait;         // torch: later requests wait for this one's reply
  std::optional<Ticket> torch_promise;      // torch: the wait that ended last, until a request
};

}  // namespace tensorbus::store
