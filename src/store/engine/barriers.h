// Who stands before which barrier. A barrier exists while somebody waits there, so a name can be
// used again as soon as the barrier was released. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/engine/waits.h"

namespace tensorbus::store {

class Barriers {
 public:
  // The tickets to release, the newcomer's last, when the newcomer completes the barrier. Throws
  // Error(invalid_argument) if others wait there with another count.
  std::vector<Ticket> arrive(Ticket ticket, std::string_view name, std::size_t count,
                             std::string_view member);
  // Takes a member back; says who was there and who was missing. Nothing if the member does not
  // wait.
  std::optional<std::string> withdraw(Ticket ticket);
  std::size_t size() const noexcept { return place_.size(); }

 private:
  struct Barrier {
    std::size_t count = 0;
    std::map<Ticket, std::string> members;
  };
  static std::vector<std::string> names_of(const Barrier& barrier);

  std::map<std::string, Barrier, std::less<>> barriers_;
  std::unordered_map<Ticket, std::string> place_;
};

// "2 of 4 arrived: 0, 3; missing: rank 1, 2" or, for names that are no ranks, without the latter.
std::string describe_arrivals(std::string_view name, std::size_t count,
                              std::vector<std::string> members);

}  // namespace tensorbus::store
