// What one sender has for readers to pull, in one generation: slots in memory of its worker, which
// stay when the worker is gone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bus/channel/loan.h"
#include "bus/patching/patch_maker.h"
#include "bus/patching/sums.h"
#include "bus/registration/own_registration.h"
#include "bus/registration/reader_groups.h"
#include "bus/round/context.h"
#include "bus/round/herald.h"
#include "bus/shelf/slots.h"

namespace tensorbus::bus {

class Shelf {
 public:
  struct Origin {
    BatchKey key;
    GroupPtr senders;            // as the generation's record has them
    ShelfRecord record;          // what readers will find
    std::shared_ptr<Loan> loan;  // the tensors of the first slot, of the second, ...
  };
  Shelf(Context& context, Origin origin);
  Shelf(const Shelf&) = delete;
  Shelf& operator=(const Shelf&) = delete;

  const BatchKey& key() const noexcept { return key_; }
  std::int64_t generation() const noexcept { return record_.generation; }
  const GroupPtr& senders() const noexcept { return senders_; }
  const BatchMember& member() const noexcept { return record_.member; }
  const Slots& slots() const noexcept { return slots_; }
  // All senders have had a version: readers find the shelf.
  bool served() const noexcept { return slots_.common() != 0; }

  // A slot to write the version to: no reader that began to read that slot before succeeds any
  // more.
  std::optional<std::size_t> take(std::int64_t version, bool withdraw);
  // False: no slot was being filled with the version. `compared`: with the version in the slot
  // that compares_with() gave.
  bool complete(std::int64_t version, bool compared);
  // For versions from now on: whether readers get patches, and the most bytes for all that.
  void set_deltas(delta::Mode mode, std::optional<std::int64_t> most_bytes) {
    patches_.set(mode, most_bytes);
  }
  // The slot that the next version is to be compared with; nothing: it need not be compared.
  std::optional<std::size_t> compares_with() const;
  void give_up() { slots_.give_up(); }
  // Who lacks the newest version of this sender.
  std::vector<Rank> lagging() const { return herald_.lacking(slots_.newest()); }
  // Nothing follows: readers that wait for more are told.
  void finish();
  // Nobody will write to the shelf any more.
  void release();
  bool released() const noexcept { return released_at_.has_value(); }
  // Only of a shelf that was released.
  TimePoint released_at() const { return *released_at_; }
  // Readers have to look for another shelf.
  void end(const std::string& why);

  Taken subscribe(const PeerConnectionPtr& connection, const AgentMessage& message);
  void follow(const PeerConnectionPtr& connection, const AgentMessage& message);
  bool is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const;
  void on_message(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_up(const PeerConnectionPtr& connection) { herald_.on_up(connection); }
  void on_lost(const PeerConnectionPtr& connection);
  // Publishes the record of a shelf that is served, unless it is out already.
  void show();
  // The store has forgotten the record.
  void forget_shown() noexcept { shown_ = false; }
  void step();
  TimePoint wake_at() const noexcept { return sums_.busy() ? context_.now : herald_.wake_at(); }

 private:
  struct Subscription {
    PeerConnectionPtr connection;
    Rank reader = 0;
    std::string side;
  };

  void serve(const PeerConnectionPtr& connection, std::uint64_t serial, const Subscribe& wish,
             const ReaderGroups::Served& served);
  void on_hold(const Subscription& subscription, std::uint64_t serial, const Hold& hold);
  void on_ask(const Subscription& subscription, std::uint64_t serial, const AskPatch& ask);
  void on_ask_sums(const Subscription& subscription, std::uint64_t serial, const AskSums& ask);
  void make_sums();
  // In the order in which streams count them.
  std::vector<TensorView> tensors_of(std::size_t slot) const;
  std::optional<std::size_t> slot_of(std::int64_t version) const;
  void unsubscribe(std::uint64_t serial);
  void subscribe_to_patches(std::uint64_t serial, const ReaderGroups::Served& served);
  PatchMaker::Origin patch_origin() const;
  void tell_all(const MessageBody& body);
  void look_at_common();

  Context& context_;
  const BatchKey key_;
  const GroupPtr senders_;
  const ShelfRecord record_;
  const std::shared_ptr<Loan> loan_;
  Slots slots_;
  std::vector<std::unique_ptr<fabric::Region>> regions_;  // by slot, each with a gate of its own
  PatchMaker patches_;
  SumMaker sums_;
  Herald herald_;
  ReaderGroups readers_;
  std::map<std::uint64_t, Subscription> subscriptions_;  // by serial
  bool finished_ = false;
  bool shown_ = false;
  std::optional<TimePoint> released_at_;
};

}  // namespace tensorbus::bus
