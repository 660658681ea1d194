#include "plan/holdings.h"

#include <algorithm>
#include <string>

#include "base/refuse.h"
#include "plan/overlap.h"
#include "plan/tables.h"
#include "tensor/checked.h"

namespace tensorbus::plan {
namespace {

// Hosts of both sides, numbered alike.
class HostNumbers {
 public:
  std::vector<int> of(const std::vector<std::string>& hosts, std::size_t ranks, const char* side) {
    if (hosts.empty()) return std::vector<int>(ranks, no_host);
    if (hosts.size() != ranks) {
      refuse(std::to_string(hosts.size()) + " hosts are given for the " + side + "'s " +
             std::to_string(ranks) + " ranks; give one per rank of both sides, or none");
    }
    std::vector<int> numbers;
    for (const std::string& host : hosts) {
      numbers.push_back(
          numbers_.try_emplace(host, static_cast<int>(numbers_.size())).first->second);
    }
    return numbers;
  }

 private:
  std::map<std::string, int> numbers_;
};

Bounds bounds_of(const Holding& region) {
  Bounds bounds;
  for (const Intervals& dim : region.dims) {
    bounds.push_back(dim.empty() ? Interval{0, 0} : Interval{dim.front().begin, dim.back().end});
  }
  return bounds;
}

// The part of a box that lies in the tensor.
Holding region_of(const Box& box, const Shape& shape) {
  if (box.start.size() != shape.size() || box.shape.size() != shape.size()) {
    refuse("a box that begins at " + to_string(box.start) + " and has the shape " +
           to_string(box.shape) + " does not fit a tensor of the shape " + to_string(shape));
  }
  element_count(box.shape);
  Holding region;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.start[dim] < 0) refuse("a box begins at " + to_string(box.start));
    const std::int64_t end = checked_add(box.start[dim], box.shape[dim], "the end of a box");
    const Interval inside{box.start[dim], std::min(end, shape[dim])};
    region.dims.push_back(inside.size() > 0 ? Intervals{inside} : Intervals{});
  }
  return region;
}

class SideBuilder {
 public:
  SideBuilder(const Shape& shape, std::vector<int> hosts)
      : shape_(shape), hosts_(std::move(hosts)) {}

  HoldingSide build(const Boxes& boxes) {
    std::map<Bounds, std::size_t, decltype(&before)> cells(&before);
    std::size_t position = 0;
    for (const auto& [rank, list] : boxes) {
      side_.most = std::max(side_.most, list.size());
      for (std::size_t box = 0; box < list.size(); ++box) {
        Holding region = region_of(list[box], shape_);
        const auto [known, fresh] = cells.try_emplace(bounds_of(region), side_.cells.size());
        if (fresh) add_cell(std::move(region));
        Cell& cell = side_.cells[known->second];
        const int host = hosts_[position];
        add_local({rank, box, known->second, cell.replicas.size(), list[box].shape, host});
        add_replica(cell, {{{rank}, {}}, box, host});
      }
      ++position;
    }
    return finish();
  }

  HoldingSide build(const Layout& layout) {
    side_.disjoint = true;
    // Groups do not depend on who reads from them.
    const Tables tables(layout, Layout(Mesh({1}), {Replicate{}}));
    const Tables::Data& data = tables.data();
    side_.folds = data.folds;
    const std::vector<Cuts> cuts = cuts_of(layout, shape_.size());
    std::map<std::vector<std::int64_t>, std::size_t> cells;
    std::vector<std::size_t> cell_of(layout.mesh().size());
    std::map<Rank, std::size_t> replica_of;
    for (std::size_t at = 0; at < layout.mesh().size(); ++at) {
      const auto coordinates = layout.mesh().coordinates_of(at);
      std::vector<std::int64_t> key;
      for (const Cuts& dim : cuts) key.push_back(cell_at(dim, coordinates));
      const auto [known, fresh] = cells.try_emplace(std::move(key), side_.cells.size());
      if (fresh) {
        add_cell(layout.holding(shape_, layout.mesh().ranks()[at]));
        // The first rank of a cell stands at the base of the cell.
        for (std::size_t replica = 0; replica < data.replicas.size(); ++replica) {
          Group group = data.group(at, replica);
          for (const Rank rank : group.ranks) replica_of[rank] = replica;
          const int host = host_of(data, at + data.replicas[replica]);
          add_replica(side_.cells.back(), {std::move(group), 0, host});
        }
      }
      cell_of[at] = known->second;
    }
    for (std::size_t at = 0; at < cell_of.size(); ++at) {
      const Rank rank = layout.mesh().ranks()[at];
      const Cell& cell = side_.cells[cell_of[at]];
      add_local({rank, 0, cell_of[at], replica_of.at(rank), cell.region.local_shape(), hosts_[at]});
    }
    return finish();
  }

 private:
  static bool before(const Bounds& a, const Bounds& b) {
    const auto ends = [](const Interval& each) { return std::pair(each.begin, each.end); };
    return std::ranges::lexicographical_compare(a, b, {}, ends, ends);
  }

  void add_cell(Holding region) {
    Bounds bounds = bounds_of(region);
    side_.cells.push_back({std::move(region), std::move(bounds)});
  }

  // The host of a group whose members begin at `first`, if all members are on one host.
  int host_of(const Tables::Data& data, std::size_t first) const {
    const bool together = std::ranges::all_of(
        data.members, [&](std::size_t member) { return hosts_[first + member] == hosts_[first]; });
    return together ? hosts_[first] : no_host;
  }

  static void add_replica(Cell& cell, Replica replica) {
    cell.replicas_on[replica.host].push_back(cell.replicas.size());
    cell.replicas.push_back(std::move(replica));
  }

  void add_local(Local local) {
    side_.cells[local.cell].locals.push_back(side_.locals.size());
    side_.cells[local.cell].locals_on[local.host].push_back(side_.locals.size());
    side_.of_rank[local.rank].push_back(side_.locals.size());
    side_.locals.push_back(std::move(local));
  }

  HoldingSide finish() {
    std::vector<Bounds> bounds;
    bounds.reserve(side_.cells.size());
    for (const Cell& cell : side_.cells) bounds.push_back(cell.bounds);
    side_.index = BoxIndex(std::move(bounds));
    return std::move(side_);
  }

  const Shape& shape_;
  const std::vector<int> hosts_;
  HoldingSide side_;
};

std::size_t rank_count(const Spread& spread) {
  const auto* layout = std::get_if<Layout>(&spread);
  return layout != nullptr ? layout->mesh().size() : std::get<Boxes>(spread).size();
}

HoldingSide side_of(const Spread& spread, const Shape& shape, std::vector<int> hosts) {
  SideBuilder builder(shape, std::move(hosts));
  return std::visit([&](const auto& how) { return builder.build(how); }, spread);
}

}  // namespace

Holdings::Holdings(const Spread& source, const Spread& target, Shape shape, const Hosts& hosts) {
  const auto* layout = std::get_if<Layout>(&target);
  if (layout != nullptr && layout->has_partial()) {
    refuse("the target has a Partial placement (" + to_string(*layout) +
           "); only a source may be Partial");
  }
  element_count(shape);
  HostNumbers numbers;
  std::vector<int> source_hosts = numbers.of(hosts.source, rank_count(source), "source");
  std::vector<int> target_hosts = numbers.of(hosts.target, rank_count(target), "target");
  Data data{shape, side_of(source, shape, std::move(source_hosts)),
            side_of(target, shape, std::move(target_hosts))};
  data_ = std::make_shared<const Data>(std::move(data));
}

const Shape& Holdings::shape() const noexcept { return data_->shape; }
std::vector<Box> Holdings::missing(Rank target) const { return data_->missing(target); }

}  // namespace tensorbus::plan
