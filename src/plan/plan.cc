#include "tensorbus/plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "plan/choice.h"
#include "plan/holdings.h"
#include "plan/overlap.h"
#include "plan/tables.h"
#include "tensor/checked.h"

namespace tensorbus::plan {
namespace {

using Coordinates = std::vector<std::int64_t>;

// Calls visit(choice) for every combination of one overlap per dimension.
template <typename Visit>
void for_each_combination(const std::vector<std::vector<Overlap>>& overlaps, Visit visit) {
  if (std::ranges::any_of(overlaps, [](const auto& list) { return list.empty(); })) return;
  std::vector<std::size_t> choice(overlaps.size(), 0);
  while (true) {
    visit(choice);
    std::size_t dim = overlaps.size();
    while (dim > 0 && ++choice[dim - 1] == overlaps[dim - 1].size()) choice[--dim] = 0;
    if (dim == 0) return;
  }
}

// The cells of the target that read a cell of the source, remembered for as long as one call needs.
class ReaderCells {
 public:
  ReaderCells(const Shape& shape, const std::vector<Cuts>& source, const std::vector<Cuts>& target,
              std::size_t source_mesh_dims)
      : shape_(shape), source_(source), target_(target), coordinates_(source_mesh_dims) {}

  const std::vector<std::int64_t>* of(std::size_t dim, std::int64_t source_cell) {
    const auto [entry, missing] = known_.try_emplace({dim, source_cell});
    if (missing) {
      set_coordinates(source_[dim], source_cell, coordinates_);
      const Intervals held = intervals_of(source_[dim], shape_[dim], coordinates_);
      for (const Overlap& overlap : overlaps(target_[dim], shape_[dim], held)) {
        entry->second.push_back(overlap.cell);
      }
    }
    return &entry->second;
  }

 private:
  const Shape& shape_;
  const std::vector<Cuts>& source_;
  const std::vector<Cuts>& target_;
  Coordinates coordinates_;
  std::map<std::pair<std::size_t, std::int64_t>, std::vector<std::int64_t>> known_;
};

void check_dims(const char* side, const Layout& layout, std::size_t dims) {
  try {
    cuts_of(layout, dims);
  } catch (const Error& error) {
    throw Error(error.code(), std::string(side) + " " + to_string(layout) + ": " + error.what());
  }
}

void check_castable(Types types) {
  if (!castable(types.source, types.target)) {
    throw Error(Code::invalid_argument, std::string(to_string(types.source)) +
                                            " does not convert to " +
                                            std::string(to_string(types.target)) +
                                            "; it can only be copied to its own type");
  }
}

void check_reduction(ReduceOp op, Dtype dtype) {
  const std::string name(to_string(dtype));
  if (!converts(dtype)) {
    throw Error(Code::invalid_argument, "there is no reduction of " + name);
  }
  if (dtype == Dtype::bool_ && op != ReduceOp::max && op != ReduceOp::min) {
    throw Error(Code::invalid_argument,
                std::string(to_string(op)) + " of bool is not defined; there are max and min");
  }
  if (op == ReduceOp::avg && !is_floating_point(dtype)) {
    throw Error(Code::invalid_argument,
                "avg of " + name + " is not defined; use a floating-point type or sum");
  }
}

void check_size(const Shape& shape, Types types) {
  const std::int64_t count = element_count(shape);
  const std::size_t widest = std::max(item_bytes(types.source), item_bytes(types.target));
  checked_multiply(count, static_cast<std::int64_t>(widest), "the size of a tensor in bytes");
}

// A target and the combination of overlaps, one per tensor dimension, that it reads.
struct Reader {
  std::size_t position = 0;
  std::size_t choice = 0;  // number of the combination
};

struct ReaderList {
  std::vector<Reader> readers;  // in mesh order
  std::vector<std::vector<std::size_t>> choices;
};

// Every target that reads one of the overlaps.
ReaderList readers_of(const Tables::Data& tables, const std::vector<Cuts>& target_cuts,
                      const std::vector<std::vector<Overlap>>& found) {
  const Mesh& mesh = tables.target.mesh();
  std::vector<bool> sharded(mesh.dims(), false);
  for (const Cuts& cuts : target_cuts) {
    for (const Cut& cut : cuts) sharded[cut.mesh_dim] = true;
  }
  ReaderList list;
  Coordinates at(mesh.dims(), 0);
  for_each_combination(found, [&](const std::vector<std::size_t>& choice) {
    for (std::size_t dim = 0; dim < choice.size(); ++dim) {
      set_coordinates(target_cuts[dim], found[dim][choice[dim]].cell, at);
    }
    list.choices.push_back(choice);
    // Every coordinate of the mesh dimensions that do not shard.
    while (true) {
      list.readers.push_back({position_of(tables.target_steps, at), list.choices.size() - 1});
      std::size_t dim = mesh.dims();
      for (; dim > 0; --dim) {
        if (sharded[dim - 1]) continue;
        if (++at[dim - 1] < mesh.shape()[dim - 1]) break;
        at[dim - 1] = 0;
      }
      if (dim == 0) break;
    }
  });
  std::ranges::sort(list.readers, {}, &Reader::position);
  return list;
}

Spans swapped(Spans spans) {
  for (Span& span : spans) std::swap(span.source, span.target);
  return spans;
}

// A mesh dimension's coordinate counts for the base if it shards, for the replica if it replicates.
std::size_t replica_of(const Tables::Data& tables, const Coordinates& coordinates) {
  std::size_t replica = 0;
  for (std::size_t dim = 0; dim < coordinates.size(); ++dim) {
    if (!std::holds_alternative<Replicate>(tables.source.placements()[dim])) continue;
    replica = replica * static_cast<std::size_t>(tables.source.mesh().shape()[dim]) +
              static_cast<std::size_t>(coordinates[dim]);
  }
  return replica;
}

}  // namespace

std::int64_t Piece::elements() const noexcept {
  std::int64_t count = 1;
  for (const Spans& spans : dims) {
    std::int64_t length = 0;
    for (const Span& span : spans) length += span.length;
    count *= length;
  }
  return count;
}

Plan::Plan(Tables tables, Shape shape, Types types)
    : how_(std::move(tables)), shape_(std::move(shape)), types_(types) {
  check_size(shape_, types_);
  check_dims("source", source(), shape_.size());
  check_dims("target", target(), shape_.size());
  check_castable(types_);
  for (const Placement& placement : source().placements()) {
    const auto* partial = std::get_if<Partial>(&placement);
    if (partial != nullptr) check_reduction(partial->op, types_.source);
  }
}

Plan::Plan(Holdings holdings, Types types)
    : how_(std::move(holdings)), shape_(std::get<Holdings>(how_).shape()), types_(types) {
  check_size(shape_, types_);
  check_castable(types_);
  for (const Fold& fold : std::get<Holdings>(how_).data().source.folds) {
    check_reduction(fold.op, types_.source);
  }
}

bool Plan::reduces() const noexcept {
  const auto* holdings = std::get_if<Holdings>(&how_);
  if (holdings != nullptr) return !holdings->data().source.folds.empty();
  return !std::get_if<Tables>(&how_)->data().folds.empty();
}

Dtype Plan::wire_dtype() const noexcept {
  return reduces() || bits(types_.source) <= bits(types_.target) ? types_.source : types_.target;
}

std::vector<Piece> Plan::reads(Rank target) const {
  if (const auto* boxes = std::get_if<Holdings>(&how_)) return boxes->data().reads(target);
  const Tables::Data& tables = std::get<Tables>(how_).data();
  const std::size_t position = this->target().mesh().index_of(target);
  const Coordinates at = this->target().mesh().coordinates_of(position);
  const std::vector<Cuts> source_cuts = cuts_of(source(), shape_.size());
  const std::vector<Cuts> target_cuts = cuts_of(this->target(), shape_.size());

  std::vector<std::vector<Overlap>> found;
  for (std::size_t dim = 0; dim < shape_.size(); ++dim) {
    const Intervals wanted = intervals_of(target_cuts[dim], shape_[dim], at);
    found.push_back(overlaps(source_cuts[dim], shape_[dim], wanted));
  }

  ReaderCells reader_cells(shape_, source_cuts, target_cuts, source().mesh().dims());
  std::vector<std::pair<std::size_t, Piece>> by_base;
  Coordinates source_at(source().mesh().dims(), 0);
  for_each_combination(found, [&](const std::vector<std::size_t>& choice) {
    Piece piece;
    piece.target = target;
    piece.dims.reserve(choice.size());
    for (std::size_t dim = 0; dim < choice.size(); ++dim) {
      const Overlap& overlap = found[dim][choice[dim]];
      set_coordinates(source_cuts[dim], overlap.cell, source_at);
      piece.dims.push_back(overlap.spans);
    }
    const std::size_t base = position_of(tables.source_steps, source_at);
    std::size_t replica = 0;
    if (tables.replicas.size() > 1) {
      std::vector<const std::vector<std::int64_t>*> cells;
      for (std::size_t dim = 0; dim < choice.size(); ++dim) {
        cells.push_back(reader_cells.of(dim, found[dim][choice[dim]].cell));
      }
      const Readers readers(this->target().mesh(), target_cuts, std::move(cells));
      replica = choose(tables, base, readers, position);
    }
    piece.source = tables.group(base, replica);
    by_base.emplace_back(base, std::move(piece));
  });

  std::ranges::sort(by_base, {}, [](const auto& entry) { return entry.first; });
  std::vector<Piece> pieces;
  pieces.reserve(by_base.size());
  for (auto& [base, piece] : by_base) pieces.push_back(std::move(piece));
  return pieces;
}

std::vector<Piece> Plan::serves(Rank source) const {
  if (const auto* boxes = std::get_if<Holdings>(&how_)) return boxes->data().serves(source);
  const Tables::Data& tables = std::get<Tables>(how_).data();
  const Coordinates at =
      this->source().mesh().coordinates_of(this->source().mesh().index_of(source));
  const std::vector<Cuts> source_cuts = cuts_of(this->source(), shape_.size());
  const std::vector<Cuts> target_cuts = cuts_of(target(), shape_.size());

  Coordinates base_at(at.size(), 0);
  std::vector<std::vector<Overlap>> found;
  for (std::size_t dim = 0; dim < shape_.size(); ++dim) {
    for (const Cut& cut : source_cuts[dim]) base_at[cut.mesh_dim] = at[cut.mesh_dim];
    const Intervals held = intervals_of(source_cuts[dim], shape_[dim], at);
    found.push_back(overlaps(target_cuts[dim], shape_[dim], held));
  }
  const std::size_t base = position_of(tables.source_steps, base_at);
  const std::size_t replica = replica_of(tables, at);

  const auto [all, choices] = readers_of(tables, target_cuts, found);
  std::vector<std::size_t> positions;
  positions.reserve(all.size());
  for (const Reader& reader : all) positions.push_back(reader.position);

  std::vector<Piece> pieces;
  for (const std::size_t chosen : choosers(tables, base, replica, positions)) {
    const Reader& reader = *std::ranges::lower_bound(all, chosen, {}, &Reader::position);
    Piece piece;
    piece.target = target().mesh().ranks()[chosen];
    piece.source = tables.group(base, replica);
    for (std::size_t dim = 0; dim < shape_.size(); ++dim) {
      piece.dims.push_back(swapped(found[dim][choices[reader.choice][dim]].spans));
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

bool Plan::has_source(Rank rank) const {
  if (const auto* boxes = std::get_if<Holdings>(&how_)) {
    return boxes->data().source.of_rank.contains(rank);
  }
  return source().mesh().contains(rank);
}

bool Plan::has_target(Rank rank) const {
  if (const auto* boxes = std::get_if<Holdings>(&how_)) {
    return boxes->data().target.of_rank.contains(rank);
  }
  return target().mesh().contains(rank);
}

Shape Plan::source_shape(const Piece& piece) const {
  const Rank rank = piece.source.ranks.front();
  const auto* boxes = std::get_if<Holdings>(&how_);
  if (boxes == nullptr) return source().local_shape(shape_, rank);
  const HoldingSide& side = boxes->data().source;
  return side.locals[side.of_rank.at(rank).at(piece.source_box)].shape;
}

Shape Plan::target_shape(const Piece& piece) const {
  const auto* boxes = std::get_if<Holdings>(&how_);
  if (boxes == nullptr) return target().local_shape(shape_, piece.target);
  const HoldingSide& side = boxes->data().target;
  return side.locals[side.of_rank.at(piece.target).at(piece.target_box)].shape;
}

std::size_t Plan::source_tensors() const {
  const auto* boxes = std::get_if<Holdings>(&how_);
  return boxes == nullptr ? 1 : boxes->data().source.most;
}

std::size_t Plan::target_tensors() const {
  const auto* boxes = std::get_if<Holdings>(&how_);
  return boxes == nullptr ? 1 : boxes->data().target.most;
}

const void* Plan::identity() const noexcept {
  if (const auto* boxes = std::get_if<Holdings>(&how_)) return &boxes->data();
  return &std::get_if<Tables>(&how_)->data();
}

Plan make(const Layout& source, const Layout& target, Shape shape, Types types,
          const Hosts& hosts) {
  return Plan(Tables(source, target, hosts), std::move(shape), types);
}

}  // namespace tensorbus::plan
