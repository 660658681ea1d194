// Sees to it that the lists of tensors that this rank's records refer to are in the store. Ranks
// that refer to the same list share one record of it, which one rank writes and leases; when the
// record is gone, the lowest of the ranks that are left writes it again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "bus/directory/records.h"
#include "bus/round/context.h"

namespace tensorbus::bus {

class ListKeeper {
 public:
  explicit ListKeeper(Context& context) : context_(context) {}

  // A record of this rank that refers to a list.
  struct Use {
    const BatchKey& key;
    const BatchMember& member;
    std::optional<std::int64_t> shelf{};  // the generation, if it is a shelf's
  };

  // A part of a list has come, or is gone.
  void note_change(const ListKey& key, bool is_there);
  // Whatever was written is gone, or will be.
  void forget() {
    written_.clear();
    leased_.clear();
  }
  // Records have changed. `uses`: all of this rank that others see.
  void step(const std::vector<Use>& uses);

 private:
  // Whether this rank is the one to write the list of that record.
  bool is_due(const Use& use) const;
  void write(const SharedTensors& tensors);
  void withdraw_unused(const std::vector<Use>& uses);

  Context& context_;
  // The parts of lists that this agent wrote and that the store has not told of since.
  std::map<ListHash, std::set<std::uint32_t>> written_;
  std::map<ListHash, std::uint32_t> leased_;  // by this agent, with the number of parts
};

}  // namespace tensorbus::bus
