// A read that is being carried out, apart from how its bytes arrive.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "copy/execute.h"
#include "fabric/fabric.h"
#include "fabric/staging.h"

namespace tensorbus::fabric {

// Error(invalid_argument) unless sources, stream and targets fit each other.
void check(const Read& read);

class Reading {
 public:
  // Checks it.
  explicit Reading(Read read);

  const Read& read() const noexcept { return read_; }
  std::size_t chunk_count() const noexcept { return target_program_.chunks.size(); }
  const plan::Chunk& chunk(std::size_t index) const { return target_program_.chunks[index]; }

  // Straight from memory that this process sees: one pass. A member is the first elements of its
  // tensors, by position in the batch.
  void copy(std::size_t chunk, std::span<const copy::Sources> members);
  // From what every member packed, in the order of the sources.
  void scatter(std::size_t chunk, std::span<const std::span<const std::byte>> wires);

  // Both sides bound; nothing if members whose values are reduced have different strides.
  const plan::Program* direct_program() const noexcept {
    return direct_program_ ? &*direct_program_ : nullptr;
  }
  // Where that program writes. What is written there by others than copy() is to be stored.
  copy::Targets direct_targets() const noexcept { return direct_staging_->tensors(); }
  void store_direct(std::size_t chunk) { direct_staging_->store(chunk); }

 private:
  void copy_packed(std::size_t chunk, std::span<const copy::Sources> members);

  Read read_;
  plan::Program target_program_;
  std::optional<Staging> target_staging_;
  std::optional<plan::Program> direct_program_;
  std::optional<Staging> direct_staging_;
  // For members with different strides; made when first needed.
  std::vector<plan::Program> source_programs_;
  std::vector<std::vector<std::byte>> wires_;
  copy::Caches caches_;
};

}  // namespace tensorbus::fabric
