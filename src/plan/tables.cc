#include "plan/tables.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "tensorbus/status.h"

namespace tensorbus::plan {
namespace {

std::vector<std::size_t> steps_of(const Mesh& mesh) {
  std::vector<std::size_t> steps(mesh.dims(), 1);
  for (std::size_t dim = mesh.dims(); dim-- > 1;) {
    steps[dim - 1] = steps[dim] * static_cast<std::size_t>(mesh.shape()[dim]);
  }
  return steps;
}

// The positions over some mesh dimensions, the first of them slowest.
std::vector<std::size_t> offsets_over(const std::vector<std::size_t>& mesh_dims, const Mesh& mesh,
                                      const std::vector<std::size_t>& steps) {
  std::vector<std::size_t> offsets = {0};
  for (const std::size_t dim : mesh_dims) {
    std::vector<std::size_t> next;
    next.reserve(offsets.size() * static_cast<std::size_t>(mesh.shape()[dim]));
    for (const std::size_t offset : offsets) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(mesh.shape()[dim]); ++i) {
        next.push_back(offset + i * steps[dim]);
      }
    }
    offsets = std::move(next);
  }
  return offsets;
}

template <typename Kind>
std::vector<std::size_t> mesh_dims_with(const Layout& layout) {
  std::vector<std::size_t> dims;
  for (std::size_t dim = 0; dim < layout.placements().size(); ++dim) {
    if (std::holds_alternative<Kind>(layout.placements()[dim])) dims.push_back(dim);
  }
  return dims;
}

bool is_sharded(const Layout& layout) {
  for (std::size_t dim = 0; dim < layout.placements().size(); ++dim) {
    const Placement& placement = layout.placements()[dim];
    const bool shards =
        std::holds_alternative<Shard>(placement) || std::holds_alternative<StridedShard>(placement);
    if (shards && layout.mesh().shape()[dim] > 1) return true;
  }
  return false;
}

// torch's redistribute undoes placements from the last mesh dimension to the first when the tensor
// is sharded, else from the first to the last.
std::vector<std::size_t> reduced_dims_in_order(const Layout& source) {
  std::vector<std::size_t> dims = mesh_dims_with<Partial>(source);
  std::erase_if(dims, [&](std::size_t dim) { return source.mesh().shape()[dim] == 1; });
  if (is_sharded(source)) std::ranges::reverse(dims);
  return dims;
}

void check_sides(const Layout& source, const Layout& target) {
  if (!target.has_partial()) return;
  const std::string both = source.has_partial() ? "both sides have" : "the target has";
  throw Error(Code::invalid_argument, both + " a Partial placement (target " + to_string(target) +
                                          "); only a source may be Partial");
}

void check_count(const std::vector<std::string>& hosts, const Mesh& mesh, const char* side) {
  if (hosts.size() == mesh.size()) return;
  throw Error(Code::invalid_argument, std::to_string(hosts.size()) + " hosts are given for the " +
                                          side + "'s " + std::to_string(mesh.size()) +
                                          " ranks; give one per rank of both sides, or none");
}

// One pass over the sources: where each group is, and which hosts are near to which base.
void find_candidates(Tables::Data& data, const std::vector<int>& source_hosts) {
  std::vector<std::size_t> sharding = mesh_dims_with<Shard>(data.source);
  std::ranges::copy(mesh_dims_with<StridedShard>(data.source), std::back_inserter(sharding));
  data.group_hosts.assign(source_hosts.size(), Tables::Data::no_host);
  data.candidate_hosts.resize(source_hosts.size());
  for (const std::size_t base : offsets_over(sharding, data.source.mesh(), data.source_steps)) {
    std::set<int> hosts;
    for (const std::size_t replica : data.replicas) {
      const std::size_t first = base + replica;
      const bool together = std::ranges::all_of(data.members, [&](std::size_t member) {
        return source_hosts[first + member] == source_hosts[first];
      });
      if (together) data.group_hosts[first] = source_hosts[first];
      hosts.insert(data.group_hosts[first]);
    }
    if (hosts.size() == 1) continue;  // all replicas or none: no host is special
    for (const int host : hosts) {
      if (host == Tables::Data::no_host) continue;
      if (data.targets_on_host[static_cast<std::size_t>(host)].empty()) continue;
      data.candidate_hosts[base].push_back(host);
    }
  }
}

void set_hosts(Tables::Data& data, const Hosts& hosts) {
  if (hosts.source.empty() && hosts.target.empty()) return;
  check_count(hosts.source, data.source.mesh(), "source");
  check_count(hosts.target, data.target.mesh(), "target");

  std::map<std::string, int> numbers;
  const auto number = [&](const std::string& host) {
    return numbers.try_emplace(host, static_cast<int>(numbers.size())).first->second;
  };
  std::vector<int> source_hosts;
  for (const std::string& host : hosts.source) source_hosts.push_back(number(host));
  for (const std::string& host : hosts.target) data.target_hosts.push_back(number(host));
  data.targets_on_host.resize(numbers.size());
  for (std::size_t i = 0; i < data.target_hosts.size(); ++i) {
    data.targets_on_host[static_cast<std::size_t>(data.target_hosts[i])].push_back(i);
  }
  find_candidates(data, source_hosts);
}

}  // namespace

std::size_t position_of(const std::vector<std::size_t>& steps,
                        const std::vector<std::int64_t>& coordinates) {
  std::size_t position = 0;
  for (std::size_t dim = 0; dim < steps.size(); ++dim) {
    position += steps[dim] * static_cast<std::size_t>(coordinates[dim]);
  }
  return position;
}

Group Tables::Data::group(std::size_t base, std::size_t replica) const {
  Group group{{}, folds};
  group.ranks.reserve(members.size());
  for (const std::size_t member : members) {
    group.ranks.push_back(source.mesh().ranks()[base + replicas[replica] + member]);
  }
  return group;
}

bool Tables::Data::has_candidates(std::size_t base, int host) const noexcept {
  return std::ranges::binary_search(candidate_hosts[base], host);
}

Tables::Tables(Layout source, Layout target, const Hosts& hosts) {
  check_sides(source, target);
  Data data{std::move(source), std::move(target), {}, {}, {}, {}, {}, {}, {}, {}, {}};
  const Mesh& mesh = data.source.mesh();
  data.source_steps = steps_of(mesh);
  data.target_steps = steps_of(data.target.mesh());
  data.replicas = offsets_over(mesh_dims_with<Replicate>(data.source), mesh, data.source_steps);

  std::vector<std::size_t> reduced = reduced_dims_in_order(data.source);
  for (const std::size_t dim : reduced) {
    data.folds.push_back({std::get<Partial>(data.source.placements()[dim]).op, mesh.shape()[dim]});
  }
  // The first fold joins neighbours, so its dimension runs fastest.
  std::ranges::reverse(reduced);
  data.members = offsets_over(reduced, mesh, data.source_steps);
  set_hosts(data, hosts);
  data_ = std::make_shared<const Data>(std::move(data));
}

const Layout& Tables::source() const noexcept { return data_->source; }
const Layout& Tables::target() const noexcept { return data_->target; }

}  // namespace tensorbus::plan
