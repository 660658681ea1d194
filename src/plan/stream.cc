#include <algorithm>
#include <map>

#include "tensor/checked.h"
#include "tensorbus/plan.h"

namespace tensorbus::plan {
namespace {

// A piece with the shapes of the local tensors it lies in.
struct ShapedPiece {
  Piece piece;
  Shape source_shape;
  Shape target_shape;
};

std::vector<ShapedPiece> with_shapes(const Plan& plan, std::vector<Piece> pieces) {
  std::vector<ShapedPiece> shaped;
  shaped.reserve(pieces.size());
  for (Piece& piece : pieces) {
    Shape source = plan.source_shape(piece);
    Shape target = plan.target_shape(piece);
    shaped.push_back({std::move(piece), std::move(source), std::move(target)});
  }
  return shaped;
}

// Tensors of one shape that are spread alike have the same pieces: a model has few shapes.
class PieceCache {
 public:
  template <typename Compute>
  const std::vector<ShapedPiece>& get(const Plan& plan, Compute compute) {
    const auto [entry, missing] = known_.try_emplace({plan.identity(), plan.shape()});
    if (missing) entry->second = with_shapes(plan, compute(plan));
    return entry->second;
  }

 private:
  std::map<std::pair<const void*, Shape>, std::vector<ShapedPiece>> known_;
};

std::int64_t aligned(std::int64_t offset) {
  return ceil_divide(checked_add(offset, part_alignment, "a stream"), part_alignment) *
             part_alignment -
         part_alignment;
}

void check_chunk_bytes(std::int64_t chunk_bytes) {
  if (chunk_bytes > 0 && chunk_bytes % part_alignment == 0) return;
  throw Error(Code::invalid_argument, "chunks of " + std::to_string(chunk_bytes) +
                                          " bytes are not a positive multiple of " +
                                          std::to_string(part_alignment));
}

// Where the local tensors of a plan begin, among all those of a batch.
struct FirstTensors {
  std::size_t source = 0;
  std::size_t target = 0;

  void pass(const Plan& plan) {
    source += plan.source_tensors();
    target += plan.target_tensors();
  }
};

void append(Stream& stream, FirstTensors first, const Plan& plan, const ShapedPiece& shaped) {
  Part part;
  part.source_tensor = first.source + shaped.piece.source_box;
  part.target_tensor = first.target + shaped.piece.target_box;
  part.types = plan.types();
  part.wire = plan.wire_dtype();
  part.source_shape = shaped.source_shape;
  part.target_shape = shaped.target_shape;
  part.dims = shaped.piece.dims;
  part.elements = shaped.piece.elements();
  part.wire_offset = aligned(stream.wire_bytes);
  const auto item = static_cast<std::int64_t>(item_bytes(part.wire));
  const std::int64_t bytes = checked_multiply(part.elements, item, "a stream");
  stream.wire_bytes = checked_add(part.wire_offset, bytes, "a stream");
  stream.payload_bytes += bytes;
  stream.parts.push_back(std::move(part));
}

template <typename Key>
std::vector<Stream> values(std::map<Key, Stream> streams) {
  std::vector<Stream> list;
  list.reserve(streams.size());
  for (auto& [key, stream] : streams) list.push_back(std::move(stream));
  return list;
}

}  // namespace

std::int64_t Stream::chunk_count() const noexcept { return ceil_divide(wire_bytes, chunk_bytes); }

std::vector<Stream> read_streams(std::span<const Plan> batch, Rank reader,
                                 std::int64_t chunk_bytes) {
  check_chunk_bytes(chunk_bytes);
  PieceCache cache;
  std::map<Group, Stream> streams;
  FirstTensors next;
  for (const Plan& plan : batch) {
    const FirstTensors first = next;
    next.pass(plan);
    if (!plan.has_target(reader)) continue;
    const auto reads = [reader](const Plan& any) { return any.reads(reader); };
    for (const ShapedPiece& shaped : cache.get(plan, reads)) {
      const Piece& piece = shaped.piece;
      Stream& stream = streams[piece.source];
      if (stream.parts.empty()) stream = {reader, piece.source, {}, chunk_bytes, 0, 0};
      append(stream, first, plan, shaped);
    }
  }
  return values(std::move(streams));
}

std::vector<Stream> serve_streams(std::span<const Plan> batch, Rank source,
                                  std::int64_t chunk_bytes) {
  check_chunk_bytes(chunk_bytes);
  PieceCache cache;
  std::map<std::pair<Rank, Group>, Stream> streams;
  FirstTensors next;
  for (const Plan& plan : batch) {
    const FirstTensors first = next;
    next.pass(plan);
    if (!plan.has_source(source)) continue;
    const auto serves = [source](const Plan& any) { return any.serves(source); };
    for (const ShapedPiece& shaped : cache.get(plan, serves)) {
      const Piece& piece = shaped.piece;
      Stream& stream = streams[{piece.target, piece.source}];
      if (stream.parts.empty()) stream = {piece.target, piece.source, {}, chunk_bytes, 0, 0};
      append(stream, first, plan, shaped);
    }
  }
  return values(std::move(streams));
}

}  // namespace tensorbus::plan
