// Model weights by name and version, from the ranks of one side to those of others.
//
// A name is registered at the first call for it, and again when what is moved changes. Calls for a
// name and direction take turns.
#pragma once

#include <compare>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "bus/client/client.h"
#include "bus/client/turns.h"
#include "bus/link/form.h"
#include "bus/link/stage.h"

namespace tensorbus::bus {

// A name in one direction, sent in rounds or published.
struct LinkKey {
  std::string name;
  Direction direction = Direction::send;
  bool shelf = false;
  friend auto operator<=>(const LinkKey&, const LinkKey&) = default;
};

struct LinkSides {
  std::string local;
  std::optional<std::string> remote;  // none: it publishes only
  std::int64_t world_size = 1;        // of the local side
  // Of what is pulled: nobody else writes to the tensors between two pulls.
  bool promises = false;
  // Of what is published: the most bytes for all that deltas need; none: any.
  std::optional<std::int64_t> delta_memory{};
  // Of what is pulled: one of so many versions that were patched is compared with what the
  // publishers have; 0: none.
  std::int64_t verify_every = 0;
};

struct SendWish {
  std::optional<std::int64_t> version{};
  bool allow_lost = false;  // readers that are gone are passed over
  std::int64_t min_readers = 0;
};
struct RecvWish {
  std::optional<std::int64_t> version{};
  bool subset = false;
};
struct PublishWish {
  PublishOptions options{};
  std::int64_t keep = 2;
  std::optional<Dtype> dtype{};
};
struct PullWish {
  std::optional<std::int64_t> version{};
  std::optional<std::int64_t> newer_than{};
  bool together = true;
  bool subset = false;
  bool overwritten = false;  // somebody has written to the tensors since the last pull
  PullPart part = PullPart::all;
  bool scratch = false;  // of a fetch: what no patch can do is read into other memory
};

// How the last send of a name ended.
struct LastSend {
  std::int64_t version = 0;
  std::map<Rank, ReaderOutcome> readers{};
};

// How the last version that was pulled got here.
struct LastUpdate {
  std::int64_t version = 0;
  Update update{};
  friend bool operator==(const LastUpdate&, const LastUpdate&) = default;
};

// Of one name and direction. What is not guarded belongs to whoever has the turn.
struct LinkName {
  const std::shared_ptr<Turns> turns = std::make_shared<Turns>();
  RegisteredForm form{};
  std::unique_ptr<Stage> stage{};  // of a sender in rounds; null before the first copy
  std::int64_t last = 0;           // version

  std::int64_t unverified = 0;  // versions that were patched one after the other
  Mutex mutex{};
  std::uint64_t registration GUARDED_BY(mutex) = 0;  // 0: none
  std::optional<LastSend> last_send GUARDED_BY(mutex);
  std::optional<LastUpdate> last_update GUARDED_BY(mutex);
};

// One call: its place in the queue, and what other threads may do to the call and see of it.
class LinkCall {
 public:
  LinkCall(LinkKey called, std::shared_ptr<LinkName> under);

  const LinkKey key;
  const std::shared_ptr<LinkName> name;
  RunningCall running;

  bool take_turn(Deadline deadline) { return turn_.wait(deadline); }
  // The turn is another's, and the call has ended.
  void leave() noexcept;
  // The tensors of a send are the caller's again. False at the deadline.
  bool wait_until_staged(Deadline deadline);
  bool staged() const;
  void stage() noexcept;
  // How a send ended at its readers, as far as that is known.
  std::map<Rank, ReaderOutcome> readers() const;
  void note_readers(const std::map<Rank, ReaderOutcome>& readers);
  // Which tensors got a place in a stage, if this call has made one.
  std::optional<std::vector<std::size_t>> places() const;
  void note_places(std::vector<std::size_t> places);

 private:
  Turn turn_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  bool staged_ GUARDED_BY(mutex_) = false;
  std::map<Rank, ReaderOutcome> readers_ GUARDED_BY(mutex_);
  std::optional<std::vector<std::size_t>> places_ GUARDED_BY(mutex_);
};

// For callers that have something to do before: the calls of Link wait for their turn themselves.
// Error(timeout) at the deadline.
void take_turn(LinkCall& call, Deadline deadline);

// Thread safe.
class Link {
 public:
  // `client` throws when the client cannot be used any more; `pool` is where stages lie.
  Link(std::function<Client&()> client, std::shared_ptr<fabric::Pool> pool, LinkSides sides,
       std::optional<Verify> verify);
  // Closes what is registered without waiting for anything.
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Takes the next place in the queue of a name, to be passed to one of the calls below.
  std::shared_ptr<LinkCall> begin(LinkKey key);

  // Each returns the version.
  std::int64_t send(LinkCall& call, const LinkTensors& tensors, const SendWish& wish,
                    Deadline deadline);
  std::int64_t recv(LinkCall& call, const LinkTensors& tensors, const RecvWish& wish,
                    Deadline deadline);
  std::int64_t publish(LinkCall& call, const LinkTensors& tensors, const PublishWish& wish,
                       Deadline deadline);
  // Of an apply the wish names the version that was fetched.
  std::int64_t pull(LinkCall& call, const LinkTensors& tensors, const PullWish& wish,
                    Deadline deadline);
  // Tells the others, who would wait for this rank, that it has nothing that can be moved.
  void refuse(LinkCall& call, const std::string& why, Deadline deadline);

  std::int64_t newest(const std::string& name, Deadline deadline);
  Versions versions(const std::string& name, Deadline deadline);
  // What the other side publishes, or without one this side.
  std::vector<Content> contents(const std::string& name, Deadline deadline);
  std::optional<LastSend> last_send(const std::string& name);
  // Nothing: the name was not pulled, or without a promise.
  std::optional<LastUpdate> last_update(const std::string& name);

  // 0 if the name is not registered so.
  std::uint64_t registration(const LinkKey& key);
  bool is_busy(const LinkKey& key);
  // The place of a tensor of the last send, if it has one that is not lent now: see Stage::give.
  std::optional<PooledPlace> give_place(const std::string& name, const TensorView& tensor);

  // Frees what was registered; what other threads do with it fails.
  void close(Deadline deadline);

 private:
  std::shared_ptr<LinkName> name_of(const LinkKey& key);
  std::shared_ptr<LinkName> find(const LinkKey& key);
  const std::string& sender(const LinkKey& key) const;
  std::string pair_of(const LinkKey& key) const;
  std::string batch_of(const LinkKey& key) const;
  void join_pair(const LinkKey& key, bool blocking, Deadline deadline);
  void enlist(LinkCall& call, const LinkTensors& tensors, RegisteredForm form, Deadline deadline);
  void enlist_or_replace(LinkCall& call, const LinkTensors& tensors, const RegisteredForm& form,
                         Deadline deadline);
  void unregister(LinkCall& call, Deadline deadline);
  Verify verify_of_next(const LinkName& name) const noexcept;
  // Has places for what is to be copied, in the types that its readers want.
  void prepare_stage(LinkCall& call, const LinkTensors& tensors, std::int64_t min_readers,
                     Deadline deadline);
  // False: other readers have come meanwhile.
  bool make_stage(LinkCall& call, const LinkTensors& tensors, std::span<const Dtype> types,
                  Deadline deadline);
  void drop_stage(LinkCall& call, const LinkTensors& tensors, Deadline deadline);
  void drop(const LinkKey& key, LinkName& name, bool back_soon) noexcept;
  void drop_if_stale(LinkCall& call, const CommandError& error) noexcept;
  std::int64_t transfer(LinkCall& call, const LinkTensors& tensors, const SendWish& wish,
                        Deadline deadline);
  // The first of these keys that is registered.
  std::optional<LinkKey> registered_of(const LinkKey& first, const LinkKey& second);

  const std::function<Client&()> client_;
  const std::shared_ptr<fabric::Pool> pool_;
  const LinkSides sides_;
  const std::optional<Verify> verify_;  // as RegisterOptions has it
  Mutex mutex_;
  std::map<LinkKey, std::shared_ptr<LinkName>> names_ GUARDED_BY(mutex_);
  std::set<std::string> pairs_ GUARDED_BY(mutex_);  // that this rank has joined
  std::vector<std::weak_ptr<LinkCall>> calls_ GUARDED_BY(mutex_);
};

}  // namespace tensorbus::bus
