#include "fabric/read/staging.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

constexpr std::size_t run_alignment = 64;
// Of pinned scratch: enough that a device copies some chunks while others are packed.
constexpr std::size_t scratch_for_devices = std::size_t{4} << 20;
constexpr std::size_t fewest_slots = 2;
constexpr std::size_t most_slots = 64;
// Shorter rows cost the kernel more than the gaps between them, up to three times their length, or
// when all are within a cache line.
constexpr std::int64_t shortest_row = 512;
constexpr std::int64_t widest_gap = 3;
constexpr std::int64_t cache_line = 64;

bool is_dense(std::int64_t length, std::int64_t row) {
  return length < shortest_row && row > 0 && row <= std::max((1 + widest_gap) * length, cache_line);
}

// Without arithmetic of pointers: what a broken peer says need not be a place.
std::byte* moved(std::byte* from, std::int64_t bytes) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uint64_t>(from) +
                                      static_cast<std::uint64_t>(bytes));
}

device::Copier* copier_of(const TensorView& tensor, device::Copiers* copiers) {
  if (!tensor.on_device() || tensor.empty()) return nullptr;
  const device::Id id{tensor.device};
  if (copiers == nullptr) {
    throw Error(Code::unsupported,
                "a tensor is on " + to_string(id) + ", and this cannot be done with it there");
  }
  return &copiers->of(id);
}

}  // namespace

TensorMemory memory_of(std::span<const TensorView> tensors, std::shared_ptr<const Lender> lender,
                       device::Copiers* copiers) {
  TensorMemory memory;
  if (std::ranges::any_of(tensors, &TensorView::on_device)) {
    for (const TensorView& tensor : tensors) {
      memory.copiers.push_back(copier_of(tensor, copiers));
    }
  }
  for (const TensorView& tensor : tensors) {
    if (tensor.elsewhere && lender == nullptr) {
      throw Error(Code::invalid_argument, "a tensor lies in another process that does not lend it");
    }
    memory.first.push_back(tensor.data);
    memory.elsewhere.push_back(tensor.elsewhere || (tensor.on_device() && !tensor.empty()));
  }
  memory.lender = std::move(lender);
  return memory;
}

Staging::Staging(plan::Program& program, plan::BoundSide side, TensorMemory memory)
    : memory_(std::move(memory)) {
  tensors_ = memory_.first;
  if (std::ranges::count(memory_.elsewhere, true) == 0) return;
  std::size_t most = 0;
  for (const plan::Chunk& chunk : program.chunks) {
    first_of_chunk_.push_back(runs_.size());
    std::size_t used = 0;
    for (std::size_t i = chunk.first_run; i < chunk.end_run; ++i) {
      const plan::ProgramPart& part = program.parts[program.runs[i].part];
      const std::size_t tensor =
          side == plan::BoundSide::source ? part.source_tensor : part.target_tensor;
      if (!memory_.elsewhere[tensor]) continue;
      Staged staged;
      staged.remote = memory_.first[tensor];
      if (memory_.on_device()) staged.copier = memory_.copiers[tensor];
      staged.scratch = used;
      stage(program.runs[i], side,
            item_bytes(side == plan::BoundSide::source ? part.source : part.target), staged);
      used += (staged.total() + run_alignment - 1) / run_alignment * run_alignment;
      runs_.push_back(staged);
    }
    most = std::max(most, used);
  }
  first_of_chunk_.push_back(runs_.size());
  take_scratch(most);
  if (slots_ > 1) spread(program, side, most);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (memory_.elsewhere[i]) tensors_[i] = scratch_;
  }
}

// A device copies while kernels are at other chunks: those have scratch of their own.
void Staging::take_scratch(std::size_t bytes_of_slot) {
  const auto on_device = std::ranges::find_if(memory_.copiers, [](auto* each) { return each; });
  if (on_device == memory_.copiers.end()) {
    own_scratch_.resize(bytes_of_slot);
    scratch_ = own_scratch_.data();
    return;
  }
  slots_ = std::clamp(scratch_for_devices / std::max<std::size_t>(bytes_of_slot, 1), fewest_slots,
                      most_slots);
  slots_ = std::min(slots_, first_of_chunk_.size());  // one more than there are chunks
  pinned_scratch_ = (*on_device)->scratch(slots_ * bytes_of_slot);
  scratch_ = pinned_scratch_.get();
  for (std::size_t slot = 0; slot < slots_; ++slot) copies_.emplace_back(pinned_scratch_);
}

void Staging::spread(plan::Program& program, plan::BoundSide side, std::size_t bytes_of_slot) {
  std::size_t next = 0;  // in runs_
  for (std::size_t chunk = 0; chunk < program.chunks.size(); ++chunk) {
    const std::size_t shift = chunk % slots_ * bytes_of_slot;
    const plan::Chunk& part_of = program.chunks[chunk];
    for (std::size_t i = part_of.first_run; i < part_of.end_run; ++i) {
      plan::Run& run = program.runs[i];
      const plan::ProgramPart& part = program.parts[run.part];
      const bool of_source = side == plan::BoundSide::source;
      if (!memory_.elsewhere[of_source ? part.source_tensor : part.target_tensor]) continue;
      (of_source ? run.source : run.target) += static_cast<std::int64_t>(shift);
      runs_[next++].scratch += shift;
    }
  }
}

void Staging::stage(plan::Run& run, plan::BoundSide side, std::size_t item, Staged& staged) const {
  const bool of_source = side == plan::BoundSide::source;
  std::int64_t& first = of_source ? run.source : run.target;
  std::int64_t& row = of_source ? run.source_row : run.target_row;
  std::int64_t& plane = of_source ? run.source_plane : run.target_plane;
  const std::int64_t length = run.length * static_cast<std::int64_t>(item);
  staged.remote = moved(staged.remote, first);
  first = static_cast<std::int64_t>(staged.scratch);
  const std::int64_t span = (run.rows - 1) * row + length;
  if (run.planes > 1 && plane == length) {
    // Transposed: neighbours lie side by side across planes.
    staged.bytes = static_cast<std::size_t>(length * run.planes);
    staged.rows = run.rows;
    staged.row = row;
    row = length * run.planes;
  } else if (of_source && is_dense(length, row)) {
    staged.bytes = static_cast<std::size_t>(span);
    staged.rows = run.planes;
    staged.row = plane;
    plane = span;
  } else {
    staged.bytes = static_cast<std::size_t>(length);
    staged.rows = run.rows;
    staged.row = row;
    staged.planes = run.planes;
    staged.plane = plane;
    row = length;
    plane = length * run.rows;
  }
}

void Staging::list(std::size_t chunk) {
  local_.clear();
  remote_.clear();
  for (std::size_t i = first_of_chunk_[chunk]; i < first_of_chunk_[chunk + 1]; ++i) {
    const Staged& staged = runs_[i];
    if (staged.copier != nullptr) continue;
    local_.push_back({scratch_ + staged.scratch, staged.total()});
    for (std::int64_t plane = 0; plane < staged.planes; ++plane) {
      for (std::int64_t row = 0; row < staged.rows; ++row) {
        const std::int64_t offset = plane * staged.plane + row * staged.row;
        remote_.push_back({moved(staged.remote, offset), staged.bytes});
      }
    }
  }
}

device::Block Staging::block_of(const Staged& staged, Way way) const {
  device::Block block;
  std::byte* const scratch = scratch_ + staged.scratch;
  const auto bytes = static_cast<std::int64_t>(staged.bytes);
  const device::Pitch there{staged.row, staged.plane};
  const device::Pitch here{bytes, bytes * staged.rows};
  const bool fetches = way == Way::fetch;
  block.from = fetches ? staged.remote : scratch;
  block.to = fetches ? scratch : staged.remote;
  block.from_pitch = fetches ? there : here;
  block.to_pitch = fetches ? here : there;
  block.bytes = staged.bytes;
  block.rows = staged.rows;
  block.planes = staged.planes;
  return block;
}

void Staging::begin_copies(std::size_t chunk, Way way) {
  if (copies_.empty()) return;
  std::map<device::Copier*, std::vector<device::Block>> blocks;
  for (std::size_t i = first_of_chunk_[chunk]; i < first_of_chunk_[chunk + 1]; ++i) {
    if (runs_[i].copier != nullptr) blocks[runs_[i].copier].push_back(block_of(runs_[i], way));
  }
  for (auto& [copier, each] : blocks) {
    copies_[chunk % slots_].add(copier->queue().copy(std::move(each)));
  }
}

bool Staging::finished() {
  return std::ranges::all_of(copies_, [](device::OpenCopies& each) { return each.over(); });
}

bool Staging::ended() noexcept {
  return std::ranges::all_of(copies_, [](device::OpenCopies& each) { return each.ended(); });
}

void Staging::fetch(std::size_t chunk) {
  if (idle()) return;
  begin_copies(chunk, Way::fetch);
  list(chunk);
  if (!remote_.empty()) memory_.lender->read(local_, remote_);
}

void Staging::fetch(std::size_t chunk, const Fetch& fetch) {
  if (idle()) return;
  list(chunk);
  if (!remote_.empty()) fetch(local_, remote_);
}

void Staging::store(std::size_t chunk) {
  if (idle()) return;
  begin_copies(chunk, Way::store);
  list(chunk);
  if (!remote_.empty()) memory_.lender->write(local_, remote_);
}

TargetSide::TargetSide(const plan::Program& shared, const TensorMemory& memory)
    : shared_(&shared), tensors_(memory.first) {
  if (std::ranges::count(memory.elsewhere, true) == 0) return;
  own_ = std::make_unique<Own>(shared, memory);
}

Packer::Packer(plan::Program program, TensorMemory memory)
    : program_(std::move(program)),
      on_device_(memory.on_device()),
      staging_(program_, plan::BoundSide::source, std::move(memory)) {}

void Packer::gather(std::size_t chunk, std::span<std::byte> wire) {
  staging_.fetch(chunk);
  pack(chunk, wire);
}

void Packer::gather(std::size_t chunk, std::span<std::byte> wire, copy::Crew& crew) {
  staging_.fetch(chunk);
  pack(chunk, wire, crew);
}

void Packer::gather(std::size_t chunk, std::span<std::byte> wire, const Fetch& fetch,
                    copy::Crew& crew) {
  staging_.fetch(chunk, fetch);
  pack(chunk, wire, crew);
}

void Packer::pack(std::size_t chunk, std::span<std::byte> wire) {
  copy::gather_chunk(program_, program_.chunks[chunk], staging_.sources(), wire);
}

void Packer::pack(std::size_t chunk, std::span<std::byte> wire, copy::Crew& crew) {
  if (crew.size() == 1) return pack(chunk, wire);
  if (!pieces_) pieces_.emplace(program_);
  const std::span<const ChunkPieces::Piece> pieces = pieces_->of(chunk);
  crew.run(pieces.size(), [&](std::size_t at) {
    const plan::Program& program = pieces_->program();
    copy::gather_chunk(program, program.chunks[pieces[at].chunk], staging_.sources(),
                       wire.subspan(pieces[at].begin, pieces[at].bytes));
  });
}

}  // namespace tensorbus::fabric
