// The sending end of a registration while its generation lasts: its source with the memory that
// readers read, and the send that runs. sending.cc has the rounds, subscribing.cc those who read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bus/batch/exposure.h"
#include "bus/batch/queued.h"
#include "bus/registration/matching.h"
#include "bus/registration/own_registration.h"
#include "bus/round/herald.h"
#include "bus/round/reader.h"
#include "bus/round/source.h"

namespace tensorbus::bus {

class Sending {
 public:
  explicit Sending(OwnRegistration& self) : self_(self), exposure_(self) {}

  // `group`: the senders as the generation's record has them. The region is laid out by them.
  void begin(const Generation& generation, const GroupPtr& group);
  bool active() const noexcept { return source_ != nullptr; }
  const GroupPtr& group() const noexcept { return group_; }
  Source* source() const noexcept { return source_.get(); }
  // After the source has ended.
  void drop_source();
  void drop_region() { exposure_.end(); }

  // Of the items, those that the worker copies for every send; the others are read where they are.
  void set_staged(std::vector<bool> items) { exposure_.set_staged(std::move(items)); }
  // Whether those who read from this rank can read from this memory.
  bool suits(const Loan& loan) const { return !active() || exposure_.suits(loan, *source_); }
  // The registration lends this memory from now on, and its worker stages these items. Only while
  // nothing is sent.
  void replace_memory(std::shared_ptr<Loan> loan, std::vector<bool> staged);
  // In which types the worker should stage the next send, if it is to have so many readers; empty:
  // in their own.
  std::vector<Dtype> stage_types(std::int64_t min_readers);

  // Gives a send its version.
  void number(Queued& send);
  // Of a send that names none.
  std::int64_t version_of(std::int64_t round) const noexcept {
    return named_version_ + round - named_round_;
  }
  // Takes the head of the queue as far as it goes; its outcome once it is over. `reader`: the
  // receiving end of the same registration, or null.
  std::optional<Outcome> step(Queued& send, Reader* reader);
  // There are checksums to make before the round can begin: again soon.
  bool preparing() const noexcept { return preparing_; }
  std::string waits_for(const Queued& send) const;
  // The ranks that it names.
  std::vector<Rank> awaited(const Queued& send) const;
  // All rounds up to this one are over, also those that ended before they began.
  void tell_over(std::int64_t round);
  // Versions that other ranks are known to have read, or to have sent.
  std::map<Rank, std::int64_t> known_versions() const;
  // Asks the first sender for all that it knows. False: this is the first, or it is not connected.
  bool ask_versions();
  // Whether a subscriber or another sender says this.
  bool knows(const PeerConnectionPtr& connection, const AgentMessage& message) const noexcept;
  bool is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const;

  // subscribing.cc
  Taken subscribe(const PeerConnectionPtr& connection, const AgentMessage& message,
                  Matching& matching);
  Taken follow(const PeerConnectionPtr& connection, const AgentMessage& message,
               const Matching& matching);

  void step_herald();
  TimePoint wake_at() const;
  // False: the message is for somebody else.
  bool on_message(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_up(const PeerConnectionPtr& connection);
  void on_lost(const PeerConnectionPtr& connection);

 private:
  std::optional<Outcome> begin_round(Queued& send);
  void note_version(std::int64_t version);
  bool is_begun_by_first(const Queued& send) const;
  bool has_readers(const Queued& send);
  bool end_round(Queued& send, Reader* reader);
  void look_for_conflict(Queued& send, Reader* reader);
  Status both_send(const Queued& send, Rank with) const;
  bool waits_for_first(const Queued& send) const;
  Outcome finish(const Queued& send);
  Taken belongs(const std::string& batch, const End& group, std::int64_t generation,
                const Matching& matching) const;
  void serve(const PeerConnectionPtr& connection, std::uint64_t serial, const Subscribe& wish,
             const ReaderGroups::Served& served);

  OwnRegistration& self_;
  GroupPtr group_;
  Exposure exposure_;
  std::unique_ptr<Source> source_;
  std::unique_ptr<Herald> herald_;              // of a batch with versions, beside source_
  std::map<Rank, std::int64_t> read_versions_;  // as the last sends found, and subscribers said
  // The last send that named its version, or the last version before the generation.
  std::int64_t named_round_ = 0;
  std::int64_t named_version_ = 0;
  bool preparing_ = false;
};

}  // namespace tensorbus::bus
