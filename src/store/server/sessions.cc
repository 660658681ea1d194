#include "store/server/sessions.h"

namespace tensorbus::store {
namespace {

// What a node of the map costs beside the reply's own bytes.
constexpr std::size_t reply_overhead = 96;

std::size_t cost(const std::string& reply) { return reply_overhead + reply.size(); }

}  // namespace

const std::string* Sessions::find(std::string_view session, std::uint64_t id) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return nullptr;
  for (const Replies& replies : found->second.replies) {
    if (const auto reply = replies.find(id); reply != replies.end()) return &reply->second;
  }
  return nullptr;
}

void Sessions::remember(std::string_view name, Kind kind, std::uint64_t id, std::string reply,
                        TimePoint now) {
  auto found = sessions_.find(name);
  if (found == sessions_.end()) found = sessions_.emplace(name, Session{}).first;
  Session& session = found->second;
  session.used = now;
  const auto [place, fresh] =
      session.replies[static_cast<std::size_t>(kind)].try_emplace(id, std::move(reply));
  if (fresh) session.held += cost(place->second);
}

void Sessions::settle(std::string_view name, Kind kind, std::uint64_t settled) {
  const auto found = sessions_.find(name);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  Replies& replies = session.replies[static_cast<std::size_t>(kind)];
  for (auto reply = replies.begin(); reply != replies.end() && reply->first < settled;) {
    session.held -= cost(reply->second);
    reply = replies.erase(reply);
  }
}

std::size_t Sessions::held(std::string_view session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? 0 : found->second.held;
}

void Sessions::forget_older_than(TimePoint time) {
  std::erase_if(sessions_, [&](const auto& entry) { return entry.second.used < time; });
}

void Sessions::touch(std::string_view session, TimePoint now) {
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) found->second.used = now;
}

void Sessions::for_each(
    const std::function<void(std::string_view session, Kind kind, std::uint64_t id,
                             const std::string& reply)>& visit) const {
  for (const auto& [name, session] : sessions_) {
    for (const Kind kind : {Kind::change, Kind::barrier}) {
      for (const auto& [id, reply] : session.replies[static_cast<std::size_t>(kind)]) {
        visit(name, kind, id, reply);
      }
    }
  }
}

}  // namespace tensorbus::store
