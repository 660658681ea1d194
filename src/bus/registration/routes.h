// The recipient of the messages of a subscription: sought once among all who may know the
// subscription, then remembered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "bus/round/messages.h"
#include "bus/round/peer_connections.h"

namespace tensorbus::bus {

// A recipient says by is_for() whether it knows the subscription that a message is of. A route that
// is remembered is only a guess: its recipient is asked again every time.
template <typename Recipient>
class Routes {
 public:
  // `recipient` makes a recipient of an element of `all`. Null: no recipient knows the
  // subscription.
  template <typename All, typename Projection = std::identity>
  Recipient* find(const PeerConnectionPtr& connection, const AgentMessage& message, All& all,
                  Projection recipient = {}) {
    const Key key(connection.get(), message.serial);
    const auto known = known_.find(key);
    if (known != known_.end() && known->second->is_for(connection, message)) return known->second;
    for (auto& element : all) {
      Recipient& each = recipient(element);
      if (!each.is_for(connection, message)) continue;
      if (known_.size() >= most_remembered) known_.clear();
      known_[key] = &each;
      return &each;
    }
    if (known != known_.end()) known_.erase(known);
    return nullptr;
  }

  void forget(const Recipient& recipient) {
    std::erase_if(known_, [&](const auto& each) { return each.second == &recipient; });
  }
  void forget(const PeerConnection& connection) {
    const std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
    known_.erase(known_.lower_bound({&connection, 0}), known_.upper_bound({&connection, last}));
  }
  std::size_t size() const noexcept { return known_.size(); }

 private:
  using Key = std::pair<const PeerConnection*, std::uint64_t>;
  static constexpr std::size_t most_remembered = 65'536;

  std::map<Key, Recipient*> known_;
};

}  // namespace tensorbus::bus
