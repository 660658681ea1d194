// A cluster of agents and their workers in one thread: simulated clock, store and channel, the
// in-process fabric, and an order of events that follows from a seed.
#pragma once

#include <algorithm>
#include <charconv>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bus/agent/agent.h"
#include "bus/channel/channel.h"
#include "bus/directory/directory.h"
#include "bus/files/state.h"
#include "bus/report/observed_channel.h"
#include "fabric/memory/fabric.h"
#include "observe/recorder.h"

namespace tensorbus::bus::simulation {

class SimulatedClock final : public Clock {
 public:
  TimePoint now() const noexcept override { return now_; }
  void advance(Duration time) { now_ += time; }

 private:
  TimePoint now_{std::chrono::hours(1)};
};

// The store that all directories of a cluster share. Changes reach a watcher later, in order.
class SimulatedStore {
 public:
  class Client;
  std::map<std::string, std::string> values;
  std::vector<Client*> clients;
  // Told of every change, before anybody else.
  std::function<void(const std::string& key, const std::optional<std::string>& value)> watcher;
  std::function<bool(const std::string& key)> refuses;  // to publish it; may be empty

  void set(const std::string& key, std::optional<std::string> value);
};

// A death removes what was published at once or, if its host is only silent, when expire() is
// called.
class SimulatedStore::Client final : public Directory {
 public:
  explicit Client(SimulatedStore& store);
  ~Client() override;

  void publish(std::string key, std::string value) override;
  void withdraw(std::string key) override;
  void compare_and_set(std::string key, std::optional<std::string> expected, std::string desired,
                       std::uint64_t request) override;
  std::span<const DirectoryEvent> poll() override;
  bool arm() override { return pending_.empty() && requests_.empty(); }
  int fd() const noexcept override { return -1; }

  // Carries out one request, or lets one change arrive. False: there is nothing.
  bool advance_request();
  bool advance_change();
  // The lease lapses: the store removes everything, and the agent learns of it.
  void expire();

 private:
  friend class SimulatedStore;
  SimulatedStore& store_;
  struct Request {
    bool publishes = false;
    std::function<void()> carry_out;
  };
  std::deque<Request> requests_;
  bool loss_untold_ = false;            // LeaseLost is on the way
  std::deque<DirectoryEvent> pending_;  // on the way to us
  std::vector<DirectoryEvent> arrived_;
  std::vector<DirectoryEvent> returned_;
  std::map<std::string, std::string> published_;
};

// The agent's end; the test is the worker.
class SimulatedChannel final : public Channel {
 public:
  std::span<const ChannelEvent> poll() override;
  void complete(CommandId id, const Outcome& outcome) override;
  void fail(const Status&) noexcept override {}
  void progress(CommandId, std::int64_t, std::int64_t) noexcept override {}
  bool arm() override { return waiting_.empty(); }
  int fd() const noexcept override { return -1; }

  void push(ChannelEvent event) { waiting_.push_back(std::move(event)); }
  // A command that was accepted and is not over, of a worker that lives.
  std::optional<CommandId> owed() const;
  std::map<CommandId, Outcome> outcomes;
  std::vector<CommandId> doubled;  // completed twice
  std::vector<CommandId> unknown;  // completed without having been accepted

 private:
  std::vector<ChannelEvent> waiting_;
  std::vector<ChannelEvent> returned_;
  std::map<CommandId, bool> accepted_;
  std::set<std::uint64_t> lost_;  // sessions
};

// Memory of a simulated worker: a list of tensors of one type.
class SimulatedLoan final : public Loan {
 public:
  struct Tensor {
    Dtype dtype = Dtype::int64;
    Shape shape;
    Shape strides;
    std::vector<std::byte> bytes;
  };
  explicit SimulatedLoan(std::vector<Tensor> tensors);

  const std::vector<TensorView>& tensors() const noexcept override { return views_; }
  std::shared_ptr<const fabric::Lender> lender() const noexcept override { return nullptr; }
  fabric::Gate gate() const override { return gate_; }
  Tensor& tensor(std::size_t at) { return tensors_[at]; }
  // As 64-bit integers, the only type that tests fill in.
  std::span<std::int64_t> numbers(std::size_t at);

 private:
  std::vector<Tensor> tensors_;
  std::vector<TensorView> views_;
  fabric::Gate gate_;
};

// What lies between the ranks. A pair of ranks is ordered: the smaller first.
struct Weather {
  using Line = std::pair<Rank, Rank>;
  static Line line(Rank one, Rank other) { return {std::min(one, other), std::max(one, other)}; }

  std::set<Line> cut;        // nothing gets through, for now
  std::set<Line> late;       // what is said comes late
  std::set<Rank> slow;       // copies take long
  std::set<Rank> far;        // hears from the store late
  std::set<Rank> full;       // takes no more messages, for now
  std::size_t queue = 1024;  // messages that wait for one rank
  std::size_t words = 8192;  // of one connection
  bool network = false;      // words are out of sight
  bool lossy = false;        // a connection that breaks takes along what was on its way
};

// The rank whose fabric has this identity.
inline Rank rank_of(const fabric::Identity& identity) {
  Rank rank = 0;
  std::from_chars(identity.name.data() + 5, identity.name.data() + identity.name.size(), rank);
  return rank;
}

class Cluster;

// One rank: a worker and its agent.
class Node {
 public:
  Node(Cluster& cluster, Rank rank);

  CommandId submit(Command command, std::shared_ptr<Loan> loan = nullptr,
                   Deadline deadline = Deadline::never());
  void cancel(CommandId id, const Status& why);
  // Null while the command is pending.
  const Outcome* outcome(CommandId id) const;
  Rank rank() const noexcept { return rank_; }
  bool alive() const noexcept { return agent_ != nullptr; }
  std::uint64_t session() const noexcept { return session_; }
  // The steps that the agent took when it last did something.
  const std::set<Step>& last_steps() const noexcept { return last_steps_; }
  // The agent did something in the last turn of its loop.
  bool did_something() const noexcept { return did_something_; }

  // The agent does what there is to do.
  void step();
  // The process dies: everything but the committed state is gone.
  void kill();
  // With a worker of its own, or with the one that outlived the agent.
  void restart(bool new_worker = true);
  // Stops the agent when it has looked at the clock: the agent goes on with the old time.
  void stop();
  // The worker dies and another takes its place; the agent lives.
  void replace_worker();
  void resume() { stopped_ = false; }
  bool stopped() const noexcept { return stopped_; }
  void lapse();
  // The connections of this rank with that rank break.
  void disconnect(Rank other);

  SimulatedChannel& channel() { return *channel_; }
  StateStore& state() { return state_; }
  // Of an agent that the cluster had to record.
  const observe::Recorder& recorder() const { return *recorder_; }

 private:
  friend class Cluster;
  Cluster& cluster_;
  const Rank rank_;
  MemoryState state_;
  std::unique_ptr<fabric::Fabric> fabric_;
  std::unique_ptr<SimulatedStore::Client> directory_;
  std::unique_ptr<SimulatedChannel> channel_;
  std::unique_ptr<observe::Recorder> recorder_;
  std::unique_ptr<ObservedChannel> observed_;
  std::unique_ptr<Agent> agent_;
  std::uint64_t session_ = 0;
  std::uint64_t sequence_ = 0;
  bool stopped_ = false;
  std::optional<TimePoint> stopped_at_;
  std::set<Step> last_steps_;
  bool did_something_ = false;  // in this turn of its loop
};

class Cluster {
 public:
  explicit Cluster(std::uint64_t seed);

  Node& add(Rank rank);
  Node& node(Rank rank) { return *nodes_.at(rank); }
  SimulatedClock& clock() { return clock_; }
  SimulatedStore& store() { return store_; }
  fabric::MemoryHub& hub() { return *hub_; }
  Weather weather;
  Duration retain = Duration::max();        // of agents that are started from now on
  bool records = false;                     // what those agents count
  std::function<void(Rank, Step)> on_step;  // told of every step of every agent
  std::uint64_t random() { return random_(); }
  // Below `bound`.
  std::uint64_t random(std::uint64_t bound) { return random_() % bound; }
  // From a sequence of its own: what was added here later left all else that seeds do as it was.
  std::uint64_t losses(std::uint64_t bound) { return losses_() % bound; }
  bool loses(std::uint64_t one_in) { return losses(one_in) == 0; }

  // One thing happens somewhere. At whose agent, if at one.
  std::optional<Rank> step();
  // Runs until the condition holds; false if it does not within this many steps.
  bool run_until(const std::function<bool()>& holds, std::size_t most_steps = 200'000);

 private:
  friend class Node;
  SimulatedClock clock_;
  std::mt19937_64 random_;
  std::mt19937_64 losses_;
  std::shared_ptr<fabric::MemoryHub> hub_;
  SimulatedStore store_;
  std::map<Rank, std::unique_ptr<Node>> nodes_;
  std::uint64_t sessions_ = 0;
};

}  // namespace tensorbus::bus::simulation
