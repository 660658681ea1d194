// One registration of a batch at this agent: its place among the others' registrations, its two
// ends, and the commands that wait for it. batch.cc has the commands, batch_match.cc what follows
// from the records.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bus/match/match.h"
#include "bus/match/serving.h"
#include "bus/round/context.h"
#include "bus/round/herald.h"
#include "bus/round/reader.h"
#include "bus/round/source.h"

namespace tensorbus::bus {

class Batch {
 public:
  // `disputed`: registrations of others that an earlier one of ours did not fit.
  Batch(Context& context, BatchKey key, std::uint64_t session, BatchMember record,
        std::shared_ptr<Loan> loan, KnownFailures disputed = {});
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch();

  const BatchKey& key() const noexcept { return key_; }
  std::uint64_t session() const noexcept { return session_; }
  std::uint64_t registration() const noexcept { return record_.registration; }
  const BatchMember& record() const noexcept { return record_; }
  bool registering() const noexcept { return registering_.has_value(); }
  // If it failed: those that it did not fit.
  const KnownFailures& disputed() const noexcept { return disputed_; }
  // Its senders have to register again; this one may be replaced.
  bool stale() const noexcept { return !ended_.ok() && last_round_ >= ends_after_; }
  bool closing() const noexcept { return closing_; }
  // Nothing of it is left to wait for.
  bool over() const noexcept;

  void register_for(CommandId id, Deadline deadline);
  // Shows the registration to the others; the agent waits with it until an earlier one of the same
  // name has left.
  void announce();
  bool announced() const noexcept { return announced_; }
  // Other memory to receive into. Only while nothing is received.
  void replace(std::shared_ptr<Loan> loan);
  bool idle() const noexcept { return queue_.empty() && !registering_ && !closing_; }
  // The agent counts as another from now on.
  void publish_as(std::uint64_t incarnation);
  // The store will not take its record.
  void refused(const Status& why);
  void transfer(CommandId id, const Transfer& transfer, Deadline deadline);
  void query(CommandId id, const QuerySignal& query, Deadline deadline);
  void query_versions(CommandId id) const;
  // Ends everything; over() says when. `id` is completed then. Rounds that this rank has been
  // answered for go on at the others, unless its worker is lost.
  enum class Manner : std::uint8_t { orderly, lost };
  void close(std::optional<CommandId> id, const Status& why, Manner manner = Manner::orderly);
  // Another registration takes its name: the record in the store is no longer this one's.
  void give_way() noexcept { superseded_ = true; }
  bool leaving() const noexcept { return leaving_.has_value(); }
  // False: not one of its commands.
  bool cancel(CommandId id, const Status& why);

  // Records have changed, or time has passed.
  void update();
  void step();
  TimePoint wake_at() const;

  // Whether it was for this registration; if not yet answerable, it is kept by the caller.
  enum class Taken : std::uint8_t { no, later, done };
  Taken subscribe(const PeerConnectionPtr& connection, const AgentMessage& message);
  Taken follow(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_message(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_up(const PeerConnectionPtr& connection);
  void on_lost(const PeerConnectionPtr& connection, const Status& why);

  // What the head of the queue waits for; for the heartbeat.
  std::string current() const;

 private:
  struct Waiting {
    CommandId id;
    Deadline deadline;
  };
  struct Queued {
    CommandId id;
    Direction direction = Direction::send;
    std::uint64_t ticket = 0;
    Deadline deadline;
    std::int64_t round = 0;                                // send
    std::optional<std::int64_t> version{};                 // send: its own; recv: the one wanted
    bool named = false;                                    // send: by the user
    std::int64_t min_readers = 0;                          // send: before it begins
    std::optional<std::map<Rank, ReaderOutcome>> ended{};  // send: as far as this rank's readers go
    bool running = false;                                  // send: its round is open
    Status why{};                                          // what has ended it early
    TimePoint tell_progress_at = TimePoint::min();         // min before it began
  };
  struct OwnPassage {
    OwnPassage(GroupPtr from, GroupPtr to, Rank reader)
        : sources(std::move(from)),
          targets(std::move(to)),
          passage(make_passage(*sources, *targets, reader)) {}
    bool is_between(const GroupPtr& from, const GroupPtr& to) const noexcept {
      return from == sources && to == targets;
    }
    GroupPtr sources;
    GroupPtr targets;
    Passage passage;
  };
  struct Query {
    CommandId id;
    QuerySignal query;
    Deadline deadline;
  };

  // batch.cc
  void complete(CommandId id, Outcome outcome);
  void answer(CommandId id, Status status = {});
  // Sends only from the round after `after` on.
  void fail_queue(Direction direction, const Status& why, std::optional<Rank> lost,
                  std::int64_t after = 0);
  void step_send(Queued& send);
  void finish_send(const Queued& send);
  void step_recv(Queued& recv);
  bool time_to_tell(Queued& queued) const noexcept;
  bool take_version(Queued& recv);
  void number(Queued& send);
  // Whether a send may begin: the readers it wants are there.
  bool has_readers(const Queued& send);
  bool waits_for_first(const Queued& send) const;
  void publish_version(std::int64_t version);
  bool is_lost(const std::string& side, Rank rank) const;
  void look_for_conflict(Queued& send);
  Status both_send(const Queued& send, Rank with) const;
  void end_command(Queued& queued, const Status& why, bool at_deadline);
  void expire();
  void answer_queries();
  std::string unpublished(std::optional<std::int64_t> round) const;
  // The last round that this rank's sends have been answered for.
  std::int64_t answered() const noexcept;
  std::string waits_for(const Queued& queued) const;

  // batch_match.cc
  bool one_way(Direction direction) const noexcept;
  void look_at_groups();
  Status sender_refuses();
  void find_groups();
  KnownFailures others() const;
  bool waits_for_others_to_change() const;
  void follow_own_generation();
  void follow_their_generation();
  bool may_join(Rank reader) const;
  void check_registered();
  void fail_registration(const Status& why, bool tell);
  void begin_generation(const Generation& generation);
  void end_generation(const Generation& ended);
  void drop_source_if_unused();
  void leave_generation(std::int64_t after);
  void follow_leaving();
  void withdraw();
  Generation propose_end(const GenerationKey& key, Generation generation, Rank left,
                         const std::string& why, std::int64_t after = 0);
  void follow_end(const Generation& current);
  std::shared_ptr<Digest> digest_of(const plan::Stream& stream, Verify verify) const;
  Serving& serving(const GroupPtr& sources, const GroupPtr& targets);
  GroupPtr group_of_reader(Rank rank, const BatchMember& reader);
  void join(const Generation& generation, const Passage& passage);
  std::vector<TensorView> ordered(const Group& sources) const;
  bool fresh(const Group& group, const Generation* last) const;

  Context& context_;
  const BatchKey key_;
  const std::uint64_t session_;
  BatchMember record_;
  std::shared_ptr<Loan> loan_;
  std::optional<Waiting> registering_;
  KnownFailures known_;  // registrations that had failed before this one
  KnownFailures disputed_;

  GroupPtr own_;
  GroupPtr remote_;
  GroupPtr sending_;  // ours as the generation's record has it: what region_ is laid out by
  GroupPtr joined_;   // theirs as the generation's record has it: what the reader joins
  std::map<std::vector<End>, GroupPtr> readers_groups_;  // who has subscribed, by its ends
  std::string missing_;
  Status can_send_;  // ok until something is known
  Status can_recv_;
  std::map<End, std::unique_ptr<Serving>> servings_;     // the last, by the readers' group
  std::unique_ptr<OwnPassage> passage_;                  // the last that the reader was to join by
  std::vector<Rank> readers_;                            // of ours, at the side we named
  std::vector<std::pair<Rank, std::uint64_t>> matched_;  // registrations that were checked
  std::unique_ptr<fabric::Region> region_;
  std::unique_ptr<Source> source_;
  std::unique_ptr<Herald> herald_;              // of a batch with versions, beside source_
  std::map<Rank, std::int64_t> read_versions_;  // by readers, in this generation
  std::shared_ptr<Reader> reader_;
  std::optional<std::int64_t> reader_ends_after_;  // its generation has, after a round to come
  Status ended_;                              // why rounds above the next number cannot be sent
  std::int64_t ends_after_ = 0;               // if it has ended
  GroupPtr readers_then_;                     // who had registered when it ended
  std::optional<std::string> proposed_over_;  // the record that our last proposal was to replace

  std::int64_t last_round_ = 0;  // of the sends that were accepted
  // The last send that named its version, or the last version before the generation.
  std::int64_t named_round_ = 0;
  std::int64_t named_version_ = 0;
  std::optional<std::int64_t> shown_version_;  // in the store
  std::deque<Queued> queue_;
  bool preparing_ = false;  // the send at its head: there are checksums to make
  std::vector<Query> queries_;
  bool announced_ = false;
  bool superseded_ = false;
  bool closing_ = false;
  // Closed, and the others have not been told yet that it ends after this round.
  std::optional<std::int64_t> leaving_;
  TimePoint leaves_by_{};
  std::optional<CommandId> close_id_;
};

}  // namespace tensorbus::bus
