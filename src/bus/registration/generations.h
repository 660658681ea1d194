// The store's records of generations, as one registration reads and writes them. All ranks write by
// compare-and-set: the quickest rank counts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "bus/registration/own_registration.h"
#include "bus/registration/roll_call.h"

namespace tensorbus::bus {

class Generations {
 public:
  explicit Generations(OwnRegistration& self) : self_(self) {}

  GenerationKey key_of(const Group& senders) const { return {self_.key.batch, senders.name}; }
  // What the record says to this rank, which is one of the senders.
  RecordSight sight_of(const GroupPtr& senders);
  // A sender of this generation that is registered otherwise now, or not at all.
  std::optional<Rank> who_left(const GenerationKey& key,
                               const std::shared_ptr<const Generation>& generation) {
    return roll_calls_[key].who_left(self_.context.catalog, self_.key.batch, generation);
  }
  // Writes the generation that follows the last one.
  void propose_next(const Group& senders);
  // Returns what the record will be, unless another rank is quicker.
  Generation propose_end(const GenerationKey& key, Generation generation, Rank left,
                         const std::string& why, std::int64_t after = 0, bool back_soon = false);

  // The generation of these senders has ended; `readers` are registered then.
  void note_end(GroupPtr senders, GroupPtr readers);
  // A reader that registers after the end of a generation waits for the next one. So does a reader
  // that has not joined it when one of its senders has left.
  bool may_join(Rank reader) const;

  // This rank has closed: the others go on up to the last round that its sends were answered for.
  // Back soon: the worker registers the batch again.
  void begin_leaving(bool back_soon);
  // Tells the other ranks; true once they know. `version` is that of the last round.
  bool tell_leaving(const Group& senders, std::int64_t version);
  // For the store to take the news. Without the news the others take this rank for lost.
  TimePoint leaves_by() const noexcept { return leaves_by_; }

 private:
  Generation make_next(const Group& senders, const Generation* last) const;
  bool is_there(const Group& group, Rank rank) const;

  OwnRegistration& self_;
  std::map<GenerationKey, RollCall> roll_calls_;
  std::optional<std::string> proposed_over_;  // the record that the last proposal was to replace
  GroupPtr senders_then_;
  GroupPtr readers_then_;
  TimePoint leaves_by_{};
  bool back_soon_ = false;
};

}  // namespace tensorbus::bus
