#include "bus/match/side_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
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

// The ranks of a side that have registered the same list of tensors: what one of them says holds
// for all of them, but for where each stands in a layout.
struct Alike {
  std::size_t number = 0;
  const BatchMember* member = nullptr;  // of one of them
  std::set<Rank> ranks{};
};

// By the lowest rank of each.
std::deque<Alike> those_alike(const Registrations& members, const Side& side) {
  std::map<Rank, const BatchMember*> ordered;
  for (const Rank rank : side.ranks) ordered[rank] = members.at(rank).get();
  std::deque<Alike> all;
  std::map<TensorListId, Alike*> known;
  for (const auto& [rank, member] : ordered) {
    Alike*& alike = known[member->tensors.id];
    if (alike == nullptr) alike = &all.emplace_back(Alike{all.size(), member});
    alike->ranks.insert(rank);
  }
  return all;
}

// One tensor at the ranks that have a part of it; several parts of a rank are in the order in which
// the rank gave them.
struct Part {
  const Alike* at = nullptr;
  const TensorRecord* record = nullptr;
};
using Parts = std::vector<Part>;
// By name, or by position where they have none.
using PartsByName = std::map<std::pair<std::string, std::size_t>, Parts>;

PartsByName collect(const std::deque<Alike>& all, const Side& side) {
  PartsByName parts;
  for (const Alike& alike : all) {
    std::size_t position = 0;
    for (const std::size_t at : items_of(*alike.member, side.end)) {
      const TensorRecord& tensor = alike.member->tensors[at];
      parts[{tensor.name, tensor.name.empty() ? position++ : 0}].push_back({&alike, &tensor});
    }
  }
  return parts;
}

Rank lowest(const Part& part) { return *part.at->ranks.begin(); }

std::map<Rank, const TensorRecord*> by_rank(const Parts& parts) {
  std::map<Rank, const TensorRecord*> records;
  for (const Part& part : parts) {
    for (const Rank rank : part.at->ranks) records.emplace(rank, part.record);
  }
  return records;
}

// A layout that a tensor says itself: several meshes of one shape, each with the whole tensor.
// Throws Error(invalid_argument) without the tensor's name.
Layout own_layout(const Registrations& members, const Parts& parts) {
  std::vector<std::pair<Rank, const SideLayout*>> said;
  for (const auto& [rank, part] : by_rank(parts)) {
    if (!part->layout) refuse(fmt::format("rank {} has it without a layout of its own", rank));
    said.emplace_back(rank, &members.at(rank)->layouts[*part->layout]);
  }
  const SideLayout& first = *said.front().second;
  const Layout one(Mesh(first.mesh), first.placements);
  std::map<std::int64_t, std::map<std::size_t, Rank>> meshes;
  for (const auto& [rank, own] : said) {
    if (own->mesh != first.mesh || own->placements != first.placements) {
      refuse(fmt::format("ranks {} and {} lay it out differently", said.front().first, rank));
    }
    const auto position = position_in(own->mesh, own->coordinate.value_or(Shape()));
    if (!position) refuse(fmt::format("rank {} stands outside of its mesh", rank));
    const auto [place, fresh] = meshes[own->mesh_id].emplace(*position, rank);
    if (!fresh) {
      refuse(fmt::format("ranks {} and {} stand at the same place of a mesh", place->second, rank));
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

Shape whole_shape(const Layout& layout, const Parts& parts) {
  const auto records = by_rank(parts);
  std::vector<Shape> locals;
  std::optional<Shape> given;
  for (const Rank rank : layout.mesh().ranks()) {
    const TensorRecord& tensor = *records.at(rank);
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
  const Part& first = parts.front();
  for (const Part& part : parts) {
    if (part.record->dtype == first.record->dtype) continue;
    refuse(fmt::format("rank {} has {}, rank {} has {}", lowest(first),
                       to_string(first.record->dtype), lowest(part),
                       to_string(part.record->dtype)));
  }
}

// In a batch with versions whoever has a tensor has all of it.
Layout layout_without_own(const Registrations& members, const Side& side, const Parts& parts) {
  const auto records = by_rank(parts);
  std::vector<Rank> with;
  std::vector<Rank> without;
  for (const Rank rank : side.ranks) (records.contains(rank) ? with : without).push_back(rank);
  if (without.empty()) return *side.layout;
  if (!members.at(with.front())->versioned) {
    refuse(fmt::format("rank {} has it, rank {} has not", records.begin()->first,
                       fmt::join(without, ", ")));
  }
  return Layout(Mesh({static_cast<std::int64_t>(with.size())}, with), {Replicate{}});
}

// How tensors lie that have no boxes. Tensors of which all ranks say the same but for the name are
// looked at once, since a look takes all ranks.
class Layouts {
 public:
  Layouts(const Registrations& members, const Side& side) : members_(members), side_(side) {}

  struct Laid {
    Layout layout;
    Shape whole;
    bool own = false;  // its ranks say its layout themselves
  };
  // Throws Error(invalid_argument) without the tensor's name.
  const Laid& of(const Parts& parts) {
    std::vector<Said> said;
    for (const Part& part : parts) {
      said.emplace_back(part.at->number, part.record->layout, part.record->shape,
                        part.record->global_shape);
    }
    const auto found = known_.find(said);
    return found != known_.end() ? found->second
                                 : known_.emplace(std::move(said), look_at(parts)).first->second;
  }

 private:
  using Said = std::tuple<std::size_t, std::optional<std::size_t>, Shape, std::optional<Shape>>;

  Laid look_at(const Parts& parts) const {
    const bool own = std::ranges::any_of(
        parts, [](const Part& part) { return part.record->layout.has_value(); });
    Layout layout = own ? own_layout(members_, parts) : layout_without_own(members_, side_, parts);
    Shape whole = whole_shape(layout, parts);
    return {std::move(layout), std::move(whole), own};
  }

  const Registrations& members_;
  const Side& side_;
  std::map<std::vector<Said>, Laid> known_;
};

// What ranks have of a tensor of which at least one has boxes.
class BoxedTensor {
 public:
  // Throws Error(invalid_argument) without the tensor's name.
  explicit BoxedTensor(const Parts& parts) {
    for (const Part& part : parts) {
      const TensorRecord& record = *part.record;
      if (record.layout) {
        refuse(fmt::format("rank {} has it as a DTensor and others as parts", lowest(part)));
      }
      const Shape& said = record.start ? *record.global_shape : record.shape;
      if (boxes.empty()) whole = said;
      if (said != whole) disagree(lowest(part), record, boxes.begin()->first);
      for (const Rank rank : part.at->ranks) {
        auto& list = boxes[rank];
        list.push_back({record.start.value_or(Shape(whole.size(), 0)), record.shape});
        most = std::max(most, list.size());
      }
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
  const std::deque<Alike> all = those_alike(members, side);
  Layouts layouts(members, side);
  for (const auto& [key, parts] : collect(all, side)) {
    const std::string name = label(side.end, key.first, key.second);
    try {
      check_dtypes(parts);
      const Dtype dtype = parts.front().record->dtype;
      const auto is_box = [](const Part& part) { return part.record->start.has_value(); };
      if (std::ranges::any_of(parts, is_box)) {
        BoxedTensor boxed(parts);
        tensors.shared.push_back({key.first, name, dtype, std::move(boxed.whole),
                                  std::move(boxed.boxes), false, boxed.most});
        continue;
      }
      const Layouts::Laid& laid = layouts.of(parts);
      tensors.shared.push_back({key.first, name, dtype, laid.whole, laid.layout, !laid.own});
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

const std::vector<std::size_t>& items_of(const BatchMember& member, const End& end) {
  const auto found = std::ranges::lower_bound(member.ends, end);
  const bool has = found != member.ends.end() && *found == end;
  const std::ptrdiff_t position = has ? found - member.ends.begin() : std::ssize(member.ends);
  return member.tensors.get().of_end(static_cast<std::size_t>(position));
}

SideTensors tensors_of(const Registrations& members, const Side& side) {
  ++matching_work().sides;
  return side.layout ? shared_tensors(members, side) : one_to_one_tensors(members, side);
}

}  // namespace tensorbus::bus
