// What planning knows about two layouts before it sees a shape.
#pragma once

#include <cstddef>
#include <vector>

#include "tensorbus/plan.h"

namespace tensorbus::plan {

// Positions are those of Mesh::ranks(). A source position is the sum of three parts: the cell of
// the tensor that the position holds (its "base"), which replica the position is, and which member
// of a reduction.
struct Tables::Data {
  Layout source;
  Layout target;
  std::vector<std::size_t> source_steps;  // what one step in each mesh dimension adds to a position
  std::vector<std::size_t> target_steps;

  std::vector<std::size_t> replicas;  // in mesh order
  std::vector<std::size_t> members;   // in the order of Group::ranks
  std::vector<Fold> folds;

  // Hosts are numbered. Empty when unknown.
  static constexpr int no_host = -1;
  std::vector<int> group_hosts;  // by base + replica: the host of all its members, or no_host
  std::vector<int> target_hosts;
  std::vector<std::vector<std::size_t>> targets_on_host;  // ascending
  // By base: the hosts with targets and some, but not all, of its replicas. Only readers there have
  // candidates of their own.
  std::vector<std::vector<int>> candidate_hosts;

  bool hosts_known() const noexcept { return !target_hosts.empty(); }
  bool has_candidates(std::size_t base, int host) const noexcept;
  Group group(std::size_t base, std::size_t replica) const;
};

std::size_t position_of(const std::vector<std::size_t>& steps,
                        const std::vector<std::int64_t>& coordinates);

}  // namespace tensorbus::plan
