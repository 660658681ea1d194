#include "plan/choice.h"

#include <algorithm>
#include <map>
#include <span>

#include "plan/overlap.h"

namespace tensorbus::plan {
namespace {

// The replicas of the cell at `base` on a host, in mesh order.
std::vector<std::size_t> replicas_on(const Tables::Data& tables, std::size_t base, int host) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < tables.replicas.size(); ++i) {
    if (tables.group_hosts[base + tables.replicas[i]] == host) found.push_back(i);
  }
  return found;
}

std::size_t readers_on_host_before(const Tables::Data& tables, int host, const Readers& readers,
                                   std::size_t target) {
  std::size_t count = 0;
  for (const std::size_t other : tables.targets_on_host[static_cast<std::size_t>(host)]) {
    if (other >= target) break;
    if (readers.contains(other)) ++count;
  }
  return count;
}

}  // namespace

Readers::Readers(const Mesh& mesh, const std::vector<Cuts>& cuts,
                 std::vector<const std::vector<std::int64_t>*> cells)
    : mesh_(mesh),
      cuts_(cuts),
      cells_(std::move(cells)),
      sharded_dim_(mesh.dims(), replicated),
      below_(mesh.dims(), 1) {
  for (std::size_t dim = 0; dim < cuts_.size(); ++dim) {
    std::int64_t below = 1;
    for (std::size_t i = cuts_[dim].size(); i-- > 0;) {
      const Cut& cut = cuts_[dim][i];
      sharded_dim_[cut.mesh_dim] = dim;
      below_[cut.mesh_dim] = below;
      below *= cut.parts;
    }
  }
}

bool Readers::contains(std::size_t target) const {
  const auto coordinates = mesh_.coordinates_of(target);
  for (std::size_t dim = 0; dim < cuts_.size(); ++dim) {
    if (!std::ranges::binary_search(*cells_[dim], cell_at(cuts_[dim], coordinates))) return false;
  }
  return true;
}

std::size_t Readers::before(std::size_t target) const {
  const auto coordinates = mesh_.coordinates_of(target);
  // Of each tensor dimension the cells that agree with `target` in the mesh dimensions so far: a
  // range, because cells are numbered in mesh order.
  std::vector<std::span<const std::int64_t>> agreeing;
  for (const auto* cells : cells_) agreeing.emplace_back(*cells);
  std::vector<std::int64_t> prefix(cells_.size(), 0);
  std::size_t free = 1;  // coordinates of replicated mesh dimensions still to come
  for (std::size_t dim = 0; dim < mesh_.dims(); ++dim) {
    if (sharded_dim_[dim] == replicated) free *= static_cast<std::size_t>(mesh_.shape()[dim]);
  }

  std::size_t count = 0;
  for (std::size_t mesh_dim = 0; mesh_dim < mesh_.dims(); ++mesh_dim) {
    const std::size_t dim = sharded_dim_[mesh_dim];
    std::size_t smaller = static_cast<std::size_t>(coordinates[mesh_dim]);
    if (dim == replicated) {
      free /= static_cast<std::size_t>(mesh_.shape()[mesh_dim]);
    } else {
      auto& cells = agreeing[dim];
      prefix[dim] += coordinates[mesh_dim] * below_[mesh_dim];
      const auto first = std::ranges::lower_bound(cells, prefix[dim]);
      const auto end = std::ranges::lower_bound(cells, prefix[dim] + below_[mesh_dim]);
      smaller = static_cast<std::size_t>(first - cells.begin());
      cells = {first, end};
    }
    for (std::size_t other = 0; other < agreeing.size(); ++other) {
      if (other != dim) smaller *= agreeing[other].size();
    }
    count += smaller * free;
  }
  return count;
}

std::size_t choose(const Tables::Data& tables, std::size_t base, const Readers& readers,
                   std::size_t target) {
  if (tables.replicas.size() == 1) return 0;
  if (!tables.hosts_known()) return readers.before(target) % tables.replicas.size();

  const int host = tables.target_hosts[target];
  if (tables.has_candidates(base, host)) {
    const auto near = replicas_on(tables, base, host);
    return near[readers_on_host_before(tables, host, readers, target) % near.size()];
  }
  std::size_t ordinal = readers.before(target);
  for (const int other : tables.candidate_hosts[base]) {
    ordinal -= readers_on_host_before(tables, other, readers, target);
  }
  return ordinal % tables.replicas.size();
}

std::vector<std::size_t> choosers(const Tables::Data& tables, std::size_t base, std::size_t replica,
                                  const std::vector<std::size_t>& readers) {
  if (tables.replicas.size() == 1) return readers;
  std::vector<std::size_t> chosen;
  std::map<int, std::vector<std::size_t>> near;  // by host
  if (tables.hosts_known()) {
    for (const int host : tables.candidate_hosts[base]) {
      near[host] = replicas_on(tables, base, host);
    }
  }
  std::map<int, std::size_t> seen;  // readers so far, by host if that has candidates
  for (const std::size_t target : readers) {
    const auto local = tables.hosts_known() ? near.find(tables.target_hosts[target]) : near.end();
    if (local != near.end()) {
      const std::size_t ordinal = seen[local->first]++;
      if (local->second[ordinal % local->second.size()] == replica) chosen.push_back(target);
    } else {
      const std::size_t ordinal = seen[Tables::Data::no_host]++;
      if (ordinal % tables.replicas.size() == replica) chosen.push_back(target);
    }
  }
  return chosen;
}

}  // namespace tensorbus::plan
