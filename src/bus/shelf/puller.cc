#include "bus/shelf/puller.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tensorbus::bus {

const Puller::SlotEnd* Puller::SourceEnd::find(std::int64_t version) const {
  const auto found = std::ranges::find(slots, version, &SlotEnd::version);
  return found == slots.end() ? nullptr : &*found;
}

void Puller::SourceEnd::put(const Published& published) {
  if (published.slot >= slots.size()) return;
  SlotEnd& slot = slots[published.slot];
  view.versions.erase(slot.version);
  slot.version = published.version;
  slot.ticket = published.ticket;
  if (published.version == 0) return;
  view.versions.insert(published.version);
  view.newest = std::max(view.newest, published.version);
}

void Puller::SourceEnd::forget(std::int64_t version) {
  view.versions.erase(version);
  for (SlotEnd& slot : slots) {
    if (slot.version == version) slot.version = 0;
  }
}

void Puller::replace(std::shared_ptr<Loan> loan, std::vector<TensorView> targets) {
  loan_ = std::move(loan);
  plan_.targets = std::move(targets);
  fetched_.reset();
  held_->streams.reset();
  forget_content();
}

void Puller::join(JoinPlan plan) {
  if (plan.generation != plan_.generation) {
    heard_.finished_after.reset();
    heard_.common = 0;
  }
  plan_ = std::move(plan);
  serial_ = draw_serial(context_);
  streams_.clear();
  for (const plan::Stream& stream : plan_.streams) {
    streams_.push_back(std::make_shared<const plan::Stream>(stream));
  }
  sources_.clear();
  held_->streams.reset();
  phase_ = Phase::subscribing;
  context_.at(Step::subscribing);
  if (streams_.size() > most_streams) {
    return fail_joining(fmt::format("a rank reads from more than {} groups", most_streams));
  }
  const Deadline deadline(context_.now + connect_patience);
  for (const auto& [rank, address] : plan_.sources) {
    SourceEnd& source = sources_[rank];
    try {
      source.connection = context_.connections.open(address, deadline);
    } catch (const Error& error) {
      return fail_joining(fmt::format("rank {}: {}", rank, error.what()));
    }
    if (source.connection->up()) ask(rank, source);
  }
}

void Puller::ask(Rank rank, SourceEnd& source) {
  source.asked = true;
  context_.connections.send(*source.connection, plan_.generation, serial_,
                            plan_.wish(context_.rank, rank));
}

void Puller::fail_joining(const std::string& why) {
  for (auto& [rank, source] : sources_) {
    if (source.connection && source.asked) {
      context_.connections.send(*source.connection, plan_.generation, serial_, Leave{});
    }
  }
  sources_.clear();
  phase_ = Phase::idle;
  unpinned_.clear();
  pinned_ = 0;
  must_pin_ = holding_ = false;
  trouble_.fail(why, context_.now);
}

void Puller::leave(const Status& why) {
  if (read_ != nullptr) read_->lose_sources({Code::peer_lost, why.message});
  if (!idle()) fail_joining(why.message);
}

void Puller::on_up(const PeerConnectionPtr& connection) {
  if (phase_ != Phase::subscribing) return;
  for (auto& [rank, source] : sources_) {
    if (source.connection == connection && !source.asked) ask(rank, source);
  }
}

void Puller::on_lost(const PeerConnectionPtr& connection, const Status& why) {
  for (const auto& [rank, source] : sources_) {
    if (source.connection != connection) continue;
    return leave({Code::peer_lost, fmt::format("sender rank {} is gone: {}", rank, why.message)});
  }
}

bool Puller::is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const {
  return knows(message.serial) && std::ranges::any_of(sources_, [&](const auto& each) {
           return each.second.connection == connection;
         });
}

void Puller::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  if (message.generation != plan_.generation) return;
  const auto found = std::ranges::find_if(
      sources_, [&](const auto& entry) { return entry.second.connection == connection; });
  if (found == sources_.end()) return;
  const Rank rank = found->first;
  SourceEnd& source = found->second;
  std::visit(Overloaded{
                 [&](const Shelved& answer) { on_shelved(rank, source, answer); },
                 [&](const Published& published) {
                   source.put(published);
                   heard_.common = std::max(heard_.common, published.common);
                 },
                 [&](const Finished& finished) {
                   source.view.finished = true;
                   heard_.finished_after =
                       std::max(heard_.finished_after.value_or(0), finished.version);
                 },
                 [&](const Held& held) { on_held(rank, held); },
                 [&](const Patched& answer) {
                   if (read_ != nullptr) read_->on_patched(rank, answer);
                 },
                 [&](const VersionSums& sums) {
                   if (read_ != nullptr) read_->on_sums(rank, sums);
                 },
                 [&](const Over& over) {
                   leave({Code::peer_lost,
                          fmt::format("sender rank {} has ended its shelf: {}", rank, over.why)});
                 },
                 // These messages are not for a puller.
                 [](const ToSource auto&) {},
                 [](const ToReader auto&) {},
                 [](const AmongSenders auto&) {},
                 [](const AmongPullers auto&) {},
                 [](const OneOf<Subscribe, Leave, Hold, AskPatch, AskSums> auto&) {},
             },
             message.body);
}

void Puller::on_shelved(Rank rank, SourceEnd& source, const Shelved& answer) {
  if (phase_ != Phase::subscribing || std::exchange(source.answered, true)) return;
  if (!answer.status.ok()) {
    return fail_joining(fmt::format("rank {}: {}", rank, answer.status.message));
  }
  heard_.common = std::max(heard_.common, answer.common);
  source.slots.resize(answer.slots.size());
  for (std::size_t slot = 0; slot < answer.slots.size(); ++slot) {
    const ShelfSlot& told = answer.slots[slot];
    source.put({slot, told.version, told.ticket, answer.common});
  }
  for (std::size_t slot = 0; slot < answer.slots.size() && !idle(); ++slot) {
    attach(rank, source, slot, answer.slots[slot].region);
  }
}

void Puller::attach(Rank rank, SourceEnd& source, std::size_t slot, std::uint64_t region) {
  const auto id = context_.operations.add(
      [weak = weak_from_this(), serial = serial_, rank, slot](const fabric::Completion& done) {
        const auto self = weak.lock();
        if (self != nullptr && self->knows(serial)) self->on_attached(rank, slot, done);
      });
  try {
    context_.fabric.attach(*source.connection->peer(), region, id, Deadline::never());
  } catch (const Error& error) {
    context_.operations.forget(id);
    fail_joining(fmt::format("rank {}: {}", rank, error.what()));
  }
}

void Puller::on_attached(Rank rank, std::size_t slot, const fabric::Completion& done) {
  if (phase_ != Phase::subscribing) return;
  if (!done.status.ok()) {
    return fail_joining(fmt::format("rank {}: {}", rank, done.status.message));
  }
  sources_.at(rank).slots[slot].region = done.region;
  start_when_attached();
}

void Puller::start_when_attached() {
  for (const auto& [rank, source] : sources_) {
    const auto absent = [](const SlotEnd& slot) { return slot.region == nullptr; };
    if (!source.answered || std::ranges::any_of(source.slots, absent)) return;
  }
  phase_ = Phase::started;
  heard_.taken_back = false;
  context_.at(Step::joined);
  trouble_.end();
  heard_.finished_after.reset();
  for (const auto& [rank, source] : sources_) {
    if (source.view.finished) heard_.finished_after = source.view.newest;
  }
  log::debug("bus: rank {} pulls batch \"{}\", generation {}", context_.rank, plan_.batch,
             plan_.generation);
}

Supply Puller::supply(const Wanted& wanted) const {
  std::vector<ShelfView> views;
  for (const auto& [rank, source] : sources_) views.push_back(source.view);
  return started() ? supply_of(views, wanted) : Supply{};
}

std::vector<Rank> Puller::late(const Wanted& wanted) const {
  std::vector<Rank> ranks;
  for (const auto& [rank, source] : sources_) {
    if (std::ranges::none_of(source.view.versions,
                             [&](std::int64_t version) { return wanted.covers(version); })) {
      ranks.push_back(rank);
    }
  }
  return ranks.size() == sources_.size() ? std::vector<Rank>{} : ranks;
}

std::optional<Outcome> Puller::step(const Wanted& wanted) {
  resume_alone();
  if (read_ != nullptr) {
    auto read = finish_read();
    if (!read || resume_alone()) return std::nullopt;
    if (auto outcome = judge(*std::move(read), wanted)) return outcome;
  }
  if (!started() || (must_pin_ && !unpinned_.empty())) return std::nullopt;
  const Supply there = supply(wanted);
  if (there.gone || there.ended) {
    Outcome outcome;
    outcome.absence = there.gone ? Absence::gone : Absence::ended;
    return outcome;
  }
  if (there.version != 0) {
    // What is pinned everywhere cannot be missed once more.
    read(wanted.covers(pinned_) && all_have(pinned_) ? pinned_ : there.version);
  } else if (is_pin_worth_it(wanted)) {
    wanted.version ? pin({pinned_ = *wanted.version}) : pin_newest();
  }
  return std::nullopt;
}

bool Puller::resume_alone() {
  if (read_ != nullptr || fetched_ == nullptr || fetched_->is_fetch()) return false;
  read_ = std::exchange(fetched_, nullptr);
  read_->resume(manner_.verify);
  return true;
}

std::optional<Outcome> Puller::step_apply(std::int64_t version) {
  if (read_ == nullptr && fetched_ != nullptr && fetched_->version() == version) {
    read_ = std::exchange(fetched_, nullptr);
    read_->resume(manner_.verify);
  }
  return step({version, 0});
}

std::optional<Outcome> Puller::step_agreed(const Outcome& agreed) {
  if (!resume_alone() && read_ == nullptr) return agreed;
  return finish_read();
}

// A version that was taken back is gone at one source at least: nobody can pull it any more.
std::optional<Outcome> Puller::finish_read() {
  read_->step();
  if (!read_->done()) return std::nullopt;
  Outcome outcome = read_->outcome();
  const std::int64_t version = read_->version();
  outcome.round = read_->generation();
  if (read_->waits()) fetched_ = read_;
  read_.reset();
  if (outcome.status.code != Code::withdrawn || outcome.round != plan_.generation) return outcome;
  log::debug("bus: rank {}: version {} of batch \"{}\" was recycled while it was read",
             context_.rank, version, plan_.batch);
  for (auto& [rank, source] : sources_) source.forget(version);
  heard_.taken_back = true;
  return outcome;
}

// Nothing: the pull goes on.
std::optional<Outcome> Puller::judge(Outcome outcome, const Wanted& wanted) {
  if (outcome.status.code == Code::peer_lost) return std::nullopt;
  if (outcome.status.code != Code::withdrawn) return outcome;
  if (wanted.version) {
    outcome = {};
    outcome.absence = Absence::gone;
    return outcome;
  }
  context_.count(&observe::Recorder::pull_retries);
  if (started()) pin_newest();
  must_pin_ = true;
  return std::nullopt;
}

void Puller::read(std::int64_t version) {
  std::set<std::int64_t> kept{version};
  if (pinned_ > version) kept.insert(pinned_);
  pin(std::move(kept));
  fetched_.reset();
  VersionRead::Origin origin{plan_.generation, serial_, version, streams_, plan_.targets, loan_};
  origin.promises = plan_.promises;
  origin.manner = manner_;
  origin.labels = plan_.labels;
  origin.is_far = is_far();
  origin.dense = [weak = weak_from_this(), serial = serial_,
                  version](const auto& scratch) -> std::shared_ptr<Recv> {
    const auto self = weak.lock();
    return self == nullptr || !self->knows(serial) ? nullptr : self->read_all(version, scratch);
  };
  for (const auto& [rank, source] : sources_) origin.sources[rank].connection = source.connection;
  for (std::size_t at = 0; at < streams_.size(); ++at) {
    for (const Rank rank : streams_[at]->source.ranks) {
      origin.sources.at(rank).streams.push_back(at);
    }
  }
  read_ = std::make_shared<VersionRead>(context_, std::move(origin), held_);
  read_->start();
}

bool Puller::is_far() const {
  return std::ranges::any_of(sources_, [](const auto& each) {
    const auto& slots = each.second.slots;
    return !slots.empty() && slots.front().region->path() == "network";
  });
}

std::shared_ptr<Recv> Puller::read_all(std::int64_t version,
                                       const std::shared_ptr<Scratch>& scratch) const {
  for (const auto& stream : streams_) {
    for (const Rank rank : stream->source.ranks) {
      if (sources_.at(rank).find(version) == nullptr) return nullptr;
    }
  }
  const std::shared_ptr<Loan> loan = scratch == nullptr ? loan_ : scratch;
  const auto& targets = scratch == nullptr ? plan_.targets : scratch->tensors();
  const auto recv = std::make_shared<Recv>(context_, plan_.generation, serial_, version, version,
                                           std::vector<RecvCommit>(), loan);
  std::vector<RecvPart> parts;
  for (std::size_t at = 0; at < streams_.size(); ++at) {
    RecvPart part{streams_[at], stream_number(serial_, static_cast<std::int64_t>(at)), {}, targets};
    for (const Rank rank : streams_[at]->source.ranks) {
      const SourceEnd& source = sources_.at(rank);
      const SlotEnd& slot = *source.find(version);
      part.sources.push_back({source.connection->peer(), slot.region, slot.ticket});
    }
    parts.push_back(std::move(part));
  }
  recv->start(std::move(parts), {}, nullptr);
  return recv;
}

bool Puller::all_have(std::int64_t version) const {
  return std::ranges::all_of(
      sources_, [&](const auto& each) { return each.second.view.versions.contains(version); });
}

bool Puller::is_pin_worth_it(const Wanted& wanted) const {
  if (!started() || !unpinned_.empty()) return false;
  if (wanted.version) return pinned_ != *wanted.version;
  const auto lacks_pinned = [&](const auto& each) {
    return each.second.view.lacks_for_good(pinned_);
  };
  if (pinned_ != 0 && std::ranges::none_of(sources_, lacks_pinned)) return false;
  return std::ranges::any_of(
      sources_, [&](const auto& each) { return wanted.covers(each.second.view.newest); });
}

void Puller::pin_newest() {
  context_.at(Step::pinning);
  pinned_ = largest_held_ = 0;
  for (const auto& [rank, source] : sources_) unpinned_.insert(rank);
  holding_ = true;
  tell_all(Hold{{}, true});
}

void Puller::on_held(Rank rank, const Held& held) {
  heard_.common = std::max(heard_.common, held.common);
  if (unpinned_.erase(rank) == 0) return;
  largest_held_ = std::max(largest_held_, held.version);
  if (!unpinned_.empty()) return;
  must_pin_ = heard_.taken_back = false;
  if (read_ != nullptr) return;
  pinned_ = largest_held_;
  if (pinned_ != 0 && narrows_) pin({pinned_});
}

std::vector<std::int64_t> Puller::offered(const Wanted& wanted) const {
  std::vector<std::int64_t> versions;
  if (!started() || sources_.empty()) return versions;
  for (const std::int64_t version : sources_.begin()->second.view.versions) {
    if (wanted.covers(version) && all_have(version)) versions.push_back(version);
  }
  return versions;
}

void Puller::keep_newest() {
  narrows_ = false;
  if (started()) pin_newest();
}

void Puller::keep(std::int64_t version) {
  pinned_ = version;
  must_pin_ = false;
  if (version != 0) return pin({version});
  unpinned_.clear();
  if (holding_) pin({});
}

bool Puller::read_agreed(std::int64_t version, std::int64_t kept) {
  if (!started() || sources_.empty() || !all_have(version)) return false;
  pinned_ = kept;
  read(version);
  return true;
}

void Puller::pin(std::set<std::int64_t> versions) {
  unpinned_.clear();
  holding_ = !versions.empty();
  tell_all(Hold{{versions.begin(), versions.end()}, false});
}

void Puller::rest() {
  if (read_ != nullptr) read_->end({Code::cancelled, "the pull is over"});
  read_.reset();
  pinned_ = 0;
  must_pin_ = false;
  narrows_ = true;
  unpinned_.clear();
  if (holding_ && !keeps_on()) pin({});
}

bool Puller::keeps_on() const noexcept {
  if (fetched_ == nullptr) return false;
  return fetched_->needs_sources() || (!fetched_->is_fetch() && manner_.verify != Verify::off);
}

void Puller::tell_all(const MessageBody& body) {
  for (const auto& [rank, source] : sources_) {
    context_.connections.send(*source.connection, plan_.generation, serial_, body);
  }
}

}  // namespace tensorbus::bus
