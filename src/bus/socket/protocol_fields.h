// The fields of what a client and its agent write to each other.
#pragma once

#include <array>

#include "bus/channel/command_fields.h"
#include "bus/socket/protocol.h"

namespace tensorbus::bus {

template <typename Archive>
void fields(Archive& a, QueueState& state) {
  a("size", state.size);
  a("first", state.first);
  a("first_type", state.first_type);
  a("first_context", state.first_context);
}

}  // namespace tensorbus::bus

namespace tensorbus::bus::protocol {

constexpr wire::Title title_of(const FromClient*) { return {"message of a client"}; }
constexpr wire::Title title_of(const FromAgent*) { return {"message of an agent"}; }
constexpr std::array<std::string_view, 8> kinds_of(const FromClient*) {
  return {"hello", "submit", "withdraw", "cancel", "look", "guard", "release", "bye"};
}
constexpr std::array<std::string_view, 8> kinds_of(const FromAgent*) {
  return {"welcome", "rejected", "accepted", "refused", "done", "progress", "looked", "guarded"};
}

template <typename Archive>
void fields(Archive& a, Hello& hello) {
  a("version", hello.version);
  if (hello.version != version) return a.leave_the_rest();
  a("space", hello.space);
  a("rank", hello.rank);
  a("session", hello.session);
  a("pid", hello.pid);
}
template <typename Archive>
void fields(Archive& a, Submit& submit) {
  a("sequence", submit.sequence);
  a("time_left", submit.time_left);
  a.bytes("loan", submit.loan);
  a("quiet", submit.quiet);
  a("command", submit.command);
}
template <typename Archive>
void fields(Archive& a, Withdraw& withdraw) {
  a("sequence", withdraw.sequence);
}
template <typename Archive>
void fields(Archive& a, Cancel& cancel) {
  a("sequence", cancel.sequence);
  a("reason", cancel.reason);
}
template <typename Archive>
void fields(Archive& a, Look& look) {
  a("request", look.request);
}
template <typename Archive>
void fields(Archive& a, GuardSemaphore& guard) {
  a("request", guard.request);
  a("name", guard.name);
}
template <typename Archive>
void fields(Archive& a, ReleaseSemaphore& release) {
  a("name", release.name);
}
template <typename Archive>
void fields(Archive&, Bye&) {}

template <typename Archive>
void fields(Archive& a, Welcome& welcome) {
  a("pid", welcome.pid);
  a("last_accepted", welcome.last_accepted);
}
template <typename Archive>
void fields(Archive& a, Rejected& rejected) {
  a("reason", rejected.reason);
}
template <typename Archive>
void fields(Archive& a, Accepted& accepted) {
  a("sequence", accepted.sequence);
}
template <typename Archive>
void fields(Archive& a, Refused& refused) {
  a("sequence", refused.sequence);
  a("reason", refused.reason);
}
template <typename Archive>
void fields(Archive& a, Done& done) {
  a("sequence", done.sequence);
  a("outcome", done.outcome);
}
template <typename Archive>
void fields(Archive& a, Progress& progress) {
  a("sequence", progress.sequence);
  a("done", progress.done);
  a("total", progress.total);
}
template <typename Archive>
void fields(Archive& a, Looked& looked) {
  a("request", looked.request);
  a("state", looked.state);
}
template <typename Archive>
void fields(Archive& a, Guarded& guarded) {
  a("request", guarded.request);
  a("status", guarded.status);
}

}  // namespace tensorbus::bus::protocol
