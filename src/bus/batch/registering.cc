#include "bus/batch/registering.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "bus/registration/senders.h"

namespace tensorbus::bus {

void Registering::begin(CommandId id, Deadline deadline) {
  command_ = Command{id, deadline};
  self_.context.at(Step::registering);
}

void Registering::check() {
  if (!command_) return;
  // The generation is over before it was complete: the next send says so.
  const bool over = self_.one_way(Direction::send) && self_.membership.stale();
  if (over || (self_.shelved() ? has_shelf() : meets_others())) end({});
}

bool Registering::meets_others() {
  waits_for_readers_ = false;
  if (!matching_.matched()) return false;
  if (matching_.can_recv().ok() && !has_joined()) return false;
  return !matching_.can_send().ok() || has_readers();
}

// Whether a version can be published, or the shelves of the senders be read.
bool Registering::has_shelf() {
  if (self_.one_way(Direction::send)) return exchange_.publishing().active();
  if (!matching_.matched()) return false;
  const Pulling& pulling = exchange_.pulling();
  if (!matching_.can_recv().ok() || pulling.started()) return true;
  self_.missing = "not all senders have taken this rank's subscription";
  if (!pulling.trouble().empty()) self_.missing += ": " + pulling.trouble();
  return false;
}

// Whether this rank reads from the senders' generation, or no generation comes that it could read
// from.
bool Registering::has_joined() {
  const Reader* reader = exchange_.receiving().reader();
  const Group& remote = *matching_.remote();
  const auto theirs = self_.context.catalog.generation(generations_.key_of(remote));
  // A generation that a sender has left goes on for the readers that are joining it.
  const bool joins = reader != nullptr && !reader->idle();
  const bool comes = theirs == nullptr || !theirs->ended || joins || is_fresh(remote, theirs.get());
  if (!comes || exchange_.receiving().started()) return true;
  self_.missing = "the senders' generation has not begun";
  if (reader != nullptr && theirs != nullptr) {
    self_.missing = "not all senders have taken this rank's subscription";
    if (!reader->trouble().empty()) self_.missing += ": " + reader->trouble();
  }
  return false;
}

// Whether all readers have subscribed to this rank, or no generation comes that they could read.
bool Registering::has_readers() {
  const Source* source = exchange_.sending().source();
  const Group& own = *matching_.own();
  const auto ours = self_.context.catalog.generation(generations_.key_of(own));
  const bool comes =
      ours == nullptr || !ours->ended || source != nullptr || is_fresh(own, ours.get());
  if (!comes || self_.membership.stale()) return true;
  if (source == nullptr) {
    self_.missing = "the generation has not begun";
    return false;
  }
  // One is enough to know: all of them are asked for with every message of every reader.
  waits_for_readers_ =
      std::ranges::any_of(matching_.readers(), [&](Rank reader) { return is_missing(reader); });
  return !waits_for_readers_;
}

bool Registering::is_missing(Rank reader) const {
  const Source* source = exchange_.sending().source();
  return source != nullptr && !source->has_started(reader) && generations_.may_join(reader);
}

std::optional<Status> Registering::lateness() {
  if (deadline() > self_.context.now) return std::nullopt;
  return Status{Code::timeout, fmt::format("batch \"{}\" is not registered everywhere: {}",
                                           self_.key.batch, missing())};
}

std::string Registering::missing() {
  matching_.explain();
  const std::vector<Rank> late = unsubscribed();
  if (late.empty()) return self_.missing + matching_.what_is_there_instead();
  return fmt::format("reader rank {} has not subscribed", fmt::join(late, ", "));
}

std::vector<Rank> Registering::unsubscribed() const {
  std::vector<Rank> late;
  if (waits_for_readers_) late = matching_.readers();
  std::erase_if(late, [&](Rank reader) { return !is_missing(reader); });
  return late;
}

Awaited Registering::awaited() { return {missing(), unsubscribed()}; }

CommandId Registering::take() { return std::exchange(command_, std::nullopt)->id; }

void Registering::end(const Status& status) { self_.answer(take(), status); }

}  // namespace tensorbus::bus
