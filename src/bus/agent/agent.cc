#include "bus/agent/agent.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/overloaded.h"

namespace tensorbus::bus {
namespace {

void pass_on(Batch& batch, const Submission& submission, const Transfer& command) {
  batch.transfer(submission.id, command, submission.deadline);
}

void pass_on(Batch& batch, const Submission& submission, const Publish& command) {
  batch.publish(submission.id, command, submission.deadline);
}

void pass_on(Batch& batch, const Submission& submission, const Shelve& command) {
  batch.shelve(submission.id, command);
}

void pass_on(Batch& batch, const Submission& submission, const Pull& command) {
  batch.pull(submission.id, command, submission.deadline);
}

void pass_on(Batch& batch, const Submission& submission, const QueryNewest&) {
  batch.ask_newest(submission.id);
}

void pass_on(Batch& batch, const Submission& submission, const QueryStage& command) {
  batch.exchange().queries().ask_stage(submission.id, command);
}

void pass_on(Batch& batch, const Submission& submission, const QuerySignal& command) {
  batch.exchange().queries().ask(submission.id, command, submission.deadline);
}

void pass_on(Batch& batch, const Submission& submission, const QueryVersions&) {
  batch.exchange().queries().ask_versions(submission.id, submission.deadline);
}

}  // namespace

Agent::Agent(AgentParts parts, AgentOptions options)
    : parts_(std::move(parts)),
      options_(std::move(options)),
      connections_(parts_.fabric, parts_.secret),
      context_{options_.rank, parts_.fabric,  connections_,  operations_,   parts_.directory,
               catalog_,      parts_.channel, parts_.random, parts_.reached},
      shelves_(context_, options_.retain),
      sessions_(parts_.random),
      state_(parts_.state, options_.rank, options_.space),
      pairs_(context_, sessions_, state_),
      batches_(context_, shelves_, sessions_, pairs_),
      content_queries_(context_),
      list_keeper_(context_),
      incarnation_(parts_.random()) {
  context_.clock = parts_.clock;
  context_.at(Step::started);
  if (parts_.observed != nullptr) {
    context_.recorder = &parts_.observed->recorder();
    reporter_.emplace(*parts_.observed, options_.report);
  }
  share_cores();
  publish_self();
}

Agent::~Agent() = default;

void Agent::step(TimePoint now) {
  context_.now = now;
  hurries_ = false;
  for (const DirectoryEvent& event : parts_.directory.poll()) take(event);
  for (const fabric::Event& event : parts_.fabric.poll()) take(event);
  for (const ChannelEvent& event : parts_.channel.poll()) take(event);
  connections_.flush();

  if (pairs_.step()) batches_.look_at_pairs();
  batches_.update_changed();
  pairs_.expire();
  batches_.expire();
  batches_.step();
  keep_lists();
  content_queries_.answer();
  if (now >= state_.next_beat()) state_.beat(now, batches_.current());
  report(now);
}

bool Agent::look(TimePoint now) {
  parts_.channel.arm();
  step(now);
  return hurries_;
}

void Agent::report(TimePoint now) {
  if (!reporter_ || !reporter_->due(now) || closing_) return;
  reporter_->tell(now, parts_.directory, [this](const BatchSide& of) {
    const auto& [name, side] = of;
    Awaited awaited = batches_.awaited(name, side);
    const bool waits = !awaited.what.empty() || !awaited.ranks.empty();
    return waits ? awaited : pairs_.awaited({name, side});
  });
}

void Agent::keep_lists() {
  if (std::exchange(context_.records_changed, false)) list_keeper_.step(batches_.list_uses());
}

void Agent::fail(const Status& why) noexcept {
  const Status said{Code::failed,
                    fmt::format("the agent of rank {} has failed: {}", rank(), why.message)};
  log::error("bus: {}", said.message);
  parts_.channel.fail(said);
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
                   [&](const InitPair& pair) { pairs_.init(submission, pair); },
                   [&](const RegisterBatch& batch) { batches_.add(submission, batch); },
                   [&](const CloseBatch& closed) { batches_.close(submission, closed); },
                   [&](const QueryContents& asked) { content_queries_.ask(submission, asked); },
                   [&](const OneOf<Transfer, Publish, Shelve, Pull, QueryNewest, QueryStage,
                                   QuerySignal, QueryVersions> auto& command) {
                     hurries_ = true;
                     pass_on(batches_.find(command.batch, command.role), submission, command);
                   },
               },
               submission.command);
  } catch (...) {
    context_.answer(submission.id, current_exception_status());
  }
}

void Agent::cancel(CommandId id, const Status& reason) {
  if (pairs_.cancel(id, reason) || content_queries_.cancel(id, reason)) return;
  batches_.cancel(id, reason);
}

void Agent::begin_session(std::uint64_t session) {
  if (sessions_.knows(session)) return;
  sessions_.incarnation(session);
  pairs_.restore(session);
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
  context_.records_changed = true;
  std::visit(
      Overloaded{
          [&](const AgentKey& agent) {
            if (agent.rank == rank()) {
              look_at_self(changed.value);
            } else {
              admit(changed);
              count_agent(changed);
            }
          },
          [&](const CallerKey&) { admit(changed); }, [&](const PairKey&) { pairs_.note_change(); },
          [&](const BatchKey& batch) { batches_.note_change(batch.batch); },
          [&](const GenerationKey& generation) { batches_.update({generation.batch}); },
          [&](const ShelfKey& shelf) { batches_.note_change(shelf.batch.batch); },
          [&](const ListKey& list) {
            list_keeper_.note_change(list, changed.value.has_value());
            if (catalog_.refers_to(list.hash)) batches_.note_all_changed();
          },
          [](const VersionKey&) {},  // read from the catalog when somebody asks
      },
      *key);
}

void Agent::store_reached(const Status& status) {
  context_.store_is_away = status;
  if (!status.ok()) context_.count(&observe::Recorder::store_losses);
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
                 [&](const PairKey& pair) { pairs_.refused(pair.end, why); },
                 [&](const BatchKey& batch) { batches_.refused(batch, why); },
                 [&](const ListKey& list) { batches_.refused(list.hash, why); },
                 // No command waits for these.
                 [](const OneOf<AgentKey, CallerKey, GenerationKey, VersionKey, ShelfKey> auto&) {},
             },
             *key);
}

void Agent::take(const fabric::Event& event) {
  std::visit(Overloaded{
                 [&](const fabric::Completion& done) {
                   hurries_ = true;
                   operations_.finish(done);
                 },
                 [&](const fabric::Message& message) { take_message(message); },
                 [&](const fabric::PeerUp& up) {
                   const PeerConnectionPtr connection = connections_.on_up(up);
                   batches_.on_up(connection);
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
  std::visit(Overloaded{
                 [&](const OpensSubscription auto&) { batches_.take(connection, said); },
                 [&](const OfSubscription auto&) {
                   hurries_ = true;
                   if (batches_.on_message(connection, said)) return;
                   shelves_.on_message(connection, said);
                 },
             },
             said.body);
}

void Agent::peer_lost(const fabric::PeerLost& lost) {
  const PeerConnectionPtr connection = connections_.on_lost(lost);
  if (connection == nullptr) return;
  log::debug("bus: rank {} has lost {}: {}", rank(), to_string(lost.peer->identity()),
             lost.reason.message);
  if (context_.recorder != nullptr) context_.recorder->lose_peer(lost.reason.code);
  batches_.on_lost(connection, lost.reason);
  shelves_.on_lost(connection);
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
      for (const std::uint64_t session : sessions_.all()) {
        end_session(session, replaced_, Batch::Manner::lost);
      }
      shelves_.close();
    }
  } catch (const Error& error) {
    log::warn("bus: the record of rank {} is ignored: {}", rank(), error.what());
  }
}

void Agent::count_agent(const Changed& changed) {
  const std::string& here = parts_.fabric.address().identity.host;
  bool is_here = false;
  try {
    is_here = changed.value && decode_agent_record(*changed.value).address.identity.host == here;
  } catch (const Error&) {
    // admit() has logged what is wrong with the record.
  }
  const std::size_t before = agents_here_.size();
  if (is_here) {
    agents_here_.insert(changed.key);
  } else {
    agents_here_.erase(changed.key);
  }
  if (agents_here_.size() != before) share_cores();
}

void Agent::share_cores() {
  if (!parts_.copy_threads) return;
  context_.copy_threads = static_cast<std::int64_t>(parts_.copy_threads(agents_here_.size() + 1));
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
  if (reporter_) reporter_->repeat();
  publish_self();
  list_keeper_.forget();
  context_.records_changed = true;
  sessions_.renew();
  pairs_.publish_all();
  batches_.renew();
  shelves_.show_again();
}

void Agent::end_session(std::uint64_t session, const Status& why, Batch::Manner manner) {
  content_queries_.end_session(session, why);
  batches_.end_session(session, why, manner);
  pairs_.end_session(session, why, closing_ ? Pairs::Asking::kept : Pairs::Asking::forgotten);
  sessions_.forget(session);
}

bool Agent::arm() {
  return parts_.channel.arm() && parts_.directory.arm() && !connections_.waiting() &&
         parts_.fabric.arm();
}

std::array<int, 3> Agent::fds() const noexcept {
  return {parts_.channel.fd(), parts_.directory.fd(), parts_.fabric.fd()};
}

TimePoint Agent::wake_at() const {
  return std::min({state_.next_beat(), parts_.fabric.wake_at(), parts_.channel.wake_at(),
                   shelves_.wake_at(), pairs_.wake_at(), batches_.wake_at(),
                   content_queries_.wake_at(),
                   reporter_ && !closing_ ? reporter_->wake_at() : TimePoint::max()});
}

void Agent::close() {
  closing_ = true;
  const Status why{Code::cancelled, "the agent stops"};
  for (const std::uint64_t session : sessions_.all()) {
    end_session(session, why, Batch::Manner::back_soon);
  }
  shelves_.close();
}

bool Agent::over() const { return closing_ && batches_.over(); }

}  // namespace tensorbus::bus
