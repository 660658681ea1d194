#include "bus/shelf/publishing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tensorbus::bus {

void Publishing::begin(const Generation& generation, const GroupPtr& group) {
  const auto place = self_.context.catalog.member({self_.record.ends.front(), self_.key.rank});
  ShelfRecord record{generation.number, place == nullptr ? PairMember() : *place, self_.record};
  group_ = group;
  shelf_ = shelves_.open({self_.key, group, std::move(record), self_.loan});
  first_ = 1;
  last_ = generation.version;
}

void Publishing::publish(CommandId id, const Publish& publish, Deadline deadline) {
  const auto refuse = [&](std::string why) {
    self_.answer(id,
                 {Code::invalid_argument, fmt::format("batch \"{}\": {}", self_.key.batch, why)});
  };
  if (waiting_ || early_) return refuse("another version is being published");
  if (!active()) {
    early_ = Early{id, publish, deadline};
    return;
  }
  if (publish.version && *publish.version < first_) {
    return refuse(fmt::format("version {} was asked for, and the last one is {}", *publish.version,
                              first_ - 1));
  }
  // The worker that asks for another slot has given the last one up.
  if (std::exchange(filling_, 0) != 0) shelf_->give_up();
  last_ = publish.version.value_or(last_ + 1);
  first_ = last_ + 1;
  shelves_.note_begun(self_.key, last_);
  self_.next_round();
  waiting_ = Waiting{id, publish, last_, deadline};
  waiting_->patient_until = self_.context.now + std::chrono::milliseconds(publish.patience);
  step();
}

void Publishing::take_early() {
  if (!early_) return;
  if (self_.membership.stale()) return end_early(self_.ended);
  if (active()) {
    const Early early = *std::exchange(early_, std::nullopt);
    return publish(early.id, early.command, early.deadline);
  }
  if (early_->deadline.at() > self_.context.now) return;
  end_early({Code::timeout, fmt::format("batch \"{}\" is not registered everywhere again: {}",
                                        self_.key.batch, self_.missing)});
}

void Publishing::step() {
  take_early();
  const TimePoint now = self_.context.now;
  if (!waiting_ || !active()) return;
  const bool patient = now < waiting_->patient_until;
  const bool withdraw = waiting_->command.withdraw && !patient;
  auto slot = shelf_->take(waiting_->version, false);
  if (!slot && withdraw) {
    warn();
    slot = shelf_->take(waiting_->version, true);
  }
  if (slot) {
    Outcome outcome;
    outcome.version = filling_ = waiting_->version;
    outcome.slot = static_cast<std::int64_t>(*slot);
    shelf_->set_deltas(waiting_->command.deltas, waiting_->command.delta_memory);
    if (const auto previous = shelf_->compares_with()) {
      outcome.previous = static_cast<std::int64_t>(*previous);
    }
    compares_ = outcome.previous.has_value();
    return self_.complete(std::exchange(waiting_, std::nullopt)->id, std::move(outcome));
  }
  if (waiting_->deadline.at() <= now) {
    return end({Code::timeout, fmt::format("version {} of batch \"{}\" was not published: {}",
                                           waiting_->version, self_.key.batch, obstacle())});
  }
  if (!patient) warn();
}

void Publishing::warn() {
  if (std::exchange(waiting_->warned, true)) return;
  log::warn("bus: rank {}: version {} of batch \"{}\" waits: {}", self_.key.rank, waiting_->version,
            self_.key.batch, obstacle());
}

std::string Publishing::obstacle() const {
  if (const auto holders = shelf_->slots().holders(); !holders.empty()) {
    return fmt::format("reader rank {} still reads what its shelf holds", fmt::join(holders, ", "));
  }
  if (const auto lagging = shelf_->lagging(); !lagging.empty()) {
    return fmt::format("rank {} has not published version {} yet; a rank is at most {} ahead",
                       fmt::join(lagging, ", "), shelf_->slots().newest(),
                       shelf_->slots().all().size() - 1);
  }
  return fmt::format("the other ranks have not said that they have published version {}",
                     shelf_->slots().newest());
}

Awaited Publishing::awaited() const {
  if (early_) return {"the other ranks, which have to register: " + self_.missing, {}};
  if (!waiting_) return {};
  const std::set<Rank> holders = shelf_->slots().holders();
  if (!holders.empty()) return {obstacle(), {holders.begin(), holders.end()}};
  return {obstacle(), shelf_->lagging()};
}

void Publishing::end(Status why, std::vector<Rank> lost) {
  Outcome outcome;
  outcome.status = std::move(why);
  outcome.version = waiting_->version;
  outcome.lost = std::move(lost);
  self_.complete(std::exchange(waiting_, std::nullopt)->id, std::move(outcome));
}

void Publishing::end_early(Status why) {
  self_.answer(std::exchange(early_, std::nullopt)->id, std::move(why));
}

void Publishing::shelve(CommandId id, const Shelve& shelve) {
  if (filling_ == 0 || shelve.version != filling_) {
    return self_.answer(id,
                        {Code::unreachable,
                         fmt::format("batch \"{}\": version {} was not published: the agent that "
                                     "had a slot for it was replaced",
                                     self_.key.batch, shelve.version)});
  }
  filling_ = 0;
  if (shelve.whole) {
    shelf_->complete(shelve.version, shelve.compared && compares_);
  } else {
    shelf_->give_up();
  }
  self_.answer(id);
}

bool Publishing::cancel(CommandId id, const Status& why) {
  if (early_ && early_->id == id) {
    end_early(why);
    return true;
  }
  if (!waiting_ || waiting_->id != id) return false;
  end(why);
  return true;
}

void Publishing::fail(const Status& why, Rank lost, std::int64_t after) {
  if (!waiting_ || self_.membership.last_round <= after) return;
  end(why, why.code == Code::peer_lost ? std::vector<Rank>{lost} : std::vector<Rank>{});
}

void Publishing::close(const Status& why, Parting parting) {
  if (early_) end_early(why);
  if (waiting_) end(why);
  filling_ = 0;
  if (!active()) return;
  shelf_->release();
  if (parting == Parting::finished) shelf_->finish();
  shelf_.reset();
}

TimePoint Publishing::wake_at() const {
  if (early_) return early_->deadline.at();
  if (!waiting_) return TimePoint::max();
  const TimePoint deadline = waiting_->deadline.at();
  const bool patient = self_.context.now < waiting_->patient_until;
  return patient ? std::min(deadline, waiting_->patient_until) : deadline;
}

}  // namespace tensorbus::bus
