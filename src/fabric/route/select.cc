#include "fabric/route/select.h"

#include <algorithm>
#include <utility>

#include "fabric/shm/handshake.h"
#include "fabric/ucx/ucx.h"
#include "os/net/unix_socket.h"
#include "os/process/process.h"

namespace tensorbus::fabric {
namespace {

Status judge_shm(const Reach& reach, const Address& peer) {
  if (!reach.no_shm.empty()) return {Code::unsupported, reach.no_shm};
  if (peer.identity.host != reach.host) {
    return {Code::unreachable, "it is on another host or in another network namespace"};
  }
  return {};
}

Status judge_ucx(const Reach& reach) {
  if (!reach.no_ucx.empty()) return {Code::unsupported, reach.no_ucx};
  return {};
}

}  // namespace

Reach own_reach(std::string_view bind) {
  Reach reach{os::host_key(), {}, {}};
  // Asked first: who is not bound to an address does not load UCX.
  if (bind.empty()) {
    reach.no_ucx =
        "this process uses no network; bind it to an address of this machine that the peer can "
        "reach (TENSORBUS_BIND)";
  } else if (!has_ucx()) {
    reach.no_ucx = describe_ucx();
  }
  return reach;
}

std::vector<RouteVerdict> select(const Reach& reach, std::span<const Address> peer) {
  std::vector<RouteVerdict> verdicts;
  for (const std::string kind : {"shm", "ucx"}) {
    RouteVerdict verdict{kind, {}, {}};
    const auto offered = std::ranges::find(peer, kind, &Address::kind);
    if (offered == peer.end()) {
      verdict.refusal = {Code::unreachable, "the peer does not offer it"};
    } else {
      verdict.refusal = kind == "shm" ? judge_shm(reach, *offered) : judge_ucx(reach);
    }
    if (verdict.refusal.ok()) verdict.address = *offered;
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

Route::Route(std::vector<RouteVerdict> verdicts) : verdicts_(std::move(verdicts)) {
  skip_refused();
}

const RouteVerdict* Route::way() const noexcept {
  return at_ < verdicts_.size() ? &verdicts_[at_] : nullptr;
}

void Route::refuse(Status reason) {
  verdicts_.at(at_).refusal = std::move(reason);
  skip_refused();
}

void Route::skip_refused() noexcept {
  while (at_ < verdicts_.size() && !verdicts_[at_].refusal.ok()) ++at_;
}

std::string Route::explain() const { return fabric::explain(verdicts_); }

Status probe_shm(const Address& address) try {
  const os::Fd socket = os::connect_unix(address.where);
  // Somebody listens; who that is shows when there is room.
  if (!socket) return {};
  check_identity(check_credentials(socket), address.identity);
  return {};
} catch (...) {
  return current_exception_status();
}

std::string explain(std::span<const RouteVerdict> verdicts) {
  std::string text;
  for (const RouteVerdict& verdict : verdicts) {
    if (verdict.refusal.ok()) continue;
    if (!text.empty()) text += "; ";
    text += verdict.kind + ": " + verdict.refusal.message;
  }
  return text;
}

}  // namespace tensorbus::fabric
