#include "store/sessions.h"

namespace tensorbus::store {

const std::string* Sessions::find(std::string_view session, std::uint64_t id) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return nullptr;
  const auto reply = found->second.replies.find(id);
  return reply == found->second.replies.end() ? nullptr : &reply->second;
}

void Sessions::remember(std::string_view session, std::uint64_t id, std::uint64_t settled,
                        std::string reply, TimePoint now) {
  auto found = sessions_.find(session);
  if (found == sessions_.end()) found = sessions_.emplace(session, Session{}).first;
  auto& replies = found->second.replies;
  replies.erase(replies.begin(), replies.lower_bound(settled));
  replies.insert_or_assign(id, std::move(reply));
  found->second.used = now;
}

void Sessions::forget_older_than(TimePoint time) {
  std::erase_if(sessions_, [&](const auto& entry) { return entry.second.used < time; });
}

void Sessions::touch(std::string_view session, TimePoint now) {
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) found->second.used = now;
}

void Sessions::for_each(const std::function<void(std::string_view session, std::uint64_t id,
                                                 const std::string& reply)>& visit) const {
  for (const auto& [name, session] : sessions_) {
    for (const auto& [id, reply] : session.replies) visit(name, id, reply);
  }
}

}  // namespace tensorbus::store
