#include <fmt/format.h>

#include <algorithm>

#include "bus/batch/receiving.h"
#include "bus/registration/senders.h"

namespace tensorbus::bus {
namespace {

bool have_same_tensors(const Group& one, const Group& other) {
  return std::ranges::equal(one.members, other.members, [](const auto& a, const auto& b) {
    return a.first == b.first && a.second->tensors == b.second->tensors &&
           a.second->layouts == b.second->layouts;
  });
}

}  // namespace

// The reader goes on up to the last round that all senders send.
std::optional<Receiving::Loss> Receiving::follow(const Generation& theirs) {
  if (reader_ == nullptr) reader_ = std::make_shared<Reader>(self_.context, self_.loan);
  const bool next = reader_->generation() != theirs.number;
  ends_after_.reset();
  if (!theirs.ended && !next) return std::nullopt;
  if (!next && reader_->goes_on(theirs.after)) {
    ends_after_ = theirs.after;
    return std::nullopt;
  }
  if (reader_->idle() && reader_->started_in() == 0) return std::nullopt;
  const Rank who = theirs.ended ? theirs.left : theirs.senders.begin()->first;
  const Status lost{Code::peer_lost,
                    fmt::format("batch \"{}\": {}", self_.key.batch,
                                theirs.why.empty() ? "the senders began anew" : theirs.why)};
  if (!reader_->idle()) reader_->leave(lost, who);
  // The sources may have been lost before the store told so: recvs that wait for them fail too.
  // A sender that registers again is not lost: recvs wait for the next generation.
  const bool is_loss = reader_->started_in() != 0 && !theirs.back_soon;
  reader_->forget_start();
  return is_loss ? std::optional(Loss{lost, who}) : std::nullopt;
}

void Receiving::join(const Generation& theirs, const GroupPtr& own, const GroupPtr& remote,
                     bool wanted) {
  if ((theirs.ended && theirs.after == 0) || started() || !own) return;
  // Plans are made from no other registrations than the record names, also when some of those ranks
  // have registered again since.
  const GroupPtr& known = course_.senders();
  const GroupPtr senders = known != nullptr && is_of(*known, theirs) ? known : remote;
  if (!is_of(*senders, theirs)) return;
  // Where the senders have other tensors than before, this rank may be about to have others, too:
  // its next recv tells. A reader that has joined is owed the next round, and could not leave
  // before that round.
  if (!wanted && self_.versioned() && known != nullptr && !have_same_tensors(*known, *senders)) {
    return;
  }
  course_.set(senders, own);
  if (!reader_->idle() && reader_->fingerprint() != course_.fingerprint()) {
    // Made from older records than the senders have: the senders would not take it.
    reader_->leave({Code::withdrawn, "the plan has changed"}, std::nullopt);
  }
  if (reader_->idle() && !reader_->waits()) {
    reader_->join(course_.plan(theirs.number, self_.context.catalog));
  }
}

bool Receiving::is_past_end() const {
  return ends_after_ && !self_.membership.closing() && !reader_->goes_on(*ends_after_);
}

bool Receiving::tries_again() {
  if (reader_ == nullptr || self_.membership.closing() || !reader_->idle()) return false;
  if (reader_->retry_at() > self_.context.now) return false;
  reader_->retry();
  return true;
}

}  // namespace tensorbus::bus
