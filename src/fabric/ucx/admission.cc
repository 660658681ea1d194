#include "fabric/ucx/admission.h"

#include <utility>

#include "base/log.h"

namespace tensorbus::fabric::ucx {

Admission::Admission(const std::optional<std::vector<os::IpAddress>>& hosts,
                     std::optional<int> listener) {
  if (!hosts) return;
  hosts_[""] = *hosts;
  guarded_ = listener;
  if (!listener) {
    log::warn("UCX's listening socket was not found: whoever reaches its port may connect");
  }
  apply();
}

void Admission::admit(const std::string& who, std::vector<os::IpAddress> hosts) {
  if (!guarded_) return;
  if (hosts.empty()) {
    changed_ = hosts_.erase(who) > 0 || changed_;
  } else if (std::vector<os::IpAddress>& before = hosts_[who]; before != hosts) {
    before = std::move(hosts);
    changed_ = true;
  }
}

std::set<os::IpAddress> Admission::admitted() const {
  std::set<os::IpAddress> all;
  for (const auto& [who, hosts] : hosts_) all.insert(hosts.begin(), hosts.end());
  return all;
}

void Admission::apply() {
  if (!guarded_ || !std::exchange(changed_, false)) return;
  report(os::admit_only(*guarded_, admitted()));
}

void Admission::report(os::Admitted now) {
  if (now == std::exchange(reported_, now)) return;
  if (now == os::Admitted::networks) {
    log::warn("there are too many ranks to admit each address: their networks may connect to UCX");
  } else if (now == os::Admitted::everybody) {
    log::warn("the kernel takes no filter: whoever reaches UCX's port may connect");
  }
}

}  // namespace tensorbus::fabric::ucx
