// Which requests of which client were applied, with their replies, so that one sent again after a
// reconnect is answered and not applied again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tensorbus/deadline.h"

namespace tensorbus::store {

class Sessions {
 public:
  // The reply to a request that was applied before.
  const std::string* find(std::string_view session, std::uint64_t id) const;
  // Also forgets the session's replies below `settled`.
  void remember(std::string_view session, std::uint64_t id, std::uint64_t settled,
                std::string reply, TimePoint now);
  // A client that is gone for this long does not come back; its replies are forgotten.
  void forget_older_than(TimePoint time);
  void touch(std::string_view session, TimePoint now);

  void for_each(const std::function<void(std::string_view session, std::uint64_t id,
                                         const std::string& reply)>& visit) const;

 private:
  struct Session {
    std::map<std::uint64_t, std::string> replies;
    TimePoint used{};
  };
  std::map<std::string, Session, std::less<>> sessions_;
};

}  // namespace tensorbus::store
