#include "bus/shelf/joint_pull.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace tensorbus::bus {
namespace {

constexpr Duration between_tries = std::chrono::milliseconds(200);
constexpr std::int64_t nothing_obeyed = -1;

}  // namespace

void JointPull::follow(const GroupPtr& side) {
  if (side == nullptr || side == side_) return;
  side_ = side;
  const auto& [rank, member] = *side_->members.begin();
  const Agreement::Member before = std::exchange(lowest_, {rank, member->registration});
  chair_.follow(*side_, leads() && has_others());
  if (before == lowest_) return;
  connection_ = nullptr;
  if (runs()) lose("it has registered anew");
}

void JointPull::begin() {
  do {
    serial_ = self_.context.random();
  } while (serial_ == 0);
  forget();
  waits_ = {};
  answered_ = false;
  over_.reset();
  if (!reaches_lowest()) retry_at_ = self_.context.now;
}

void JointPull::connect() {
  retry_at_ = TimePoint::max();
  said_.reset();
  const auto place = self_.context.catalog.member({side_->sides.begin()->first, lowest_.first});
  try {
    if (place == nullptr) throw Error(Code::unreachable, "its agent is not there");
    connection_ = self_.context.connections.open(place->address,
                                                 Deadline(self_.context.now + connect_patience));
    trouble_.clear();
  } catch (const Error& error) {
    trouble_ = error.what();
    connection_ = nullptr;
    retry_at_ = self_.context.now + between_tries;
  }
}

// A rank that has voted cannot know whether the others return what it has read.
void JointPull::lose(const std::string& why) {
  trouble_ = why;
  if (has_voted()) {
    over_ = Outcome{};
    over_->status = {
        Code::peer_lost,
        fmt::format("batch \"{}\": rank {} of side \"{}\" did not say whether all its "
                    "ranks have read version {}: {}; pull again",
                    self_.key.batch, lowest_.first, self_.key.side, read_.version, why)};
    over_->lost = {lowest_.first};
  }
  forget();
  retry_at_ = self_.context.now + between_tries;
}

// The lowest rank knows nothing of this pull.
void JointPull::forget() {
  said_.reset();
  order_ = {};
  obeyed_ = nothing_obeyed;
  voted_ = 0;
}

std::optional<Outcome> JointPull::step(Puller& puller, const Wanted& wanted) {
  if (!runs()) begin();
  if (!leads() && retry_at_ <= self_.context.now) connect();
  while (true) {
    if (auto outcome = advance(puller, wanted)) return outcome;
    chair_.step();
    const auto told = chair_.take_own();
    if (told.empty()) return std::nullopt;
    for (const AgentMessage& message : told) hear(message);
  }
}

std::optional<Outcome> JointPull::advance(Puller& puller, const Wanted& wanted) {
  if (auto failed = finish_reading(puller)) return failed;
  if (reading_ != 0) return std::nullopt;
  if (over_) return over_->status.ok() ? puller.step_agreed(*over_) : over_;
  if (order_.number != obeyed_) {
    obey(puller, wanted);
    if (auto failed = finish_reading(puller)) return failed;
  }
  if (has_voted() || reading_ != 0) return std::nullopt;
  if (const Supply there = puller.supply(wanted); there.gone || there.ended) {
    // The lowest rank learns of this pull first, so that its end is the end of the others.
    if (is_connecting()) return std::nullopt;
    propose(puller, wanted);
    Outcome outcome;
    outcome.absence = there.gone ? Absence::gone : Absence::ended;
    return outcome;
  }
  propose(puller, wanted);
  return std::nullopt;
}

// Returns only what no other choice could mend.
std::optional<Outcome> JointPull::finish_reading(Puller& puller) {
  if (reading_ == 0) return std::nullopt;
  const bool is_chosen = reading_ == order_.number && !over_;
  if (!is_chosen) puller.reading()->end({Code::cancelled, "another version was chosen"});
  auto outcome = puller.finish_read();
  if (!outcome) return std::nullopt;
  const std::int64_t number = std::exchange(reading_, 0);
  if (!is_chosen) return std::nullopt;
  const Code code = outcome->status.code;
  if (code != Code::ok && code != Code::withdrawn && code != Code::peer_lost) return outcome;
  if (code == Code::ok) {
    voted_ = number;
    read_ = *std::move(outcome);
    puller.rest();
    self_.context.at(Step::voted);
  }
  vote(number, code == Code::ok);
  return std::nullopt;
}

void JointPull::obey(Puller& puller, const Wanted& wanted) {
  obeyed_ = order_.number;
  voted_ = 0;
  if (order_.version != 0) {
    const bool there = puller.started() && puller.generation() == ordered_in_;
    if (there && puller.read_agreed(order_.version, order_.keep)) {
      reading_ = order_.number;
    } else {
      vote(order_.number, false);
    }
  } else if (order_.pin && !wanted.version) {
    puller.keep_newest();
  } else {
    puller.keep(order_.pin ? *wanted.version : order_.keep);
  }
}

void JointPull::vote(std::int64_t number, bool read) { say(ordered_in_, Vote{number, read}); }

void JointPull::propose(const Puller& puller, const Wanted& wanted) {
  if (!reaches_lowest() || !puller.has_pinned()) return;
  Propose now{lowest_.second, self_.key.rank, self_.record.registration, 0, obeyed_};
  now.version = wanted.version;
  now.above = wanted.above;
  now.versions = puller.offered(wanted);
  now.more = puller.is_pin_worth_it(wanted);
  now.pinned = puller.pinned();
  std::pair said(puller.started() ? puller.generation() : 0, now);
  if (said_ == said) return;
  now.count = ++count_;
  say(said.first, std::move(now));
  said_ = std::move(said);
}

void JointPull::say(std::int64_t generation, MessageBody body) {
  if (leads()) {
    chair_.take(nullptr, {0, generation, serial_, std::move(body)});
  } else if (connection_ != nullptr) {
    self_.context.connections.send(*connection_, generation, serial_, std::move(body));
  }
}

void JointPull::end(const Outcome& outcome) {
  if (!runs()) return;
  // A rank that heard of the end from the lowest rank need not tell the lowest rank.
  if (!over_) say(0, GiveUp{outcome.status, outcome.absence, outcome.version});
  serial_ = 0;
  reading_ = voted_ = 0;
}

void JointPull::close() { chair_.close(); }

bool JointPull::is_own(const PeerConnectionPtr& connection, const AgentMessage& message) const {
  return runs() && connection == connection_ && message.serial == serial_;
}

bool JointPull::is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const {
  return is_own(connection, message) || chair_.is_for(connection, message);
}

void JointPull::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  const bool ours = is_own(connection, message);
  std::visit(Overloaded{
                 [&](const OneOf<Propose, Vote> auto&) { chair_.take(connection, message); },
                 [&](const GiveUp&) { ours ? hear(message) : chair_.take(connection, message); },
                 [&](const OneOf<Choose, Decide, Waits> auto&) {
                   if (ours) hear(message);
                 },
                 // These messages are not for a joint pull.
                 [](const ToSource auto&) {},
                 [](const ToReader auto&) {},
                 [](const ToPuller auto&) {},
                 [](const AmongSenders auto&) {},
                 [](const OneOf<Subscribe, Leave, Hold, AskPatch, AskSums> auto&) {},
             },
             message.body);
}

void JointPull::hear(const AgentMessage& message) {
  if (message.serial != serial_ || over_) return;
  answered_ = true;
  std::visit(Overloaded{
                 [&](const Choose& choose) {
                   if (choose.number <= order_.number) return;
                   order_ = choose;
                   ordered_in_ = message.generation;
                 },
                 [&](const Decide& decide) {
                   if (has_voted() && decide.number == voted_) over_ = read_;
                 },
                 [&](const GiveUp& end) {
                   over_ = Outcome{};
                   over_->status = end.status;
                   over_->absence = end.absence;
                   over_->version = end.version;
                 },
                 [&](const Waits& waits) { waits_ = waits; },
                 // The lowest rank does not say these.
                 [](const OneOf<Propose, Vote> auto&) {},
                 [](const ToSource auto&) {},
                 [](const ToReader auto&) {},
                 [](const ToPuller auto&) {},
                 [](const AmongSenders auto&) {},
                 [](const OneOf<Subscribe, Leave, Hold, AskPatch, AskSums> auto&) {},
             },
             message.body);
}

void JointPull::on_lost(const PeerConnectionPtr& connection, const Status& why) {
  chair_.on_lost(connection);
  if (connection_ == nullptr || connection != connection_) return;
  connection_ = nullptr;
  if (runs() && !over_) lose("it is gone: " + why.message);
}

TimePoint JointPull::wake_at() const noexcept {
  return std::min(chair_.wake_at(), runs() && !leads() ? retry_at_ : TimePoint::max());
}

std::string JointPull::waits_for() const {
  const std::string side = fmt::format("of side \"{}\"", self_.key.side);
  if (!reaches_lowest()) {
    return fmt::format("rank {} {}, through which its ranks agree on a version: {}", lowest_.first,
                       side, trouble_.empty() ? "it does not answer" : trouble_);
  }
  const Waits waits = leads() ? chair_.waits() : waits_;
  if (!waits.pulls.empty()) {
    return fmt::format("the other ranks: rank {} {} has not pulled", fmt::join(waits.pulls, ", "),
                       side);
  }
  if (has_voted() && !waits.reads.empty()) {
    return fmt::format("the other ranks: rank {} {} has not read version {}",
                       fmt::join(waits.reads, ", "), side, read_.version);
  }
  if (!leads() && !answered_) {
    return fmt::format("rank {} {}, through which its ranks agree on a version", lowest_.first,
                       side);
  }
  return "";
}

std::vector<Rank> JointPull::awaited() const {
  if (!reaches_lowest()) return {lowest_.first};
  const Waits waits = leads() ? chair_.waits() : waits_;
  if (!waits.pulls.empty()) return waits.pulls;
  if (has_voted()) return waits.reads;
  return !leads() && !answered_ ? std::vector{lowest_.first} : std::vector<Rank>{};
}

}  // namespace tensorbus::bus
