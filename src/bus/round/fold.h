// A reduction that is checked: read from each member on its own, compared with what that member
// offered, and only then reduced into the targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fabric/core/lender.h"
#include "fabric/read/staging.h"
#include "tensor/view.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus {

// What one member of a reduction gives, as it is: packed as the reduction's stream, and meant for
// tensors of the member's own type that are just large enough.
plan::Stream member_stream(const plan::Stream& reduction, Rank member);

// The fold of a group: keeps what its members gave. The targets are borrowed, shapes too, and the
// copiers of those on a device. Works chunk by chunk.
class GroupFold {
 public:
  GroupFold(const plan::Stream& reduction, std::span<const TensorView> targets,
            std::shared_ptr<const fabric::Lender> lender, device::Copiers* copiers);

  // By position in the group: what is read from a member, and where to.
  const std::shared_ptr<const plan::Stream>& stream(std::size_t member) const {
    return members_[member].stream;
  }
  std::span<const TensorView> scratch(std::size_t member) const { return members_[member].tensors; }

  void begin() noexcept { next_chunk_ = 0; }
  // Reduces until all is reduced and stored, `budget` bytes are used up, or a device has to store
  // first; true: all is. Error as Lender's.
  bool work(std::int64_t& budget);
  // Sleeps until no device is at the targets.
  void settle() noexcept { targets_.settle(); }

 private:
  struct Member {
    std::shared_ptr<const plan::Stream> stream;
    std::unique_ptr<std::byte[]> memory;
    std::vector<TensorView> tensors;      // where the targets are
    std::vector<const std::byte*> first;  // of the tensors
  };

  const plan::Stream reduction_;  // from scratch
  const plan::Strides strides_;   // of scratch, which lies where the targets do
  const plan::Program program_;
  fabric::TargetSide targets_;
  std::vector<Member> members_;
  std::size_t next_chunk_ = 0;
};

}  // namespace tensorbus::bus
