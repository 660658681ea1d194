#include "bus/match/side_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/refuse.h"
#include "bus/match/problems.h"
#include "bus/match/work.h"
#include "tensor/global_shape.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

using tensorbus::to_string;

std::string label(const End& end, const std::string& name, std::size_t position) {
  if (!name.empty()) return fmt::format("tensor \"{}\" of pair \"{}\"", name, end.pair);
  return fmt::format("tensor {} of pair \"{}\"", position, end.pair);
}

// One tensor at the ranks that have a part of it; several parts of a rank are as it gave them.
using Parts = std::multimap<Rank, const TensorRecord*>;
// By name, or by position where they have none.
using PartsByName = std::map<std::pair<std::string, std::size_t>, Parts>;

PartsByName collect(const Registrations& members, const Side& side) {
  PartsByName parts;
  for (const Rank rank : side.ranks) {
    const BatchMember& member = *members.at(rank);
    std::size_t position = 0;
    for (const std::size_t at : items_of(member, side.end)) {
      const TensorRecord& tensor = member.tensors[at];
      parts[{tensor.name, tensor.name.empty() ? position++ : 0}].emplace(rank, &tensor);
    }
  }
  return parts;
}

// Layouts that tensors say themselves: several meshes of one shape, each with the whole tensor.
class OwnLayouts {
 public:
  explicit OwnLayouts(const Registrations& members) : members_(members) {}

  // Throws Error(invalid_argument) without the tensor's name.
  const Layout& of(const Parts& parts) {
    std::vector<std::pair<Rank, std::size_t>> said;
    for (const auto& [rank, part] : parts) {
      if (!part->layout) refuse(fmt::format("rank {} has it without a layout of its own", rank));
      said.emplace_back(rank, *part->layout);
    }
    const auto found = made_.find(said);
    return found != made_.end() ? found->second : made_.emplace(said, make(said)).first->second;
  }

 private:
  Layout make(const std::vector<std::pair<Rank, std::size_t>>& said) const {
    const SideLayout& first = members_.at(said.front().first)->layouts[said.front().second];
    const Layout one(Mesh(first.mesh), first.placements);
    std::map<std::int64_t, std::map<std::size_t, Rank>> meshes;
    for (const auto& [rank, at] : said) {
      const SideLayout& own = members_.at(rank)->layouts[at];
      if (own.mesh != first.mesh || own.placements != first.placements) {
        refuse(fmt::format("ranks {} and {} lay it out differently", said.front().first, rank));
      }
      const auto position = position_in(own.mesh, own.coordinate.value_or(Shape()));
      if (!position) refuse(fmt::format("rank {} stands outside of its mesh", rank));
      const auto [place, fresh] = meshes[own.mesh_id].emplace(*position, rank);
      if (!fresh) {
        refuse(
            fmt::format("ranks {} and {} stand at the same place of a mesh", place->second, rank));
      }
    }
    std::vector<Rank> ranks;
    for (const auto& [id, mesh] : meshes) {
      if (mesh.size() != one.mesh().size()) {
        refuse(fmt::format("its mesh {} has {} ranks and {} of them have it (rank {} does)",
                           to_string(first.mesh), one.mesh().size(), mesh.size(),
                           mesh.begin()->second));
      }
      for (const auto& [position, rank] : mesh) ranks.push_back(rank);
    }
    if (meshes.size() == 1) return Layout(Mesh(first.mesh, ranks), first.placements);
    Shape shape{static_cast<std::int64_t>(meshes.size())};
    shape.insert(shape.end(), first.mesh.begin(), first.mesh.end());
    std::vector<Placement> placements{Replicate{}};
    placements.insert(placements.end(), first.placements.begin(), first.placements.end());
    return Layout(Mesh(std::move(shape), ranks), std::move(placements));
  }

  const Registrations& members_;
  std::map<std::vector<std::pair<Rank, std::size_t>>, Layout> made_;
};

Shape whole_shape(const Layout& layout, const Parts& parts) {
  std::vector<Shape> locals;
  std::optional<Shape> given;
  for (const Rank rank : layout.mesh().ranks()) {
    const TensorRecord& tensor = *parts.find(rank)->second;
    locals.push_back(tensor.shape);
    if (!tensor.global_shape) continue;
    if (given && *given != *tensor.global_shape) {
      refuse(fmt::format("rank {} says that its whole shape is {}, another rank says {}", rank,
                         to_string(*tensor.global_shape), to_string(*given)));
    }
    given = tensor.global_shape;
  }
  if (!given) return global_shape(layout, locals);
  check_local_shapes(layout, *given, locals);
  return *given;
}

void check_dtypes(const Parts& parts) {
  const auto& [first_rank, first] = *parts.begin();
  for (const auto& [rank, part] : parts) {
    if (part->dtype == first->dtype) continue;
    refuse(fmt::format("rank {} has {}, rank {} has {}", first_rank, to_string(first->dtype), rank,
                       to_string(part->dtype)));
  }
}

// In a batch with versions whoever has a tensor has all of it.
Layout layout_without_own(const Registrations& members, const Side& side, const Parts& parts) {
  std::vector<Rank> with;
  std::vector<Rank> without;
  for (const Rank rank : side.ranks) (parts.contains(rank) ? with : without).push_back(rank);
  if (without.empty()) return *side.layout;
  if (!members.at(with.front())->versioned) {
    refuse(fmt::format("rank {} has it, rank {} has not", parts.begin()->first,
                       fmt::join(without, ", ")));
  }
  return Layout(Mesh({static_cast<std::int64_t>(with.size())}, with), {Replicate{}});
}

// What ranks have of a tensor of which at least one has boxes.
class BoxedTensor {
 public:
  // Throws Error(invalid_argument) without the tensor's name.
  explicit BoxedTensor(const Parts& parts) {
    for (const auto& [rank, part] : parts) {
      if (part->layout) {
        refuse(fmt::format("rank {} has it as a DTensor and others as parts", rank));
      }
      const Shape& said = part->start ? *part->global_shape : part->shape;
      if (boxes.empty()) whole = said;
      if (said != whole) disagree(rank, *part, boxes.begin()->first);
      auto& list = boxes[rank];
      list.push_back({part->start.value_or(Shape(whole.size(), 0)), part->shape});
      most = std::max(most, list.size());
    }
  }

  Shape whole;
  plan::Boxes boxes;
  std::size_t most = 1;

 private:
  [[noreturn]] void disagree(Rank rank, const TensorRecord& part, Rank first) const {
    if (part.start) {
      refuse(fmt::format("rank {} says that its whole shape is {}, rank {} says {}", rank,
                         to_string(*part.global_shape), first, to_string(whole)));
    }
    refuse(fmt::format("rank {} has it as a whole of {}, rank {} as a part of {}", rank,
                       to_string(part.shape), first, to_string(whole)));
  }
};

SideTensors shared_tensors(const Registrations& members, const Side& side) {
  SideTensors tensors;
  Problems problems;
  OwnLayouts own(members);
  for (const auto& [key, parts] : collect(members, side)) {
    const std::string name = label(side.end, key.first, key.second);
    const auto any = [&parts = parts](auto said) {
      return std::ranges::any_of(parts, [&](const auto& each) { return said(*each.second); });
    };
    try {
      check_dtypes(parts);
      const Dtype dtype = parts.begin()->second->dtype;
      if (any([](const TensorRecord& part) { return part.start.has_value(); })) {
        BoxedTensor boxed(parts);
        tensors.shared.push_back({key.first, name, dtype, std::move(boxed.whole),
                                  std::move(boxed.boxes), false, boxed.most});
        continue;
      }
      const bool has_own = any([](const TensorRecord& part) { return part.layout.has_value(); });
      const Layout layout = has_own ? own.of(parts) : layout_without_own(members, side, parts);
      tensors.shared.push_back(
          {key.first, name, dtype, whole_shape(layout, parts), layout, !has_own});
    } catch (const Error& error) {
      problems.add(Cause::disagreement, name + ": " + error.what());
    }
  }
  problems.refuse_if_any(to_string(side.end));
  tensors.subset = std::ranges::all_of(side.ranks, [&](Rank rank) {
    const auto& versioned = members.at(rank)->versioned;
    return versioned && versioned->subset;
  });
  return tensors;
}

SideTensors one_to_one_tensors(const Registrations& members, const Side& side) {
  SideTensors tensors;
  for (const Rank rank : side.ranks) {
    const BatchMember& member = *members.at(rank);
    auto& list = tensors.one_to_one[rank];
    for (const std::size_t at : items_of(member, side.end)) {
      const TensorRecord& tensor = member.tensors[at];
      list.push_back({tensor.name, label(side.end, tensor.name, list.size()), tensor.dtype,
                      tensor.shape, Layout(Mesh({1}, std::vector{rank}), {Replicate{}})});
    }
  }
  return tensors;
}

}  // namespace

std::vector<std::size_t> items_of(const BatchMember& member, const End& end) {
  std::vector<std::size_t> items;
  for (std::size_t at = 0; at < member.tensors.size(); ++at) {
    if (member.ends[member.tensors[at].end] == end) items.push_back(at);
  }
  std::ranges::stable_sort(
      items, {}, [&](std::size_t at) -> const std::string& { return member.tensors[at].name; });
  return items;
}

SideTensors tensors_of(const Registrations& members, const Side& side) {
  ++matching_work().sides;
  return side.layout ? shared_tensors(members, side) : one_to_one_tensors(members, side);
}

}  // namespace tensorbus::bus
