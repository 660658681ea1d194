#include "bus/agent/agent.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "base/overloaded.h"
#include "bus/files/heartbeat.h"

namespace tensorbus::bus {
namespace {

constexpr Duration heartbeat_every = std::chrono::seconds(1);
// A peer that asks for more is not one of ours.
constexpr std::size_t most_held = 65'536;

}  // namespace

Agent::Agent(AgentParts parts, AgentOptions options)
    : parts_(std::move(parts)),
      options_(std::move(options)),
      connections_(parts_.fabric, parts_.secret),
      context_{options_.rank, parts_.fabric,  connections_,  operations_,   parts_.directory,
               catalog_,      parts_.channel, parts_.random, parts_.reached},
      shelves_(context_),
      content_queries_(context_),
      incarnation_(parts_.random()) {
  context_.at(Step::started);
  publish_self();
}

Agent::~Agent() = default;

void Agent::step(TimePoint now) {
  context_.now = now;
  for (const DirectoryEvent& event : parts_.directory.poll()) take(event);
  for (const fabric::Event& event : parts_.fabric.poll()) take(event);
  for (const ChannelEvent& event : parts_.channel.poll()) take(event);
  connections_.flush();

  if (std::exchange(changed_pairs_, false)) {
    std::vector<End> ends;
    for (const auto& [end, here] : pairs_) ends.push_back(end);
    for (const End& end : ends) assess_pair(end);
    for (const auto& [key, batch] : batches_) changed_.insert(key.first);
    for (const Submission& submission : std::exchange(deferred_, {})) dispatch(submission);
  }
  if (const auto changed = std::exchange(changed_, {}); !changed.empty()) update_batches(changed);
  for (auto& [end, here] : pairs_) end_waiting(here);
  std::erase_if(deferred_, [&](const Submission& each) {
    if (each.deadline.at() > now) return false;
    answer(each.id, {Code::timeout, "the pair that it names was not ready in time"});
    return true;
  });
  for (const auto& [key, batch] : batches_) batch->step();
  for (auto each = batches_.begin(); each != batches_.end();) {
    if (!each->second->over()) {
      ++each;
      continue;
    }
    disputed_.erase(each->first);
    if (!each->second->disputed().empty()) disputed_[each->first] = each->second->disputed();
    each = batches_.erase(each);
  }
  for (const auto& batch : ending_) batch->step();
  shelves_.step();
  content_queries_.answer();
  std::erase_if(ending_, [](const auto& batch) { return batch->over(); });
  announce_batches();
  if (now >= next_beat_) beat();
}

void Agent::fail(const Status& why) noexcept {
  const Status said{Code::failed,
                    fmt::format("the agent of rank {} has failed: {}", rank(), why.message)};
  log::error("bus: {}", said.message);
  parts_.channel.fail(said);
}

// A change of a generation is looked at when it comes, with the registrations of that moment: an
// agent that stood still hears at once of a beginning, of who left after how many rounds, and of
// what that rank registered next.
void Agent::update_batches(const std::set<std::string>& changed) {
  for (const auto& [key, batch] : batches_) {
    if (changed.contains(key.first)) batch->update();
  }
  for (const auto& batch : ending_) {
    if (changed.contains(batch->self().key.batch)) batch->update();
  }
  retry_subscribes();
}

// A registration is shown after the earlier one of the same name has left: the other ranks would
// take an earlier one that is replaced before for lost.
void Agent::announce_batches() {
  for (const auto& [key, batch] : batches_) {
    if (batch->self().membership.presence != Presence::hidden) continue;
    const bool waits = std::ranges::any_of(ending_, [&own = batch->self().key](const auto& before) {
      return before->self().key == own && before->self().membership.presence == Presence::leaving;
    });
    if (!waits) batch->announce();
  }
}

void Agent::answer(CommandId id, const Status& status) {
  Outcome outcome;
  outcome.status = status;
  parts_.channel.complete(id, outcome);
}

void Agent::take(const ChannelEvent& event) {
  std::visit(Overloaded{
                 [&](const Submission& submission) { dispatch(submission); },
                 [&](const Cancelled& cancelled) { cancel(cancelled.id, cancelled.reason); },
                 [&](const SessionUp& up) { begin_session(up.session); },
                 [&](const SessionLost& lost) {
                   const bool closed = lost.reason.ok();
                   end_session(
                       lost.session,
                       closed ? Status{Code::cancelled, "the client was closed"} : lost.reason,
                       closed ? Batch::Manner::orderly : Batch::Manner::lost);
                 },
             },
             event);
}

void Agent::dispatch(const Submission& submission) {
  try {
    if (closing_) throw Error(Code::cancelled, "the agent stops");
    if (!replaced_.ok()) throw Error(replaced_);
    std::visit(Overloaded{
                   [&](const InitPair& pair) { init_pair(submission, pair); },
                   [&](const RegisterBatch& batch) { register_batch(submission, batch); },
                   [&](const Transfer& moved) { transfer(submission, moved); },
                   [&](const Publish& command) { publish(submission, command); },
                   [&](const Shelve& command) { shelve(submission, command); },
                   [&](const Pull& command) { pull(submission, command); },
                   [&](const QueryNewest& asked) { query_newest(submission, asked); },
                   [&](const QueryContents& asked) { content_queries_.ask(submission, asked); },
                   [&](const QuerySignal& asked) { query(submission, asked); },
                   [&](const QueryVersions& asked) { query_versions(submission, asked); },
                   [&](const CloseBatch& closed) { close_batch(submission, closed); },
               },
               submission.command);
  } catch (...) {
    answer(submission.id, current_exception_status());
  }
}

void Agent::cancel(CommandId id, const Status& reason) {
  for (auto& [end, here] : pairs_) {
    if (std::erase_if(here.waiting, [&](const auto& each) { return each.first == id; }) > 0) {
      answer(id, reason);
      const End ended = end;
      if (!here.lasts && here.waiting.empty()) drop_pair(ended, here.session);
      return;
    }
  }
  if (std::erase_if(deferred_, [&](const auto& each) { return each.id == id; }) > 0) {
    return answer(id, reason);
  }
  if (content_queries_.cancel(id, reason)) return;
  for (const auto& [key, batch] : batches_) {
    if (batch->cancel(id, reason)) return;
  }
  for (const auto& batch : ending_) {
    if (batch->cancel(id, reason)) return;
  }
}

void Agent::begin_session(std::uint64_t session) {
  const bool fresh = !sessions_.contains(session);
  incarnation(session);
  if (fresh) restore(session);
}

void Agent::take(const DirectoryEvent& event) {
  std::visit(Overloaded{
                 [&](const Changed& changed) { record_changed(changed); },
                 [](const Swapped&) {},  // the record that is there now comes as a change
                 [&](const LeaseLost& lost) {
                   log::warn("bus: rank {} was taken for dead: {}; it joins anew", rank(),
                             lost.reason.message);
                   lease_lost();
                 },
                 [&](const Reachable& reachable) { store_reached(reachable.status); },
                 [&](const Refused& refused) { record_refused(refused); },
             },
             event);
}

void Agent::record_changed(const Changed& changed) {
  const auto key = catalog_.apply(changed);
  if (!key) return;
  std::visit(
      Overloaded{
          [&](const AgentKey& agent) {
            if (agent.rank == rank()) {
              look_at_self(changed.value);
            } else {
              admit(changed);
            }
          },
          [&](const CallerKey&) { admit(changed); }, [&](const PairKey&) { changed_pairs_ = true; },
          [&](const BatchKey& batch) { changed_.insert(batch.batch); },
          [&](const GenerationKey& generation) { update_batches({generation.batch}); },
          [&](const ShelfKey& shelf) { changed_.insert(shelf.batch.batch); },
          [](const VersionKey&) {},  // read from the catalog when somebody asks
      },
      *key);
}

void Agent::store_reached(const Status& status) {
  context_.store_is_away = status;
  if (status.ok()) {
    log::info("bus: rank {} reaches the store again", rank());
  } else if (status.code == Code::cancelled) {
    log::info("bus: rank {}: {}", rank(), status.message);
  } else {
    log::warn(
        "bus: rank {}: the store cannot be reached: {}; transfers go on, but nobody can join or "
        "register until it answers",
        rank(), status.message);
  }
}

void Agent::record_refused(const Refused& refused) {
  log::error("bus: rank {}: the store refuses {}: {}", rank(), refused.key, refused.reason.message);
  const Status why{refused.reason.code,
                   "the store refuses what others must know of it: " + refused.reason.message};
  const auto key = parse_key(refused.key);
  if (!key) return;
  std::visit(Overloaded{
                 [&](const PairKey& pair) {
                   if (pairs_.contains(pair.end)) fail_pair(pair.end, why, false);
                 },
                 [&](const BatchKey& batch) {
                   const auto found = batches_.find({batch.batch, batch.side});
                   if (found != batches_.end()) found->second->fail_registration(why, false);
                 },
                 // No command waits for these.
                 [](const OneOf<AgentKey, CallerKey, GenerationKey, VersionKey, ShelfKey> auto&) {},
             },
             *key);
}

void Agent::take(const fabric::Event& event) {
  std::visit(Overloaded{
                 [&](const fabric::Completion& done) { operations_.finish(done); },
                 [&](const fabric::Message& message) { take_message(message); },
                 [&](const fabric::PeerUp& up) {
                   const PeerConnectionPtr connection = connections_.on_up(up);
                   for (const auto& [key, batch] : batches_) batch->exchange().on_up(connection);
                   shelves_.on_up(connection);
                 },
                 [&](const fabric::PeerLost& lost) { peer_lost(lost); },
             },
             event);
}

void Agent::take_message(const fabric::Message& message) {
  const auto read = connections_.on_message(message);
  if (!read) return;
  const PeerConnectionPtr& connection = read->first;
  const AgentMessage& said = read->second;
  log::trace("bus: rank {} hears {} from {}", rank(), name_of(said.body),
             to_string(connection->peer()->identity()));
  const auto pass_on = [&] {
    for (const auto& [key, batch] : batches_) batch->exchange().on_message(connection, said);
    shelves_.on_message(connection, said);
  };
  std::visit(
      Overloaded{
          [&](const OneOf<Subscribe, Follow> auto&) { take_subscribe(connection, said); },
          [&](const Leave&) {
            std::erase_if(held_, [&](const Held& held) {
              return held.connection == connection && held.message.serial == said.serial;
            });
            pass_on();
          },
          [&](const ToSource auto&) { pass_on(); },
          [&](const ToReader auto&) { pass_on(); },
          [&](const ToPuller auto&) { pass_on(); },
          [&](const OneOf<Begun, Ended, Completed, Common, Hold, Sent, KnownVersions> auto&) {
            pass_on();
          },
      },
      said.body);
}

void Agent::peer_lost(const fabric::PeerLost& lost) {
  const PeerConnectionPtr connection = connections_.on_lost(lost);
  if (connection == nullptr) return;
  log::debug("bus: rank {} has lost {}: {}", rank(), to_string(lost.peer->identity()),
             lost.reason.message);
  std::erase_if(held_, [&](const Held& held) { return held.connection == connection; });
  for (const auto& [key, batch] : batches_) batch->exchange().on_lost(connection, lost.reason);
  for (const auto& batch : ending_) batch->exchange().on_lost(connection, lost.reason);
  shelves_.on_lost(connection);
}

void Agent::take_subscribe(const PeerConnectionPtr& connection, const AgentMessage& message) {
  for (const auto& [key, batch] : batches_) {
    if (batch->take(connection, message) == Taken::done) return;
  }
  if (shelves_.take(connection, message) == Taken::done) return;
  if (held_.size() < most_held) held_.push_back({connection, message});
}

void Agent::retry_subscribes() {
  for (const Held& held : std::exchange(held_, {})) take_subscribe(held.connection, held.message);
}

std::uint64_t Agent::incarnation(std::uint64_t session) {
  const auto [at, fresh] = sessions_.try_emplace(session);
  if (fresh) at->second = parts_.random();
  return at->second;
}

void Agent::publish_self() {
  parts_.directory.publish(to_text(AgentKey{rank()}),
                           encode(AgentRecord{incarnation_, parts_.fabric.address()}));
}

// Two agents that start at once both find the rank free; the agent whose record is replaced gives
// way.
void Agent::look_at_self(const std::optional<std::string>& value) {
  if (!value || !replaced_.ok()) return;
  try {
    const AgentRecord record = decode_agent_record(*value);
    if (record.incarnation == incarnation_) {
      seen_self_ = true;
    } else if (seen_self_) {
      replaced_ = {Code::failed, fmt::format("another agent has taken rank {}: {}", rank(),
                                             to_string(record.address.identity))};
      log::error("bus: {}", replaced_.message);
      std::vector<std::uint64_t> sessions;
      for (const auto& [session, incarnation] : sessions_) sessions.push_back(session);
      for (const std::uint64_t session : sessions) {
        end_session(session, replaced_, Batch::Manner::lost);
      }
      shelves_.close();
    }
  } catch (const Error& error) {
    log::warn("bus: the record of rank {} is ignored: {}", rank(), error.what());
  }
}

void Agent::admit(const Changed& changed) {
  try {
    std::optional<fabric::Address> address;
    if (changed.value) address = decode_agent_record(*changed.value).address;
    parts_.fabric.admit(changed.key, address);
  } catch (const Error& error) {
    log::warn("bus: the record {} is ignored: {}", changed.key, error.what());
  }
}

void Agent::lease_lost() {
  publish_self();
  for (auto& [session, incarnation] : sessions_) incarnation = parts_.random();
  for (const auto& [end, here] : pairs_) {
    if (here.attempt != 0) publish(here, "");
  }
  for (const auto& [key, batch] : batches_) {
    batch->publish_as(incarnation(batch->self().session));
    changed_.insert(key.first);
  }
  shelves_.show_all();
}

void Agent::end_session(std::uint64_t session, const Status& why, Batch::Manner manner) {
  std::erase_if(deferred_, [&](const Submission& each) {
    if (each.id.session != session) return false;
    answer(each.id, why);
    return true;
  });
  content_queries_.end_session(session, why);
  for (const auto& [key, batch] : batches_) {
    if (batch->self().session == session) batch->close(std::nullopt, why, manner);
  }
  std::erase_if(refused_, [&](const auto& each) {
    if (each.second != session) return false;
    parts_.directory.withdraw(to_text(BatchKey{each.first.first, each.first.second, rank()}));
    return true;
  });
  std::vector<End> ends;
  for (auto& [end, here] : pairs_) {
    std::erase_if(here.waiting, [&](const auto& each) {
      if (each.first.session != session) return false;
      answer(each.first, why);
      return true;
    });
    ends.push_back(end);
  }
  for (const End& end : ends) drop_pair(end, session);
  sessions_.erase(session);
}

// Whoever looks for the agent's signs of life finds an old one: no reason for the agent to end.
void Agent::beat() {
  next_beat_ = context_.now + heartbeat_every;
  try {
    write_state();
    if (std::exchange(cannot_write_, false))
      log::info("bus: rank {}: its state is written again", rank());
  } catch (const std::exception& error) {
    if (std::exchange(cannot_write_, true)) return;
    log::error("bus: rank {} shows no heartbeat until that is over: {}", rank(), error.what());
  }
}

void Agent::write_state() {
  for (const std::string& key : std::set(forgotten_)) {
    parts_.state.erase(key);
    forgotten_.erase(key);
  }
  std::string current;
  for (const auto& [key, batch] : batches_) {
    if (current.empty()) current = batch->current();
  }
  parts_.state.put("heartbeat", encode(Heartbeat{wall_clock_ns(), options_.space, current}));
}

// The key is erased with the next heartbeat if the state cannot be written now.
void Agent::forget(const std::string& key) noexcept try {
  parts_.state.erase(key);
} catch (const std::exception&) {
  forgotten_.insert(key);
}

bool Agent::arm() {
  return parts_.channel.arm() && parts_.directory.arm() && !connections_.waiting() &&
         parts_.fabric.arm();
}

std::array<int, 3> Agent::fds() const noexcept {
  return {parts_.channel.fd(), parts_.directory.fd(), parts_.fabric.fd()};
}

TimePoint Agent::wake_at() const {
  TimePoint at = std::min({next_beat_, parts_.fabric.wake_at(), parts_.channel.wake_at(),
                           shelves_.wake_at(), content_queries_.wake_at()});
  for (const auto& [end, here] : pairs_) {
    for (const auto& [id, deadline] : here.waiting) at = std::min(at, deadline.at());
  }
  for (const Submission& each : deferred_) at = std::min(at, each.deadline.at());
  for (const auto& [key, batch] : batches_) at = std::min(at, batch->wake_at());
  return at;
}

void Agent::close() {
  closing_ = true;
  const Status why{Code::cancelled, "the agent stops"};
  std::vector<std::uint64_t> sessions;
  for (const auto& [session, incarnation] : sessions_) sessions.push_back(session);
  for (const std::uint64_t session : sessions) {
    end_session(session, why, Batch::Manner::back_soon);
  }
  shelves_.close();
}

bool Agent::over() const { return closing_ && batches_.empty() && ending_.empty(); }

}  // namespace tensorbus::bus
