// Which requests of which client were applied, with their replies, so that a request sent again
// after a reconnect is answered and not applied again.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "tensorbus/deadline.h"

namespace tensorbus::store {

class Sessions {
 public:
  // Changes and barriers are settled apart from each other; ids are unique all the same.
  enum class Kind : std::uint8_t { change, barrier };

  // The reply to a request that was applied before.
  const std::string* find(std::string_view session, std::uint64_t id) const;
  void remember(std::string_view session, Kind kind, std::uint64_t id, std::string reply,
                TimePoint now);
  // The client has the replies below `settled`; the server forgets these.
  void settle(std::string_view session, Kind kind, std::uint64_t settled);
  // How much memory the replies of one client take.
  std::size_t held(std::string_view session) const;
  // A client that is gone for this long does not come back; its replies are forgotten.
  void forget_older_than(TimePoint time);
  void touch(std::string_view session, TimePoint now);

  void for_each(const std::function<void(std::string_view session, Kind kind, std::uint64_t id,
                                         const std::string& reply)>& visit) const;

 private:
  using Replies = std::map<std::uint64_t, std::string>;
  struct Session {
    std::array<Replies, 2> replies;  // by kind
    std::size_t held = 0;
    TimePoint used{};
  };
  std::map<std::string, Session, std::less<>> sessions_;
};

}  // namespace tensorbus::store
