#include "store/server/connection.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace tensorbus::store {
namespace {

constexpr std::size_t read_size = 64 * 1024;
constexpr std::size_t read_per_turn = 512 * 1024;
// A client that lets this much pile up does not read.
constexpr std::size_t max_output = 2 * max_frame_size;
// A client that asks faster than it reads is not served beyond this, or a few bytes of requests
// could make the server hold gigabytes of replies.
constexpr std::size_t comfortable_output = 16 * 1024 * 1024;

}  // namespace

bool Connection::receive() {
  for (std::size_t taken = 0; taken < read_per_turn;) {
    // Not straight into the string: growing the string would clear as much as could come, every
    // time.
    std::array<char, read_size> buffer;
    const ssize_t got = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    in.append(buffer.data(), static_cast<std::size_t>(got));
    taken += static_cast<std::size_t>(got);
    if (static_cast<std::size_t>(got) < read_size) break;
  }
  return true;
}

bool Connection::flush() {
  while (has_output()) {
    const ssize_t sent =
        ::send(socket.get(), out.data() + out_at, out.size() - out_at, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
      // What was sent goes away also when the rest never quite does.
      if (out_at > comfortable_output / 4) {
        out.erase(0, out_at);
        out_at = 0;
      }
      return out.size() - out_at <= max_output;
    }
    out_at += static_cast<std::size_t>(sent);
  }
  // A buffer that once held a large value is given back.
  if (out.capacity() > read_size) {
    std::string().swap(out);
  } else {
    out.clear();
  }
  out_at = 0;
  return true;
}

void Connection::consume(std::size_t size) {
  in_at += size;
  if (in_at == in.size()) {
    if (in.capacity() > 4 * read_size) {
      std::string().swap(in);
    } else {
      in.clear();
    }
    in_at = 0;
  } else if (in_at > read_size) {
    in.erase(0, in_at);
    in_at = 0;
  }
}

bool Connection::congested() const noexcept { return out.size() - out_at > comfortable_output; }

void Connection::reply(std::uint64_t id, Code code, std::string_view body) {
  if (body.size() > max_frame_size) {
    return reply(id, Code::invalid_argument,
                 "the answer would be too large: " + std::to_string(body.size()) +
                     " bytes, at most " + std::to_string(max_frame_size) +
                     " are allowed; ask for less");
  }
  out += encode_frame(id, static_cast<std::uint8_t>(code), body);
}

}  // namespace tensorbus::store
