// Who may connect to UCX's port. UCX trusts the bytes that come in there; so strangers get none in.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "os/net/ip_address.h"
#include "os/net/source_filter.h"

namespace tensorbus::fabric::ucx {

class Admission {
 public:
  // `hosts` may always connect; without `hosts` everybody may, whatever admit() says. `listener` is
  // UCX's socket, or none if that was not found.
  Admission(const std::optional<std::vector<os::IpAddress>>& hosts, std::optional<int> listener);

  // The hosts of `who`, in place of those that `who` had; none: `who` may connect no more.
  void admit(const std::string& who, std::vector<os::IpAddress> hosts);
  // Lets the kernel know, if there is something new.
  void apply();

 private:
  std::set<os::IpAddress> admitted() const;
  void report(os::Admitted now);

  std::optional<int> guarded_;
  std::map<std::string, std::vector<os::IpAddress>> hosts_;
  bool changed_ = true;
  os::Admitted reported_ = os::Admitted::exactly;
};

}  // namespace tensorbus::fabric::ucx
