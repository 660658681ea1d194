#include "bus/host/station.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/secret.h"
#include "bus/directory/records.h"
#include "os/io/poll.h"

namespace tensorbus::bus {
namespace {

// A living agent answers in milliseconds; a stopped one counts as gone.
constexpr Duration patience = std::chrono::seconds(1);
// An agent on another host may not have heard of the caller when the first packet comes; TCP sends
// the next after a second.
constexpr Duration patience_with_others = std::chrono::milliseconds(2500);
constexpr Duration caller_lives = std::chrono::seconds(10);

// An agent on another host lets those connect who are in the directory: so the caller is there
// while it asks. And that agent answers by a connection of its own, so the caller admits it.
class Caller {
 public:
  Caller(Store& store, const std::string& space, fabric::Fabric& fabric,
         const fabric::Address& whom, Deadline deadline)
      : fabric_(fabric), deadline_(deadline), lease_(store.lease(caller_lives, {}, deadline)) {
    const auto id = static_cast<std::int64_t>(random_number() >> 1);
    const Entry entry{KeyScope(space, "bus").full(to_text(CallerKey{id})),
                      encode(AgentRecord{0, fabric.address()})};
    store.set(std::span(&entry, 1), deadline, lease_.get());
    fabric_.admit(name, whom);
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  ~Caller() {
    try {
      fabric_.admit(name, std::nullopt);
      lease_->revoke(deadline_);
    } catch (const Error&) {
      // The lease lapses by itself.
    }
  }

 private:
  static constexpr const char* name = "the agent of this rank";

  fabric::Fabric& fabric_;
  const Deadline deadline_;
  std::shared_ptr<Lease> lease_;
};

bool answers(fabric::Fabric& fabric, const fabric::Address& address, const std::string& secret,
             Deadline deadline) {
  const auto peer = fabric.connect(address, secret, deadline);
  while (true) {
    for (const fabric::Event& event : fabric.poll()) {
      if (const auto* up = std::get_if<fabric::PeerUp>(&event); up != nullptr && up->peer == peer) {
        fabric.disconnect(*peer);
        return true;
      }
      if (const auto* lost = std::get_if<fabric::PeerLost>(&event);
          lost != nullptr && lost->peer == peer) {
        return false;
      }
    }
    if (!fabric.arm()) continue;
    pollfd descriptor{fabric.fd(), POLLIN, 0};
    os::sleep_ready(std::span(&descriptor, 1), sooner(deadline, Deadline(fabric.wake_at())));
  }
}

// `fabric` is polled meanwhile: no agent has the fabric yet.
void check_rank_is_free(Store& store, const AgentPlace& place, fabric::Fabric& fabric,
                        Deadline deadline) {
  const std::string key = KeyScope(place.space, "bus").full(to_text(AgentKey{place.rank}));
  const auto found = store.get(std::span(&key, 1), deadline).front();
  if (!found) return;
  fabric::Address address;
  try {
    address = decode_agent_record(*found).address;
    std::optional<Caller> caller;
    const bool here = address.identity.host == fabric.address().identity.host;
    if (!here) caller.emplace(store, place.space, fabric, address, deadline);
    const Deadline latest = Deadline::after(here ? patience : patience_with_others);
    if (!answers(fabric, address, place.secret, sooner(deadline, latest))) return;
  } catch (const Error&) {
    // The address is malformed, or of a fabric that this process cannot reach: then nobody can
    // tell.
    return;
  }
  throw Error(Code::invalid_argument,
              fmt::format("namespace \"{}\" has an agent of rank {} already: {}; every agent needs "
                          "a rank of its own",
                          place.space, place.rank, to_string(address.identity)));
}

}  // namespace

std::unique_ptr<fabric::Station> open_station(Store& store, AgentPlace place, Deadline deadline) {
  auto station =
      std::make_unique<fabric::Station>(fabric::StationOptions{"rank " + std::to_string(place.rank),
                                                               place.secret,
                                                               std::move(place.pool),
                                                               {},
                                                               std::move(place.crew)});
  if (!place.bind.empty()) {
    fabric::NetworkOptions network{place.bind, place.ports};
    network.hosts.emplace();
    station->open_network(std::move(network));
  }
  check_rank_is_free(store, place, *station, deadline);
  return station;
}

}  // namespace tensorbus::bus
