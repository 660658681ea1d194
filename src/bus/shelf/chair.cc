#include "bus/shelf/chair.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace tensorbus::bus {
namespace {

// Ranks that wait long are told which ranks they wait for: most pulls are over before.
constexpr Duration before_telling = std::chrono::milliseconds(50);

}  // namespace

void Chair::follow(const Group& side, bool leads) {
  std::set<Agreement::Member> members;
  if (leads) {
    for (const auto& [rank, member] : side.members) members.insert({rank, member->registration});
  }
  std::erase_if(seats_, [&](const auto& each) {
    return agreement_.has(each.first) && !members.contains(each.first);
  });
  std::erase_if(counts_, [&](const auto& each) {
    return !members.contains(each.first) && !seats_.contains(each.first);
  });
  agreement_.set_members(std::move(members));
}

bool Chair::is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const {
  const auto* proposal = std::get_if<Propose>(&message.body);
  if (proposal != nullptr) return proposal->to == self_.record.registration;
  return seat_of(connection, message.serial) != seats_.end();
}

void Chair::take(const PeerConnectionPtr& connection, const AgentMessage& message) {
  const auto seat = seat_of(connection, message.serial);
  std::visit(Overloaded{
                 [&](const Propose& said) { take_proposal(connection, message, said); },
                 [&](const Vote& vote) {
                   if (seat != seats_.end()) agreement_.vote(seat->first, vote);
                 },
                 [&](const GiveUp& end) {
                   if (seat == seats_.end()) return;
                   const Agreement::Member member = seat->first;
                   take_end(member, end);
                 },
                 // The chair itself says these.
                 [](const OneOf<Choose, Decide, Waits> auto&) {},
                 // These messages are not for a chair.
                 [](const ToSource auto&) {},
                 [](const ToReader auto&) {},
                 [](const ToPuller auto&) {},
                 [](const AmongSenders auto&) {},
                 [](const OneOf<Subscribe, Leave, Hold, AskPatch, AskSums> auto&) {},
             },
             message.body);
}

void Chair::take_proposal(const PeerConnectionPtr& connection, const AgentMessage& message,
                          const Propose& proposal) {
  if (proposal.to != self_.record.registration) return;
  const Agreement::Member member(proposal.rank, proposal.registration);
  std::int64_t& last = counts_[member];
  if (proposal.count <= last) return;
  last = proposal.count;
  const auto known = seat_of(connection, message.serial);
  const bool anew = known == seats_.end() || known->first != member;
  seats_[member] = {connection, message.serial};
  if (anew) told_ = {};
  agreement_.propose(member, message.generation, proposal, anew);
}

// No rank gets, together with the others, what one rank will never get. A registration that does
// not take part, as it is over or not seen here yet, ends nobody's pull.
void Chair::take_end(const Agreement::Member& member, const GiveUp& end) {
  leave(member);
  if (end.absence == Absence::none || !agreement_.has(member)) return;
  GiveUp told = end;
  told.status.message =
      fmt::format("rank {} of side \"{}\": {}", member.first, self_.key.side, end.status.message);
  tell_all(0, told);
  agreement_.end();
  clear_seats();
}

// Every pull that took part is over.
void Chair::clear_seats() {
  std::erase_if(seats_, [&](const auto& each) { return agreement_.has(each.first); });
}

Chair::Seats::const_iterator Chair::seat_of(const PeerConnectionPtr& connection,
                                            std::uint64_t serial) const {
  return std::ranges::find_if(seats_, [&](const auto& each) {
    return each.second.connection == connection && each.second.serial == serial;
  });
}

void Chair::leave(const Agreement::Member& member) {
  agreement_.remove(member);
  seats_.erase(member);
}

void Chair::on_lost(const PeerConnectionPtr& connection) {
  for (auto each = seats_.begin(); each != seats_.end();) {
    const auto [member, seat] = *each++;
    if (seat.connection == connection) leave(member);
  }
}

void Chair::step() {
  while (const auto told = agreement_.next()) {
    tell_all(told->generation, told->body);
    const bool over =
        std::holds_alternative<Decide>(told->body) || std::holds_alternative<GiveUp>(told->body);
    if (over) clear_seats();
    if (over) self_.context.at(Step::decided);
  }
  tell_waits();
}

void Chair::tell_waits() {
  const Waits now = agreement_.waits();
  if (seats_.empty() || now == told_) {
    tell_at_ = TimePoint::max();
    return;
  }
  if (tell_at_ == TimePoint::max()) tell_at_ = self_.context.now + before_telling;
  if (self_.context.now < tell_at_) return;
  tell_at_ = TimePoint::max();
  told_ = now;
  tell_all(0, now);
}

void Chair::tell_all(std::int64_t generation, const MessageBody& body) {
  for (const auto& [member, seat] : seats_) {
    if (!agreement_.has(member)) continue;
    if (seat.connection == nullptr) {
      own_.push_back({0, generation, seat.serial, body});
    } else {
      self_.context.connections.send(*seat.connection, generation, seat.serial, body);
    }
  }
}

void Chair::close() {
  if (const auto told = agreement_.stop()) tell_all(told->generation, told->body);
  tell_all(0, Waits{{self_.key.rank}, {}});
  agreement_.set_members({});
  seats_.clear();
}

}  // namespace tensorbus::bus
