// The registrations of a batch as one rank's registration sees them: the group of senders that it
// belongs to, the group that it faces, and whether their tensors fit.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "bus/registration/own_registration.h"
#include "bus/registration/reader_groups.h"

namespace tensorbus::bus {

class Matching {
 public:
  // `disputed`: registrations of other ranks that an earlier registration of this one did not fit.
  Matching(OwnRegistration& self, KnownFailures disputed);

  // Reads the records again. The last complete groups are kept: what runs goes on when a rank is
  // gone. Throws Error when this registration can never be complete: FailedElsewhere if another
  // rank has said so.
  void look(bool registering);
  // The ranks that are missing are found out when somebody asks: into the registration's `missing`.
  void explain();
  // If the other side does not know the batch: what that side has instead, for the end of a
  // message. One of the two names may be mistyped.
  std::string what_is_there_instead() const;
  // Why a sender takes no part any more, if its refusal was not told yet.
  Status sender_refuses();
  // This registration has failed: all registrations that it sees are those that it did not fit.
  void dispute_all();
  const KnownFailures& disputed() const noexcept { return disputed_; }

  // Of a shelf: the generation that its readers find, and where they find its senders.
  std::int64_t shelved_generation() const noexcept { return shelved_generation_; }
  const Catalog& shelves() const noexcept { return shelves_; }
  // The shelves are there now.
  bool finds_shelves() const noexcept { return finds_shelves_; }

  // The generation that has ended with this registration, while others have registered anew.
  const std::optional<Generation>& own_end() const noexcept { return own_end_; }
  const GroupPtr& own() const noexcept { return own_; }
  const GroupPtr& remote() const noexcept { return remote_; }
  // The tensors of both groups were compared.
  bool matched() const noexcept { return own_ && remote_ && !matched_.empty(); }
  // Ok until something is known.
  const Status& can_send() const noexcept { return can_send_; }
  const Status& can_recv() const noexcept { return can_recv_; }
  // Who reads from this rank, at the side that it named.
  const std::vector<Rank>& readers() const noexcept { return readers_; }

  // What this rank serves to a group of readers.
  Serving& serving(const GroupPtr& sources, const GroupPtr& targets) {
    return readers_groups_.serving(sources, targets);
  }
  // What a subscription gets, as ReaderGroups says.
  std::optional<ReaderGroups::Served> serve(const GroupPtr& sources, const Subscribe& wish) {
    return readers_groups_.serve(self_.context.catalog, sources, wish, known_, remote_);
  }

 private:
  void take_groups(const GroupFinding& own, const GroupFinding& remote);
  GroupFinding find_remote();
  GroupFinding find_shelves();
  std::string what_is_missing(const GroupFinding& own, const GroupFinding& remote) const;
  void check_shelf() const;
  void check_own_without_receivers() const;
  void note_own_end(const GroupFinding& own);
  void drop_if_mixed(GroupFinding& finding, Direction direction) const;
  void match(std::vector<std::pair<Rank, std::uint64_t>> now, bool registering);
  KnownFailures others() const;
  void pass_over_failed_receivers();
  bool waits_for_others_to_change() const;

  OwnRegistration& self_;
  ReaderGroups readers_groups_;
  KnownFailures known_;  // registrations that had failed before this one
  KnownFailures disputed_;
  std::optional<Generation> own_end_;
  GroupSearch own_search_;
  GroupSearch remote_search_;
  GroupPtr own_;
  GroupPtr remote_;
  bool unexplained_ = false;  // ranks are missing, and nobody has looked which
  std::string why_unfit_;     // the receivers that have failed; for messages
  std::int64_t shelved_generation_ = 0;
  Catalog shelves_;
  bool finds_shelves_ = false;
  std::optional<Catalog::ShelvesRevision> shelves_seen_;
  GroupFinding shelves_found_;
  Status can_send_;
  Status can_recv_;
  std::vector<Rank> readers_;
  std::vector<std::pair<Rank, std::uint64_t>> matched_;  // registrations that were compared
};

}  // namespace tensorbus::bus
