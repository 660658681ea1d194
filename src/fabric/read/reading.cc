#include "fabric/read/reading.h"

#include <algorithm>

namespace tensorbus::fabric {
namespace {

// The members' tensors that the stream reads have the same strides everywhere.
bool strided_alike(const Read& read) {
  const Forms& first = read.sources.front().region->forms();
  return std::ranges::all_of(read.sources, [&](const Source& source) {
    return std::ranges::all_of(read.stream->parts, [&](const plan::Part& part) {
      return source.region->forms()[part.source_tensor].strides ==
             first[part.source_tensor].strides;
    });
  });
}

const Read& checked(const Read& read) {
  check(read);
  return read;
}

}  // namespace

void check(const Read& read) {
  if (read.stream == nullptr) throw Error(Code::invalid_argument, "a read without a stream");
  if (read.stream->chunk_bytes < 1) throw Error(Code::invalid_argument, "a stream without chunks");
  if (read.sources.empty() || read.sources.size() != read.stream->source.ranks.size()) {
    throw Error(Code::invalid_argument,
                "a stream from " + std::to_string(read.stream->source.ranks.size()) +
                    " sources was given " + std::to_string(read.sources.size()));
  }
  for (const Source& source : read.sources) {
    if (source.peer == nullptr || source.region == nullptr) {
      throw Error(Code::invalid_argument, "a source without peer or region");
    }
    check_source(*read.stream, source.region->forms());
  }
  check_target(*read.stream, read.targets);
}

Bound::Bound(const Read& read)
    : forms_(checked(read)),
      stream_(read.stream),
      alike_(strided_alike(read)),
      sources_(alike_ ? 1 : read.sources.size()) {}

const plan::Program& Bound::direct() {
  if (!direct_) {
    const plan::Strides from = strides_of(forms_.source(0));
    const plan::Strides to = strides_of(forms_.targets());
    direct_ = plan::compile(stream(), &from, &to);
  }
  return *direct_;
}

const plan::Program& Bound::target() {
  if (!target_) {
    const plan::Strides to = strides_of(forms_.targets());
    target_ = plan::compile(stream(), nullptr, &to);
  }
  return *target_;
}

const plan::Program& Bound::source(std::size_t member) {
  const std::size_t index = alike_ ? 0 : member;
  if (!sources_[index]) {
    const plan::Strides from = strides_of(forms_.source(index));
    sources_[index] = plan::compile(stream(), &from, nullptr);
  }
  return *sources_[index];
}

Reading::Reading(Read read) : Reading(read, std::make_shared<Bound>(read)) {}

Reading::Reading(Read read, std::shared_ptr<Bound> bound, device::Copiers* copiers)
    : read_(std::move(read)),
      bound_(std::move(bound)),
      memory_(memory_of(read_.targets, read_.lender, copiers)),
      chunk_count_(static_cast<std::size_t>(stream().chunk_count())),
      caches_(copy::caches_for(stream().payload_bytes)) {
  // What passes through scratch is in the caches anyway.
  if (std::ranges::count(memory_.elsewhere, true) > 0) caches_ = copy::Caches::keep;
}

std::int64_t Reading::bytes_before(std::size_t chunk) const noexcept {
  return std::min(static_cast<std::int64_t>(chunk) * stream().chunk_bytes, stream().wire_bytes);
}

TargetSide& Reading::direct() {
  if (!direct_) direct_.emplace(bound_->direct(), memory_);
  return *direct_;
}

TargetSide& Reading::target() {
  if (!target_) target_.emplace(bound_->target(), memory_);
  return *target_;
}

std::unique_ptr<const DeviceBlocks> Reading::device_blocks() {
  if (!memory_.on_device()) return nullptr;
  std::shared_ptr<const plan::Program> program(bound_, &bound_->target());
  return DeviceBlocks::of(std::move(program), plan::BoundSide::target, memory_);
}

void Reading::copy(std::size_t chunk, std::span<const copy::Sources> members) {
  if (!bound_->alike()) return copy_packed(chunk, members);
  const plan::Program& program = direct().program();
  const plan::Chunk& part = program.chunks[chunk];
  if (program.source.reduces()) {
    copy::reduce_chunk(program, part, members, direct().tensors());
  } else {
    copy::copy_chunk(program, part, members.front(), direct().tensors(), caches_);
  }
  direct().store(chunk);
}

void Reading::stage(TensorMemory source) {
  staged_ = std::make_unique<Staged>(bound_->direct(), std::move(source), memory_);
}

void Reading::copy_staged(std::size_t chunk, const Fetch& fetch) {
  staged_->source.fetch(chunk, fetch);
  const plan::Program& program = staged_->target.program();
  copy::copy_chunk(program, program.chunks[chunk], staged_->source.sources(),
                   staged_->target.tensors(), caches_);
  staged_->target.store(chunk);
}

void Reading::unpack(const plan::Program& program, std::size_t chunk, Wires wires) {
  const plan::Chunk& part = program.chunks[chunk];
  if (program.source.reduces()) {
    copy::reduce_packed_chunk(program, part, wires, target().tensors());
  } else {
    copy::scatter_chunk(program, part, wires.front(), target().tensors(), caches_);
  }
}

void Reading::scatter(std::size_t chunk, Wires wires) {
  unpack(target().program(), chunk, wires);
  target().store(chunk);
}

void Reading::scatter(std::size_t chunk, Wires wires, copy::Crew& crew) {
  if (crew.size() == 1) return scatter(chunk, wires);
  if (!pieces_) pieces_.emplace(target().program());
  const std::span<const ChunkPieces::Piece> pieces = pieces_->of(chunk);
  crew.run(pieces.size(), [&](std::size_t at) {
    std::vector<std::span<const std::byte>> parts;
    for (const auto wire : wires) parts.push_back(wire.subspan(pieces[at].begin, pieces[at].bytes));
    unpack(pieces_->program(), pieces[at].chunk, parts);
  });
  target().store(chunk);
}

void Reading::copy_packed(std::size_t chunk, std::span<const copy::Sources> members) {
  wires_.resize(members.size());
  std::vector<std::span<const std::byte>> wires;
  for (std::size_t member = 0; member < members.size(); ++member) {
    const plan::Program& program = bound_->source(member);
    const plan::Chunk& part = program.chunks[chunk];
    wires_[member].resize(static_cast<std::size_t>(part.wire_bytes));
    copy::gather_chunk(program, part, members[member], wires_[member]);
    wires.emplace_back(wires_[member]);
  }
  scatter(chunk, wires);
}

}  // namespace tensorbus::fabric
