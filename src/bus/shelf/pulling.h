// The end of a registration that pulls: its commands, one after the other, and the shelves that it
// follows from generation to generation.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "bus/registration/awaited.h"
#include "bus/registration/course.h"
#include "bus/registration/matching.h"
#include "bus/registration/telling_time.h"
#include "bus/shelf/joint_pull.h"
#include "bus/shelf/puller.h"

namespace tensorbus::bus {

class Pulling {
 public:
  explicit Pulling(OwnRegistration& self) : self_(self), course_(self), joint_(self) {}

  // Joins the shelves that are there now, unless the registration has joined them.
  void follow(const Matching& matching);
  bool started() const noexcept { return puller_ != nullptr && puller_->started(); }
  // Joining failed a while ago: the registration may try again.
  bool tries_again();
  // Why not all sources have been joined; for messages.
  std::string trouble() const { return puller_ == nullptr ? "" : puller_->trouble(); }
  bool reads() const noexcept { return puller_ != nullptr && puller_->reading() != nullptr; }
  // There is something to do at once.
  bool busy() const noexcept { return reads() && puller_->reading()->busy(); }
  // After the loan of the registration has changed. Only while nothing is pulled.
  void replace_memory();
  // The newest version that a pull would find now; 0: none.
  std::int64_t newest() const { return puller_ == nullptr ? 0 : puller_->supply({}).version; }

  void pull(CommandId id, const Pull& pull, Deadline deadline);
  bool empty() const noexcept { return queue_.empty(); }
  std::string head() const { return empty() ? "" : "pull"; }
  // What the head waits for; only while there is one.
  Awaited awaited() const;
  // False: there is no such command here.
  bool cancel(CommandId id, const Status& why);
  // Fails all pulls that wait; a pull that reads ends when its memory is free again.
  void fail(const Status& why);
  void close(const Status& why);

  void step();
  TimePoint wake_at() const;
  bool is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const;
  void on_message(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_up(const PeerConnectionPtr& connection);
  void on_lost(const PeerConnectionPtr& connection, const Status& why);

 private:
  struct Queued {
    CommandId id;
    Pull pull;
    Deadline deadline;
    Status why{};        // what has ended it early
    bool begun = false;  // at the puller
    TellingTime telling{};
  };

  // Together with the other ranks of the side.
  bool is_joint(const Pull& pull) const noexcept { return pull.together && joint_.has_others(); }
  Wanted wanted_by(const Pull& pull) const;
  std::optional<Outcome> step_head();
  void finish_head(Outcome outcome);
  void explain_absence(Outcome& outcome) const;
  Manner manner_of(const Pull& pull) const noexcept;
  // Who promises can rely on it: what a failed pull has not touched is what the last one left.
  void tell_untouched(Outcome& outcome, bool touched) const;
  void end(std::size_t at, const Status& why);
  void expire();
  std::string waits_for(const Pull& pull) const;

  OwnRegistration& self_;
  Course course_;
  JointPull joint_;
  std::shared_ptr<Puller> puller_;
  std::deque<Queued> queue_;
  std::int64_t read_in_ = 0;    // the generation of what was last pulled
  std::int64_t last_read_ = 0;  // and its version
  bool shelves_are_there_ = false;
};

}  // namespace tensorbus::bus
