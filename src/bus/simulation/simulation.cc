#include "bus/simulation/simulation.h"

#include <algorithm>

#include "tensorbus/plan.h"

namespace tensorbus::bus::simulation {

void SimulatedStore::set(const std::string& key, std::optional<std::string> value) {
  if (value) {
    values[key] = *value;
  } else if (values.erase(key) == 0) {
    return;
  }
  if (watcher) watcher(key, value);
  for (Client* client : clients) client->pending_.push_back(Changed{key, value});
}

SimulatedStore::Client::Client(SimulatedStore& store) : store_(store) {
  for (const auto& [key, value] : store_.values) pending_.push_back(Changed{key, value});
  store_.clients.push_back(this);
}

SimulatedStore::Client::~Client() {
  std::erase(store_.clients, this);
  for (const auto& [key, value] : published_) {
    if (const auto found = store_.values.find(key);
        found != store_.values.end() && found->second == value) {
      store_.set(key, std::nullopt);
    }
  }
}

void SimulatedStore::Client::publish(std::string key, std::string value) {
  if (loss_untold_) return;
  requests_.push_back({true, [this, key = std::move(key), value = std::move(value)] {
                         if (store_.refuses && store_.refuses(key)) {
                           const Status why{Code::invalid_argument, "it is too large"};
                           return pending_.push_back(Refused{key, why});
                         }
                         // A key lapses with whoever published it last.
                         for (Client* client : store_.clients) client->published_.erase(key);
                         published_[key] = value;
                         store_.set(key, value);
                       }});
}

void SimulatedStore::Client::withdraw(std::string key) {
  requests_.push_back({false, [this, key = std::move(key)] {
                         published_.erase(key);
                         store_.set(key, std::nullopt);
                       }});
}

void SimulatedStore::Client::compare_and_set(std::string key, std::optional<std::string> expected,
                                             std::string desired, std::uint64_t request) {
  auto swap = [this, key = std::move(key), expected = std::move(expected),
               desired = std::move(desired), request] {
    const auto found = store_.values.find(key);
    const bool equal = found == store_.values.end() ? !expected : expected == found->second;
    if (equal) store_.set(key, desired);
    const auto now = store_.values.find(key);
    pending_.push_back(Swapped{
        request, equal,
        now == store_.values.end() ? std::nullopt : std::optional<std::string>(now->second)});
  };
  requests_.push_back({false, std::move(swap)});
}

std::span<const DirectoryEvent> SimulatedStore::Client::poll() {
  returned_ = std::exchange(arrived_, {});
  for (const DirectoryEvent& event : returned_) {
    if (std::holds_alternative<LeaseLost>(event)) loss_untold_ = false;
  }
  return returned_;
}

bool SimulatedStore::Client::advance_request() {
  if (requests_.empty()) return false;
  const Request request = std::move(requests_.front());
  requests_.pop_front();
  request.carry_out();
  return true;
}

bool SimulatedStore::Client::advance_change() {
  if (pending_.empty()) return false;
  arrived_.push_back(std::move(pending_.front()));
  pending_.pop_front();
  return true;
}

void SimulatedStore::Client::expire() {
  for (const auto& [key, value] : std::exchange(published_, {})) {
    store_.set(key, std::nullopt);
  }
  std::erase_if(requests_, [](const Request& each) { return each.publishes; });
  loss_untold_ = true;
  pending_.push_back(LeaseLost{{Code::peer_lost, "its lease has lapsed"}});
}

std::span<const ChannelEvent> SimulatedChannel::poll() {
  returned_ = std::exchange(waiting_, {});
  for (const ChannelEvent& event : returned_) {
    if (const auto* submission = std::get_if<Submission>(&event)) accepted_[submission->id] = true;
    if (const auto* lost = std::get_if<SessionLost>(&event)) lost_.insert(lost->session);
  }
  return returned_;
}

void SimulatedChannel::complete(CommandId id, const Outcome& outcome) {
  if (!accepted_.contains(id)) unknown.push_back(id);
  if (!outcomes.emplace(id, outcome).second) doubled.push_back(id);
}

std::optional<CommandId> SimulatedChannel::owed() const {
  for (const auto& [id, accepted] : accepted_) {
    if (!outcomes.contains(id) && !lost_.contains(id.session)) return id;
  }
  return std::nullopt;
}

SimulatedLoan::SimulatedLoan(std::vector<Tensor> tensors)
    : tensors_(std::move(tensors)), gate_(std::make_shared<std::atomic<std::uint64_t>>(0)) {
  for (Tensor& tensor : tensors_) {
    tensor.strides = plan::contiguous_strides(tensor.shape);
    tensor.bytes.resize(static_cast<std::size_t>(element_count(tensor.shape)) *
                        item_bytes(tensor.dtype));
    views_.push_back({tensor.bytes.data(), tensor.dtype, tensor.shape, tensor.strides});
  }
}

std::span<std::int64_t> SimulatedLoan::numbers(std::size_t at) {
  return {reinterpret_cast<std::int64_t*>(tensors_[at].bytes.data()),
          tensors_[at].bytes.size() / sizeof(std::int64_t)};
}

Node::Node(Cluster& cluster, Rank rank) : cluster_(cluster), rank_(rank) { restart(); }

void Node::restart(bool new_worker) {
  stopped_ = false;
  stopped_at_.reset();
  did_something_ = false;
  fabric::MemoryFabricOptions options{"rank " + std::to_string(rank_), "secret", &cluster_.clock_};
  options.arrives = [this](const fabric::Identity& peer) {
    const auto line = Weather::line(rank_, rank_of(peer));
    if (cluster_.weather.cut.contains(line)) return false;
    return !cluster_.weather.late.contains(line) || cluster_.random(8) == 0;
  };
  options.proceeds = [this](const fabric::Identity& peer) {
    if (cluster_.weather.network &&
        cluster_.weather.cut.contains(Weather::line(rank_, rank_of(peer)))) {
      return false;
    }
    return !cluster_.weather.slow.contains(rank_) || cluster_.random(8) == 0;
  };
  options.loses = [this](const fabric::Identity&) {
    return cluster_.weather.lossy && cluster_.loses(2);
  };
  options.host = cluster_.random(2) == 0 ? "one" : "other";
  options.most_waiting_messages = cluster_.weather.queue;
  options.full = [this] { return cluster_.weather.full.contains(rank_); };
  options.most_words = cluster_.weather.words;
  options.watches = !cluster_.weather.network;
  fabric_ = fabric::make_memory_fabric(cluster_.hub_, std::move(options));
  directory_ = std::make_unique<SimulatedStore::Client>(cluster_.store_);
  channel_ = std::make_unique<SimulatedChannel>();
  Channel* channel = channel_.get();
  if (cluster_.records) {
    recorder_ = std::make_unique<observe::Recorder>(observe::Labels{});
    observed_ = std::make_unique<ObservedChannel>(*channel_, *recorder_, rank_);
    channel = observed_.get();
  }
  AgentParts parts{*fabric_,
                   *channel,
                   *directory_,
                   state_,
                   [&cluster = cluster_] { return cluster.random(); },
                   "secret",
                   [this](Step step) {
                     if (!std::exchange(did_something_, true)) last_steps_.clear();
                     last_steps_.insert(step);
                     if (cluster_.on_step) cluster_.on_step(rank_, step);
                   }};
  parts.observed = observed_.get();
  ReporterOptions silent;
  silent.period = Duration::zero();
  agent_ = std::make_unique<Agent>(
      std::move(parts), AgentOptions{rank_, "simulation", cluster_.retain, std::move(silent)});
  if (new_worker) {
    session_ = ++cluster_.sessions_;
    sequence_ = 0;
  }
  channel_->push(SessionUp{session_, 1});
}

void Node::step() {
  did_something_ = false;
  const auto old = std::exchange(stopped_at_, std::nullopt);
  agent_->step(old.value_or(cluster_.clock_.now()));
}

void Node::stop() {
  stopped_ = true;
  stopped_at_ = cluster_.clock_.now();
}

void Node::kill() {
  agent_.reset();
  fabric_.reset();
  directory_.reset();
}

void Node::replace_worker() {
  channel_->push(SessionLost{session_, {Code::peer_lost, "its process has ended"}});
  session_ = ++cluster_.sessions_;
  sequence_ = 0;
  channel_->push(SessionUp{session_, 1});
}

void Node::lapse() { directory_->expire(); }

void Node::disconnect(Rank other) {
  fabric::break_connections(*cluster_.hub_, "rank " + std::to_string(rank_),
                            "rank " + std::to_string(other));
}

CommandId Node::submit(Command command, std::shared_ptr<Loan> loan, Deadline deadline) {
  const CommandId id{session_, ++sequence_};
  channel_->push(Submission{id, std::move(command), deadline, std::move(loan)});
  return id;
}

void Node::cancel(CommandId id, const Status& why) { channel_->push(Cancelled{id, why}); }

const Outcome* Node::outcome(CommandId id) const {
  const auto found = channel_->outcomes.find(id);
  return found == channel_->outcomes.end() ? nullptr : &found->second;
}

Cluster::Cluster(std::uint64_t seed)
    : random_(seed), losses_(~seed), hub_(fabric::make_memory_hub()) {}

Node& Cluster::add(Rank rank) { return *(nodes_[rank] = std::make_unique<Node>(*this, rank)); }

std::optional<Rank> Cluster::step() {
  clock_.advance(std::chrono::microseconds(1 + random(100)));
  auto at = nodes_.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random(nodes_.size())));
  Node& node = *at->second;
  if (!node.alive()) return std::nullopt;
  const auto what = random(4);
  if (what < 2) {
    if (weather.far.contains(node.rank_)) return std::nullopt;
    if (what == 0) node.directory_->advance_request();
    // Changes come one by one or in crowds: a rank that is slow need not fall behind for ever.
    while (what == 1 && node.directory_->advance_change() && random(8) != 0) continue;
    return std::nullopt;
  }
  if (node.stopped_) return std::nullopt;
  node.step();
  return node.rank_;
}

bool Cluster::run_until(const std::function<bool()>& holds, std::size_t most_steps) {
  for (std::size_t steps = 0; steps < most_steps; ++steps) {
    if (holds()) return true;
    step();
  }
  return holds();
}

}  // namespace tensorbus::bus::simulation
