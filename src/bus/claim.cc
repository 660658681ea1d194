#include "bus/claim.h"

#include <fmt/format.h>

#include <algorithm>

#include "bus/records.h"
#include "os/poll.h"

namespace tensorbus::bus {
namespace {

// A living agent answers in milliseconds; a stopped one counts as gone.
constexpr Duration patience = std::chrono::seconds(1);

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

}  // namespace

void check_rank_is_free(Store& store, const std::string& space, Rank rank, fabric::Fabric& fabric,
                        const std::string& secret, Deadline deadline) {
  const std::string key = KeyScope(space, "bus").full(to_text(AgentKey{rank}));
  const auto found = store.get(std::span(&key, 1), deadline).front();
  if (!found) return;
  fabric::Address address;
  try {
    address = decode_agent_record(*found).address;
    if (!answers(fabric, address, secret, sooner(deadline, Deadline::after(patience)))) return;
  } catch (const Error&) {
    // Malformed, or of a fabric that we cannot reach: then nobody can tell.
    return;
  }
  throw Error(Code::invalid_argument,
              fmt::format("namespace \"{}\" has an agent of rank {} already: {}; every agent needs "
                          "a rank of its own",
                          space, rank, to_string(address.identity)));
}

}  // namespace tensorbus::bus
