// Which fabric serves a peer, and why the others do not.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/core/identity.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {

// What this process can reach others with. An empty reason: that fabric is there.
struct Reach {
  std::string host;    // host key
  std::string no_shm;  // why not
  std::string no_ucx;
};

// What this process can reach others with, if it listens on `bind`; empty: on no network.
Reach own_reach(std::string_view bind);

// One fabric's answer to "can you reach this peer?".
struct RouteVerdict {
  std::string kind;
  Status refusal;   // ok: it would serve
  Address address;  // of the peer, if it would
};

// A verdict for every fabric there is, the preferred first, from the peer's addresses (all of one
// process). Nothing is sent: a fabric that would serve may still find nobody there.
std::vector<RouteVerdict> select(const Reach& reach, std::span<const Address> peer);

// The ways to one peer, the preferred first: a way that refuses is followed by the next.
class Route {
 public:
  Route() = default;
  explicit Route(std::vector<RouteVerdict> verdicts);

  // The way to take; null if none is left.
  const RouteVerdict* way() const noexcept;
  // The way that way() returns does not serve after all.
  void refuse(Status reason);
  // As explain() below, of all ways that refused.
  std::string explain() const;

 private:
  void skip_refused() noexcept;

  std::vector<RouteVerdict> verdicts_;
  std::size_t at_ = 0;
};

// Whether the process of an shm address answers, is of this user and is the one that is meant.
// Hangs up at once; proves no secret.
Status probe_shm(const Address& address);

// "shm: <why not>; ucx: <why not>", of those that refused.
std::string explain(std::span<const RouteVerdict> verdicts);

}  // namespace tensorbus::fabric
