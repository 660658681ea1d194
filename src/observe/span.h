// One thing that was done, with its phases: plain, of one size, so that a ring of them never
// allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "observe/text.h"
#include "tensorbus/status.h"

namespace tensorbus::observe {

enum class Work : std::uint8_t {
  publish,
  pull,
  send,
  recv,
  registration,
  init_pair,
  request,  // of push-pull, at the worker
  answer,   // and at the server
  read,     // of an endpoint
};
inline constexpr std::size_t work_kinds = 9;
constexpr std::string_view to_string(Work work) noexcept {
  constexpr std::array<std::string_view, work_kinds> names{
      "publish", "pull", "send", "recv", "registration", "init_pair", "request", "answer", "read"};
  return names[static_cast<std::size_t>(work)];
}

enum class Phase : std::uint8_t {
  wait,  // for others
  plan,  // who reads what from whom
  stage,
  read,
  verify,
  commit,
  serve,  // of a request, in the server's own code
};
inline constexpr std::size_t phases = 7;
constexpr std::string_view to_string(Phase phase) noexcept {
  constexpr std::array<std::string_view, phases> names{"wait",   "plan",   "stage", "read",
                                                       "verify", "commit", "serve"};
  return names[static_cast<std::size_t>(phase)];
}

// In which order they follow each other.
constexpr std::array<Phase, phases> phases_of(Work work) noexcept {
  using enum Phase;
  if (work == Work::request) return {plan, stage, wait, read, verify, commit, serve};
  if (work == Work::answer) return {plan, wait, serve, stage, read, verify, commit};
  return {wait, plan, stage, read, verify, commit, serve};
}

// Text of bounded length; what is longer is cut.
template <std::size_t Size>
class ShortText {
 public:
  ShortText() = default;
  explicit ShortText(std::string_view text) noexcept {
    cut_text(text, Size - 1).copy(text_.data(), Size - 1);
  }
  std::string_view view() const noexcept { return text_.data(); }

 private:
  std::array<char, Size> text_{};
};

struct Span {
  static constexpr std::size_t most_peers = 16;

  Work work = Work::publish;
  Code code = Code::ok;
  std::uint16_t peer_count = 0;  // all there were; the first are named
  std::int32_t rank = 0;
  std::int32_t slowest = -1;  // the peer that was waited for longest, or none
  std::int32_t pid = 0;       // of the worker, if that is another process
  std::int64_t begin = 0;     // nanoseconds of the steady clock
  std::int64_t end = 0;
  std::array<std::int64_t, phases> phase_ns{};
  std::int64_t version = 0;
  std::int64_t bytes = 0;
  std::array<std::int32_t, most_peers> peers{};
  ShortText<56> name{};  // of what was moved
  ShortText<24> side{};

  std::int64_t& in(Phase phase) noexcept { return phase_ns[static_cast<std::size_t>(phase)]; }
  std::int64_t in(Phase phase) const noexcept { return phase_ns[static_cast<std::size_t>(phase)]; }
  void add_peer(std::int64_t peer) noexcept {
    if (peer_count < most_peers) peers[peer_count] = static_cast<std::int32_t>(peer);
    ++peer_count;
  }
  std::span<const std::int32_t> named_peers() const noexcept {
    return std::span(peers).first(std::min<std::size_t>(peer_count, most_peers));
  }
};

}  // namespace tensorbus::observe
