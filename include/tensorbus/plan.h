// From what two sides hold of a tensor to who reads what from whom, and to programs that kernels
// can run.
//
// Three steps. A Plan knows the pieces of one tensor. A Stream puts the pieces that one reader gets
// from one source, over a batch of tensors, into one order and cuts it into chunks; it depends on
// layouts, shapes, types and hosts alone, so both sides compute the same one and never send it. A
// Program is a stream bound to the strides of the tensors in memory, which may differ on each rank.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tensorbus/dtype.h"
#include "tensorbus/layout.h"

#pragma GCC visibility push(default)

namespace tensorbus::plan {

// A stretch of one tensor dimension, as indices into the local tensors of both sides.
struct Span {
  std::int64_t source = 0;
  std::int64_t target = 0;
  std::int64_t length = 0;
  friend bool operator==(const Span&, const Span&) = default;
};
using Spans = std::vector<Span>;

// A left fold over `count` neighbours. Averages divide by `count` after it.
struct Fold {
  ReduceOp op = ReduceOp::sum;
  std::int64_t count = 1;
  friend auto operator<=>(const Fold&, const Fold&) = default;
};

// Who holds a piece: one rank or, for Partial, the ranks whose values reduce to it. folds[0]
// reduces each `count` neighbours of `ranks` to one value, folds[1] each `count` neighbours of
// those, and so on down to one. A copy has one rank and no folds.
struct Group {
  std::vector<Rank> ranks;
  std::vector<Fold> folds;

  bool reduces() const noexcept { return ranks.size() > 1; }
  friend auto operator<=>(const Group&, const Group&) = default;
};

// One overlap of a tensor: the product over the dimensions of their spans, in row-major order.
// Between two layouts a target reads at most one piece of a tensor from a source. Never empty.
struct Piece {
  Rank target = 0;
  Group source;
  std::vector<Spans> dims;
  std::size_t source_box = 0;  // which of the boxes that a rank has of the tensor
  std::size_t target_box = 0;

  std::int64_t elements() const noexcept;
  friend bool operator==(const Piece&, const Piece&) = default;
};

// A block of a tensor: the first index in each dimension, and how many.
struct Box {
  Shape start;
  Shape shape;
  friend auto operator<=>(const Box&, const Box&) = default;
};

// What each rank holds of a tensor where no layout says it: any boxes, one local tensor for each.
// Sources whose boxes overlap hold the same values there. What reaches beyond the tensor's end is
// no part of it: it is neither read nor written.
using Boxes = std::map<Rank, std::vector<Box>>;

// How one side has a tensor.
using Spread = std::variant<Layout, Boxes>;

// Which host each rank is on, in the order of Mesh::ranks(), or of boxes by rank. Empty: unknown,
// all equally near.
struct Hosts {
  std::vector<std::string> source;
  std::vector<std::string> target;
};

struct Types {
  Dtype source = Dtype::float32;
  Dtype target = Dtype::float32;
  friend bool operator==(const Types&, const Types&) = default;
};

// What does not depend on the shape: which ranks replicate each other and who is on which host.
// Built in one pass over the ranks, shared by all tensors between two layouts. Immutable; a copy
// shares.
class Tables {
 public:
  // Error if the target has a Partial placement or hosts do not match the meshes.
  Tables(Layout source, Layout target, const Hosts& hosts = {});

  const Layout& source() const noexcept;
  const Layout& target() const noexcept;

  struct Data;
  const Data& data() const noexcept { return *data_; }

 private:
  std::shared_ptr<const Data> data_;
};

// Who holds what of a tensor of one shape, where at least one side has boxes. Built in one pass
// over the ranks, shared by all tensors that are spread alike. Immutable; a copy shares.
//
// Every element that a target asks for comes from one source. Sources that hold the same part are
// replicas, chosen among as those of a layout. Where parts merely overlap, those with a replica on
// the target's host come first, then the order goes round from another one for each target.
class Holdings {
 public:
  // Error if a box does not fit the shape's dimensions, begins outside of it by being negative, the
  // target has a Partial placement, or hosts do not match the ranks.
  Holdings(const Spread& source, const Spread& target, Shape shape, const Hosts& hosts = {});

  const Shape& shape() const noexcept;
  // What this target asks for and no source holds: boxes that share nothing.
  std::vector<Box> missing(Rank target) const;

  struct Data;
  const Data& data() const noexcept { return *data_; }

 private:
  std::shared_ptr<const Data> data_;
};

// The pieces of one tensor.
class Plan {
 public:
  // Error if a placement shards a dimension beyond the shape, the types do not convert, or the
  // source's reduction is not defined for its type.
  Plan(Tables tables, Shape shape, Types types);
  Plan(Holdings holdings, Types types);

  // Of a plan between layouts.
  const Layout& source() const { return std::get<Tables>(how_).source(); }
  const Layout& target() const { return std::get<Tables>(how_).target(); }
  const Shape& shape() const noexcept { return shape_; }
  Types types() const noexcept { return types_; }
  // The type that crosses the wire: the narrower one; for a reduction the source's, because the
  // cast comes after it.
  Dtype wire_dtype() const noexcept;

  // What a target rank reads, ordered by the position of the data in the source's mesh, or by
  // boxes.
  std::vector<Piece> reads(Rank target) const;
  // What a source rank serves, ordered by the target's position in its mesh, or by boxes. Pieces of
  // a reduction name the whole group.
  std::vector<Piece> serves(Rank source) const;

  bool has_source(Rank rank) const;
  bool has_target(Rank rank) const;
  // Of the local tensors that a piece lies in.
  Shape source_shape(const Piece& piece) const;
  Shape target_shape(const Piece& piece) const;
  // How many local tensors a rank has of it at most.
  std::size_t source_tensors() const;
  std::size_t target_tensors() const;
  // Equal addresses and shapes: equal pieces.
  const void* identity() const noexcept;

 private:
  bool reduces() const noexcept;

  std::variant<Tables, Holdings> how_;
  Shape shape_;
  Types types_;
};

Plan make(const Layout& source, const Layout& target, Shape shape, Types types,
          const Hosts& hosts = {});

// A piece of a stream and where its packed elements lie in it.
struct Part {
  std::size_t source_tensor = 0;  // positions among the local tensors of both ranks
  std::size_t target_tensor = 0;
  Types types;
  Dtype wire = Dtype::float32;
  Shape source_shape;  // of the local tensors
  Shape target_shape;
  std::vector<Spans> dims;
  std::int64_t elements = 0;
  std::int64_t wire_offset = 0;  // in bytes, a multiple of part_alignment

  friend bool operator==(const Part&, const Part&) = default;
};

inline constexpr std::int64_t part_alignment = 16;
inline constexpr std::int64_t default_chunk_bytes = std::int64_t{1} << 20;

// All that one reader gets from one group over a batch: the parts packed one after the other and
// cut every `chunk_bytes`; no element crosses a cut. A part is packed box by box, each box in
// row-major order: in every dimension neighbouring spans of equal length and distance form one
// stripe, and a box is a combination of stripes. For a reduction every member of the group packs
// this same stream from its own tensors.
struct Stream {
  Rank reader = 0;
  Group source;
  std::vector<Part> parts;
  std::int64_t chunk_bytes = default_chunk_bytes;
  std::int64_t wire_bytes = 0;     // with the gaps that alignment leaves
  std::int64_t payload_bytes = 0;  // without

  std::int64_t chunk_count() const noexcept;
  friend bool operator==(const Stream&, const Stream&) = default;
};

// The streams of one rank over a batch, ordered by the other side's first rank. `chunk_bytes` is a
// positive multiple of part_alignment. A rank that holds nothing of a tensor has no part in it.
// Parts count local tensors in the order of the batch, of each plan as many as a rank has at most.
std::vector<Stream> read_streams(std::span<const Plan> batch, Rank reader,
                                 std::int64_t chunk_bytes = default_chunk_bytes);
std::vector<Stream> serve_streams(std::span<const Plan> batch, Rank source,
                                  std::int64_t chunk_bytes = default_chunk_bytes);

// `length` elements side by side on both sides, repeated `rows` times and that `planes` times.
// Offsets and strides are bytes from the tensors' first elements. Packed, the elements follow each
// other without gaps from `wire`, which counts from the start of the chunk, plane by plane and row
// by row. Strides of a side that is not bound are 0.
struct Run {
  std::size_t part = 0;  // position in Program::parts
  std::int64_t source = 0;
  std::int64_t target = 0;
  std::int64_t wire = 0;
  std::int64_t length = 0;  // elements
  std::int64_t rows = 1;
  std::int64_t planes = 1;
  std::int64_t source_row = 0;
  std::int64_t target_row = 0;
  std::int64_t source_plane = 0;
  std::int64_t target_plane = 0;

  std::int64_t elements() const noexcept { return length * rows * planes; }
  friend bool operator==(const Run&, const Run&) = default;
};

// runs[first_run] up to, not including, runs[end_run]; together they fill wire_bytes (and gaps).
struct Chunk {
  std::size_t first_run = 0;
  std::size_t end_run = 0;
  std::int64_t wire_bytes = 0;
};

struct ProgramPart {
  std::size_t source_tensor = 0;
  std::size_t target_tensor = 0;
  Dtype source = Dtype::float32;
  Dtype wire = Dtype::float32;
  Dtype target = Dtype::float32;
};

// With both sides bound a chunk can be copied source to target, packed source to wire, or scattered
// wire to target; with one side bound only what touches that side.
struct Program {
  Rank reader = 0;
  Group source;
  std::vector<ProgramPart> parts;
  std::vector<Run> runs;
  std::vector<Chunk> chunks;

  std::span<const Run> runs_of(const Chunk& chunk) const {
    return std::span(runs).subspan(chunk.first_run, chunk.end_run - chunk.first_run);
  }
};

// The strides, in elements, of one rank's local tensors, in the order in which parts count them;
// only those of the stream's tensors are looked at.
using Strides = std::vector<Shape>;
Shape contiguous_strides(const Shape& local_shape);

// The longest runs that the bound sides allow. Error if the strides do not fit the local shapes or
// lead beyond 63 bits.
Program compile(const Stream& stream, const Strides* source, const Strides* target);

}  // namespace tensorbus::plan

#pragma GCC visibility pop
