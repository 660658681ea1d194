// Of a batch with versions: its first sender has every reader as a subscriber, and tells the other
// senders when a round may begin and how it ended, so that a send means the same at all senders. Of
// a shelf: which version all senders have completed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bus/round/context.h"

namespace tensorbus::bus {

class Herald {
 public:
  // `address`: of the first sender; none: this rank is the first. `senders`: all senders; only for
  // shelves.
  Herald(Context& context, Follow wish, std::int64_t generation, Rank first,
         std::optional<fabric::Address> address, std::set<Rank> senders = {});

  bool is_first() const noexcept { return !address_; }
  Rank first() const noexcept { return first_; }

  // The first sender tells its followers; a follower that comes late is told what it has missed.
  void add_follower(const PeerConnectionPtr& connection, std::uint64_t serial, const Follow& wish);
  void tell_begun(std::int64_t round);
  void tell_ended(std::int64_t round, std::map<Rank, ReaderOutcome> readers);
  // This sender has begun a round of this version; and what the first sender has heard of others.
  void note_sent(std::int64_t version);
  std::map<Rank, std::int64_t> sent_versions() const;
  // A follower asks what the first sender knows of all ranks. False: the first is not connected.
  bool ask_versions();

  // Whether the first sender says this to a follower, or a follower to the first.
  bool knows(const PeerConnectionPtr& connection, std::uint64_t serial) const noexcept;
  void on_message(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_up(const PeerConnectionPtr& connection);
  void on_lost(const PeerConnectionPtr& connection);
  bool has_begun(std::int64_t round) const noexcept;
  // How a round ended for all readers; nothing while that is not known. Of a round that a later
  // round has followed only the fact that it ended is known.
  std::optional<std::map<Rank, ReaderOutcome>> ending(std::int64_t round) const;
  // This sender has these versions on its shelf.
  void note_complete(std::vector<std::int64_t> versions);
  // The newest version that all senders are known to have had; 0: none.
  std::int64_t common() const noexcept { return common_.version; }
  // The versions above common() that not all senders will ever have: another sender is past these
  // versions without having had them.
  const std::vector<std::int64_t>& doomed() const noexcept { return common_.doomed; }
  // Who lacks the newest version of this sender, as far as that is known.
  std::vector<Rank> lacking(std::int64_t version) const;

  // The first sender is not connected: nobody could tell.
  bool is_alone() const noexcept { return connection_ == nullptr; }

  // Follows again after the connection was lost.
  void step();
  TimePoint wake_at() const noexcept { return retry_at_; }

 private:
  struct Follower {
    PeerConnectionPtr connection;
    std::uint64_t serial = 0;
    Rank rank = 0;
    std::int64_t sent = 0;  // version
  };

  void follow();
  void ask();
  void tell_all(const MessageBody& body);
  void tell_completed();
  void on_completed(const PeerConnectionPtr& connection, const AgentMessage& message,
                    const Completed& completed);
  void take_completed(Rank rank, const std::vector<std::int64_t>& versions);
  bool is_doomed(std::int64_t version) const;

  Context& context_;
  Follow wish_;
  const std::int64_t generation_;
  const Rank first_;
  const std::optional<fabric::Address> address_;
  const std::set<Rank> senders_;
  std::vector<Follower> followers_;
  PeerConnectionPtr connection_;  // to the first sender
  std::uint64_t serial_ = 0;
  bool asked_ = false;
  bool answered_ = false;  // since then
  TimePoint retry_at_ = TimePoint::max();
  std::int64_t begun_ = 0;
  Ended ended_;
  std::vector<std::int64_t> completed_;             // a follower's own
  std::map<Rank, std::set<std::int64_t>> shelves_;  // what each sender has now; of the first sender
  Common common_;
};

}  // namespace tensorbus::bus
