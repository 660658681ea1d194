// A reader's subscriptions to the shelves of one generation, and the pull that runs: which versions
// its sources have, and the reading of one of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bus/channel/loan.h"
#include "bus/patching/version_read.h"
#include "bus/round/context.h"
#include "bus/round/reader.h"
#include "bus/round/recv.h"
#include "bus/shelf/supply.h"

namespace tensorbus::bus {

class Puller : public std::enable_shared_from_this<Puller> {
 public:
  Puller(Context& context, std::shared_ptr<Loan> loan)
      : context_(context), loan_(std::move(loan)) {}

  // Other memory to read into. Only while nothing is read.
  void replace(std::shared_ptr<Loan> loan, std::vector<TensorView> targets);

  // Subscribes to every source. Only while idle.
  void join(JoinPlan plan);
  bool idle() const noexcept { return phase_ == Phase::idle; }
  bool started() const noexcept { return phase_ == Phase::started; }
  std::int64_t generation() const noexcept { return plan_.generation; }
  std::uint64_t fingerprint() const noexcept { return plan_.fingerprint; }
  // Why joining failed last; for messages.
  const std::string& trouble() const noexcept { return trouble_.why(); }
  // After a failure: when to join again; max if nothing has failed.
  TimePoint retry_at() const noexcept { return trouble_.retry_at(); }
  void retry() noexcept { trouble_.retry(); }
  // Ends the subscriptions; what is being read is dropped.
  void leave(const Status& why);

  void on_up(const PeerConnectionPtr& connection);
  void on_lost(const PeerConnectionPtr& connection, const Status& why);
  bool knows(std::uint64_t serial) const noexcept { return !idle() && serial == serial_; }
  // A shelf of this rank itself has another connection.
  bool is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const;
  void on_message(const PeerConnectionPtr& connection, const AgentMessage& message);

  // What the sources have that is wanted.
  Supply supply(const Wanted& wanted) const;
  // A reader that has read this version takes none below the returned one, and will find a version
  // that is as new: what all senders have had stays until a newer one is everywhere.
  std::int64_t lasting(std::int64_t read) const noexcept {
    return heard_.taken_back ? read : std::min(read, heard_.common);
  }
  // The sources that have nothing that is wanted while others do. None if nobody does: what is
  // wanted is still to come.
  std::vector<Rank> late(const Wanted& wanted) const;
  // The newest version of a source whose worker has closed, also after that source was lost.
  std::optional<std::int64_t> finished_after() const noexcept { return heard_.finished_after; }
  // Reads a version that is wanted, or waits for one. Returns the outcome, once the read is over.
  std::optional<Outcome> step(const Wanted& wanted);
  // For a pull that ranks agree on: the versions that all sources have and that are wanted.
  std::vector<std::int64_t> offered(const Wanted& wanted) const;
  // Something that is wanted is at one source at least, and is not what is pinned and still to
  // come.
  bool is_pin_worth_it(const Wanted& wanted) const;
  // Asks all sources to keep what they have and what they get, until something else is asked for.
  void keep_newest();
  // Asks all sources to keep this version; 0: none.
  void keep(std::int64_t version);
  // All sources have said what they keep, and which one of these is the largest.
  bool has_pinned() const noexcept { return unpinned_.empty(); }
  std::int64_t pinned() const noexcept { return pinned_; }
  // Reads this version while another version is kept, too. False: not all sources have the version.
  bool read_agreed(std::int64_t version, std::int64_t kept);
  // The outcome of the read that runs, once it is over; the `round` of the outcome is the
  // generation.
  std::optional<Outcome> finish_read();

  // What is being read; null: nothing is.
  VersionRead* reading() const noexcept { return read_.get(); }
  // A pull begins.
  void begin() noexcept { held_->touched = false; }
  // How versions are read from now on.
  void set_manner(const Manner& manner) noexcept { manner_ = manner; }
  // The pull has written to the targets.
  bool has_touched() const noexcept { return held_->touched; }
  // Applies what was fetched of this version, or reads the version if it has to. Returns the
  // outcome, once that is over.
  std::optional<Outcome> step_apply(std::int64_t version);
  // All ranks have got the version: what waits for that is applied. Returns the outcome, once that
  // is over.
  std::optional<Outcome> step_agreed(const Outcome& agreed);
  // Somebody else has written to the targets.
  void forget_content() noexcept { held_->content.reset(); }
  // The pull is over: the sources need keep nothing for this reader. What was read is dropped.
  void rest();
  // And before that: what waits will not be applied.
  void forget_fetched() noexcept { fetched_.reset(); }

 private:
  enum class Phase : std::uint8_t { idle, subscribing, started };
  struct SlotEnd {
    std::shared_ptr<const fabric::RemoteRegion> region;
    std::int64_t version = 0;
    std::uint64_t ticket = 0;
  };
  struct SourceEnd {
    PeerConnectionPtr connection;
    bool asked = false;
    bool answered = false;
    std::vector<SlotEnd> slots;
    ShelfView view;

    const SlotEnd* find(std::int64_t version) const;
    void put(const Published& published);
    void forget(std::int64_t version);
  };

  // Of all sources together.
  struct Heard {
    std::optional<std::int64_t> finished_after{};
    std::int64_t common = 0;  // the newest version that all senders are known to have had
    bool taken_back = false;  // something was, and not all sources have said since what all had
  };

  void ask(Rank rank, SourceEnd& source);
  void fail_joining(const std::string& why);
  void on_shelved(Rank rank, SourceEnd& source, const Shelved& answer);
  void attach(Rank rank, SourceEnd& source, std::size_t slot, std::uint64_t region);
  void on_attached(Rank rank, std::size_t slot, const fabric::Completion& done);
  void start_when_attached();
  void on_held(Rank rank, const Held& held);
  // What waited for other ranks goes on without them. False: nothing did.
  bool resume_alone();
  std::optional<Outcome> judge(Outcome read, const Wanted& wanted);
  void read(std::int64_t version);
  // Null: not all sources have the version any more.
  std::shared_ptr<Recv> read_all(std::int64_t version,
                                 const std::shared_ptr<Scratch>& scratch) const;
  // What was read has more to ask its sources.
  bool keeps_on() const noexcept;
  bool is_far() const;
  // Asks all sources to keep what they have and what they get.
  void pin_newest();
  void pin(std::set<std::int64_t> versions);
  bool all_have(std::int64_t version) const;
  void tell_all(const MessageBody& body);

  Context& context_;
  std::shared_ptr<Loan> loan_;
  JoinPlan plan_;
  Phase phase_ = Phase::idle;
  std::uint64_t serial_ = 0;
  std::vector<std::shared_ptr<const plan::Stream>> streams_;
  std::map<Rank, SourceEnd> sources_;
  std::shared_ptr<VersionRead> read_;
  std::shared_ptr<VersionRead> fetched_;  // and not applied
  Manner manner_;
  const std::shared_ptr<HeldState> held_ = std::make_shared<HeldState>();
  Heard heard_;

  std::set<Rank> unpinned_;  // sources that have not said what they keep
  std::int64_t largest_held_ = 0;
  std::int64_t pinned_ = 0;  // that all sources keep once they have it; 0: none
  bool must_pin_ = false;    // what was read last was taken back
  bool holding_ = false;     // some source keeps something
  bool narrows_ = true;      // once pinned nothing else is kept

  JoinTrouble trouble_;
};

}  // namespace tensorbus::bus
