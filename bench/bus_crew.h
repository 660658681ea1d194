// The processes of a benchmark of the bus: each does what its parent says, and says when it is
// done.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabric/conformance/two_hosts.h"
#include "tensorbus/deadline.h"
#include "tensorbus/layout.h"

namespace tensorbus::bench {

inline Deadline soon() { return Deadline::after(std::chrono::seconds(120)); }

// However long it takes: a child ends with its parent.
inline std::string hear(const fabric::Pipe& pipe) {
  pollfd readable{pipe.readable(), POLLIN, 0};
  while (::poll(&readable, 1, -1) < 0) {
  }
  return pipe.get();
}

class Crew {
 public:
  struct Member {
    Rank rank = 0;
    fabric::Pipe orders;
    fabric::Pipe answers;
    std::unique_ptr<fabric::Child> child;
  };

  template <typename Body>
  void add(Rank rank, Body body) {
    auto member = std::make_unique<Member>();
    member->rank = rank;
    Member& here = *member;
    member->child = std::make_unique<fabric::Child>([&here, body] { body(here); });
    members_.push_back(std::move(member));
  }

  const std::vector<std::unique_ptr<Member>>& members() const noexcept { return members_; }
  void tell(const std::string& order) const {
    for (const auto& member : members_) member->orders.put(order);
  }
  void await() const {
    for (const auto& member : members_) hear(member->answers);
  }

 private:
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace tensorbus::bench
