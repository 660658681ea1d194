// The receiving end of a registration: its reader, and the recv that runs. receiving.cc has the
// recvs, joining.cc how the reader follows the senders' generations.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bus/batch/queued.h"
#include "bus/registration/course.h"
#include "bus/round/reader.h"

namespace tensorbus::bus {

class Receiving {
 public:
  explicit Receiving(OwnRegistration& self) : self_(self), course_(self) {}

  // Null until the senders have had a generation.
  Reader* reader() const noexcept { return reader_.get(); }
  bool started() const noexcept { return reader_ != nullptr && reader_->started(); }
  // The recv at the head of the queue; null: that recv reads nothing yet.
  Recv* running() const noexcept { return reader_ == nullptr ? nullptr : reader_->recv(); }
  // The senders as the generation's record has them, whom the reader joins.
  const GroupPtr& group() const noexcept { return course_.senders(); }
  // After the loan of the registration has changed. Only while nothing is received.
  void replace_memory();

  // joining.cc: what the record of the senders' generation means for the reader. If the reader has
  // lost its sources: why, and which of them is to blame; recvs that wait fail with that.
  struct Loss {
    Status why;
    Rank rank = 0;
  };
  std::optional<Loss> follow(const Generation& theirs);
  // Joins that generation, unless the reader has joined or cannot join yet. `own` and `remote`: the
  // groups as they are now. `wanted`: the worker receives, or registers.
  void join(const Generation& theirs, const GroupPtr& own, const GroupPtr& remote, bool wanted);
  // The rounds that were to go on after the end of their generation are over.
  bool is_past_end() const;
  // Joining failed a while ago: the reader may try again.
  bool tries_again();

  // Takes the head of the queue as far as it goes; its outcome once it is over, then finish().
  std::optional<Outcome> step(Queued& recv);
  void finish();
  // Skips what must be skipped, whatever the queue does. `taken`: the head of the queue is told of
  // a recv that is over.
  void rest(bool taken);
  // Asks the first sender what it knows of all ranks. False: this rank has not joined it.
  bool ask_versions() const;
  std::string waits_for() const;
  // The ranks that it names.
  std::vector<Rank> awaited() const;
  std::optional<BeingRead> being_read() const;
  bool checks() const { return running() != nullptr && running()->checks(); }
  TimePoint wake_at() const;

 private:
  // Of what all sources offer, with the ranks that offer it.
  struct Offered {
    std::pair<Rank, std::int64_t> lowest;
    std::pair<Rank, std::int64_t> highest;
  };

  std::optional<Offered> offered() const;
  Outcome refuse(const Offered& offered, std::string why) const;

  OwnRegistration& self_;
  Course course_;
  std::shared_ptr<Reader> reader_;
  bool was_started_ = false;
  std::optional<std::int64_t> ends_after_;  // their generation has, after a round to come
};

}  // namespace tensorbus::bus
