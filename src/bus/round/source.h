// The sending end of one registration in one generation: its subscribers and the round that is
// open.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bus/round/context.h"
#include "bus/round/digest.h"
#include "bus/round/round.h"

namespace tensorbus::bus {

class Source {
 public:
  Source(Context& context, std::int64_t generation) : context_(context), generation_(generation) {}
  // The owner has called end() before.
  ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  std::int64_t generation() const noexcept { return generation_; }
  bool knows(std::uint64_t serial) const { return subscriptions_.contains(serial); }
  bool is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const;

  // What a reader finds in the memory of this source.
  struct Memory {
    std::uint64_t region = 0;
    // False: the memory has tensors in other types than the reader needs. The reader joins when it
    // has not.
    bool readable = true;
    std::vector<std::shared_ptr<Digest>> digests{};  // make the checksums, if the reader wants any
  };
  // Answers the reader with the region and a word of its own. An older subscription of the same
  // reader ends.
  struct Subscriber {
    Rank rank = 0;
    std::uint64_t registration = 0;
    std::int64_t bytes = 0;  // that the reader reads here in a round
  };
  void subscribe(const PeerConnectionPtr& connection, std::uint64_t serial, Subscriber reader,
                 Memory memory);
  // Nobody has checksums any more: the memory is another, and every reader is told so next.
  void forget_digests();
  // Tells a reader where the next rounds lie. Only between rounds; a reader that has joined can
  // read what is there.
  void restage(std::uint64_t serial, Memory memory);
  bool has_joined(std::uint64_t serial) const { return subscriptions_.at(serial).joined; }
  // The digest of another reader, if that reader gets the same bytes.
  std::shared_ptr<Digest> find_digest(const plan::Stream& stream, Verify verify) const;
  void on_message(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_lost(const PeerConnection& connection);

  // Whether the reader has started at some time, whatever the reader has done since.
  bool has_started(Rank reader) const;
  // The reader's connection broke, and the reader has not subscribed since.
  bool has_lost(Rank reader, std::uint64_t registration) const;
  // How many readers have started and count in this round.
  std::size_t ready_for(std::int64_t round) const;

  // Makes the checksums of a round that is about to be opened; false while there is more to do:
  // then again soon. Error as Digest's.
  bool prepare(std::int64_t round);
  // Offers a round to all who have joined by now. The caller has checked the gate.
  void open(std::int64_t round, std::uint64_t ticket, std::int64_t version);
  bool is_open() const noexcept { return open_.has_value(); }
  std::int64_t highest_opened() const noexcept { return highest_opened_; }
  // How the open round ended for each reader, once it has ended for all; then no round is open.
  std::optional<std::map<Rank, Ending>> finished();
  // Bytes of the open round, or of the last, that were read whole or that their readers tell of.
  std::int64_t bytes_done() const noexcept;
  // Bytes of all readers that have read the round or still may.
  std::int64_t bytes_total() const noexcept;
  // The readers that have not read yet.
  std::set<Rank> unread() const;
  // Who has read the open round already, with its version.
  std::map<Rank, std::int64_t> read_now() const;
  // Takes the open round back from the readers that have not read it.
  void revoke(const std::string& why);
  // The reader is sending to this source, which sends to the reader: true if the reader had not
  // read the open round.
  bool conflict(Rank reader);
  // A reader that says that source and reader are both sending.
  std::optional<Rank> in_conflict() const;
  // Ends every subscription. finished() still gives how the open round ended.
  void end(const std::string& why);

  // When finished() should be asked again although nothing happened.
  TimePoint wake_at() const noexcept;

 private:
  struct Subscription {
    PeerConnectionPtr connection;
    Rank reader = 0;
    std::uint64_t registration = 0;
    fabric::Word word;
    std::int64_t bytes = 0;  // that the reader reads
    std::int64_t moved = 0;  // of them, in the open round, as the reader says
    bool readable = true;
    std::vector<std::shared_ptr<Digest>> digests{};
    bool wants_to_join = false;  // as soon as it can read
    bool joined = false;
    bool started = false;
    bool has_read = false;  // some round
    std::int64_t start = 0;
    bool in_round = false;
    TimePoint counts_since{};  // tentative readers are waited for a while only
  };
  struct Open {
    std::int64_t round = 0;
    std::int64_t version = 0;
    std::map<Rank, Ending> endings;
  };

  void on_join(Subscription& subscription, std::uint64_t serial);
  void on_start(Subscription& subscription, std::uint64_t serial, const Start& start);
  // Whether the reader compares checksums of the next round.
  static bool is_checked(const Subscription& subscription, const Digest& digest) noexcept {
    return digest.verify() != Verify::first || !subscription.has_read;
  }
  static RoundWord word_of(const Subscription& subscription);
  // Takes the word out of offered, by compare-and-swap; returns what the word is afterwards.
  static RoundWord settle(Subscription& subscription, Mark mark);
  void send_sums(const Subscription& subscription, std::uint64_t serial);
  void note_ending(Subscription& subscription, bool lost);
  void end_subscription(std::uint64_t serial, const std::string& why, bool tell);
  void say_over(const Subscription& subscription, std::uint64_t serial, const std::string& why);

  Context& context_;
  const std::int64_t generation_;
  std::map<std::uint64_t, Subscription> subscriptions_;  // by serial
  std::set<Rank> started_;                               // also those that have left again
  std::map<Rank, std::uint64_t> lost_;                   // with their registrations
  std::optional<Open> open_;
  std::int64_t bytes_read_ = 0;  // by those for whom the round has ended
  std::int64_t highest_opened_ = 0;
};

}  // namespace tensorbus::bus
