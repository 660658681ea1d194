#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/refuse.h"
#include "bus/agent/agent.h"
#include "bus/channel/names.h"

namespace tensorbus::bus {
namespace {

constexpr std::int64_t smallest_chunk = plan::part_alignment;
// One to read while another is written.
constexpr std::size_t fewest_kept = 2;

// What streams are cut into: a wish, brought to what every fabric can do.
std::int64_t chunk_bytes(const std::optional<std::int64_t>& wish) {
  if (!wish) return plan::default_chunk_bytes;
  if (*wish < 1) refuse(fmt::format("a bucket size of {} bytes; it must be positive", *wish));
  const std::int64_t bytes = std::clamp(*wish, smallest_chunk, plan::default_chunk_bytes);
  return bytes / plan::part_alignment * plan::part_alignment;
}

// Where the state keeps what a client asked for.
std::string state_key(std::uint64_t session, const PairKey& key) {
  return fmt::format("session/{}/{}", session, to_text(key));
}

bool same_side(const InitPair& a, const InitPair& b) {
  return a.remote == b.remote && a.world_size == b.world_size && a.layout == b.layout;
}

}  // namespace

void Agent::init_pair(const Submission& submission, const InitPair& pair) {
  check_names(pair);
  if (pair.local == pair.remote) {
    refuse(
        fmt::format("pair \"{}\": local and remote name are both \"{}\"", pair.pair, pair.local));
  }
  const End end{pair.pair, pair.local};
  const auto found = pairs_.find(end);
  if (found != pairs_.end() && found->second.lasts && !same_side(found->second.pair, pair)) {
    for (const auto& [rank, member] : catalog_.members(end)) {
      if (rank == context_.rank || !member->failed.empty()) continue;
      refuse(fmt::format("{} is in use by rank {} with another layout, size or remote name",
                         to_string(end), rank));
    }
  }
  // First of all: what cannot be kept is refused.
  const std::string kept = state_key(submission.id.session, {end, context_.rank});
  parts_.state.put(kept, encode(submission.command));
  forgotten_.erase(kept);
  PairHere& here = pairs_[end];
  const std::uint64_t before = here.session != 0 ? incarnation(here.session) : 0;
  const bool again =
      here.lasts && same_side(here.pair, pair) && before == incarnation(submission.id.session);
  here.pair = pair;
  here.sessions.insert(submission.id.session);
  here.waiting.emplace_back(submission.id, submission.deadline);
  context_.at(Step::pairing);
  here.established = false;
  if (!again) {
    here.session = submission.id.session;
    here.attempt = parts_.random();
    here.lasts = false;
    here.known.merge(failures(catalog_, pair));
    publish(here, "");
  }
  changed_pairs_ = true;
}

void Agent::publish(const PairHere& here, const std::string& failed) {
  PairMember member;
  member.incarnation = incarnation(here.session);
  member.attempt = here.attempt;
  member.failed = failed;
  member.address = parts_.fabric.address();
  member.world_size = here.pair.world_size;
  member.remote = here.pair.remote;
  member.layout = here.pair.layout;
  parts_.directory.publish(to_text(PairKey{{here.pair.pair, here.pair.local}, context_.rank}),
                           encode(member));
}

void Agent::assess_pair(const End& end) {
  PairHere& here = pairs_.at(end);
  if (here.established || here.attempt == 0) return;
  // What the store shows of this rank is what the others see.
  const auto shown = catalog_.member({end, context_.rank});
  if (shown == nullptr || shown->attempt != here.attempt) return;
  const Verdict verdict = assess(catalog_, here.pair, here.known);
  if (!verdict.failed.ok()) {
    if (!here.waiting.empty()) fail_pair(end, verdict.failed, !verdict.elsewhere);
    return;
  }
  if (!verdict.ready) return;
  here.established = true;
  here.lasts = true;
  for (const auto& [id, deadline] : std::exchange(here.waiting, {})) answer(id);
}

void Agent::fail_pair(const End& end, const Status& why, bool tell) {
  PairHere& here = pairs_.at(end);
  if (tell) {
    publish(here, why.message);
  } else {
    parts_.directory.withdraw(to_text(PairKey{end, context_.rank}));
  }
  for (const auto& [id, deadline] : std::exchange(here.waiting, {})) answer(id, why);
  // Every rank that was there had the same verdict.
  for (const std::string& side : {here.pair.local, here.pair.remote}) {
    for (const auto& [rank, member] : catalog_.members({end.pair, side})) {
      here.known.insert({rank, member->attempt});
    }
  }
  here.lasts = false;
  here.attempt = 0;
}

void Agent::end_waiting(PairHere& here) {
  bool ended = false;
  std::erase_if(here.waiting, [&](const auto& each) {
    if (each.second.at() > context_.now) return false;
    const Verdict verdict = assess(catalog_, here.pair, here.known);
    std::string missing = verdict.missing;
    if (const Status& away = context_.store_is_away; !away.ok()) {
      missing += "; the store cannot be reached: " + away.message;
    }
    answer(each.first, {Code::timeout,
                        fmt::format("pair \"{}\" is not complete: {}", here.pair.pair, missing)});
    ended = true;
    return true;
  });
  if (ended && !here.lasts && here.waiting.empty()) {
    parts_.directory.withdraw(to_text(PairKey{{here.pair.pair, here.pair.local}, context_.rank}));
    here.attempt = 0;
  }
}

void Agent::drop_pair(const End& end, std::uint64_t session) {
  const auto found = pairs_.find(end);
  if (found == pairs_.end() || found->second.sessions.erase(session) == 0) return;
  // A client that outlives this agent asks the next one.
  if (!closing_) forget(state_key(session, {end, context_.rank}));
  if (!found->second.sessions.empty()) return;
  parts_.directory.withdraw(to_text(PairKey{end, context_.rank}));
  pairs_.erase(found);
}

void Agent::restore(std::uint64_t session) {
  for (const auto& [key, value] : parts_.state.scan(fmt::format("session/{}/", session))) {
    try {
      const Command command = decode_command(value);
      const auto& pair = std::get<InitPair>(command);
      PairHere& here = pairs_[{pair.pair, pair.local}];
      here.sessions.insert(session);
      if (here.session == session) continue;
      here.pair = pair;
      here.session = session;
      here.attempt = parts_.random();
      here.established = true;
      here.lasts = true;
      publish(here, "");
    } catch (const std::exception& error) {
      log::warn("bus: rank {}: the state {} is ignored: {}", rank(), key, error.what());
    }
  }
}

End Agent::local_end(const std::string& pair, const std::optional<std::string>& role) const {
  std::vector<End> here;
  for (auto each = pairs_.lower_bound({pair, ""}); each != pairs_.end() && each->first.pair == pair;
       ++each) {
    here.push_back(each->first);
  }
  if (here.empty()) refuse(fmt::format("pair \"{}\" is not known; call init_pair first", pair));
  if (here.size() == 1) return here.front();
  for (const End& end : here) {
    if (role && end.side == *role) return end;
  }
  refuse(fmt::format("rank {} has \"{}\" and \"{}\" of pair \"{}\"; role must say which is meant",
                     context_.rank, here[0].side, here[1].side, pair));
}

std::optional<BatchMember> Agent::record_of(const Submission& submission,
                                            const RegisterBatch& command) {
  BatchMember record;
  record.incarnation = incarnation(submission.id.session);
  record.registration = command.registration;
  record.chunk_bytes = chunk_bytes(command.chunk_bytes);
  record.verify = command.verify;
  record.layouts = command.layouts;
  record.versioned = command.versioned;
  std::set<std::string> pairs(command.pairs.begin(), command.pairs.end());
  for (const BatchItem& item : command.items) pairs.insert(item.pair);
  std::map<End, std::string> ends;
  for (const std::string& pair : pairs) {
    const End end = local_end(pair, command.role);
    const PairHere& here = pairs_.at(end);
    if (!here.established) {
      if (here.waiting.empty() && !here.lasts) {
        refuse(fmt::format("pair \"{}\" is not complete; call init_pair first", pair));
      }
      return std::nullopt;
    }
    ends[end] = here.pair.remote;
  }
  for (const auto& [end, remote] : ends) {
    record.ends.push_back(end);
    record.remotes.push_back(remote);
  }
  return record;
}

void Agent::refuse_batch(const Submission& submission, const RegisterBatch& command,
                         BatchMember record, const std::string& side) {
  const Status why{Code::invalid_argument, command.refused};
  const auto place = batches_.find({command.batch, side});
  if (place != batches_.end()) {
    place->second->give_way();
    place->second->close(std::nullopt, why, Batch::Manner::back_soon);
    ending_.push_back(std::move(place->second));
    batches_.erase(place);
  }
  record.failed = command.refused;
  record.refused = true;
  parts_.directory.publish(to_text(BatchKey{command.batch, side, context_.rank}), encode(record));
  refused_[{command.batch, side}] = submission.id.session;
  disputed_[{command.batch, side}].insert({context_.rank, command.registration});
  answer(submission.id, why);
}

// A shelf has memory for every tensor of every version that it keeps.
void Agent::check_loan(const Submission& submission, const RegisterBatch& command) {
  const auto& versioned = command.versioned;
  const bool publishes = versioned && versioned->keep && command.refused.empty() &&
                         versioned->direction == Direction::send;
  const std::size_t times = publishes ? static_cast<std::size_t>(*versioned->keep) : 1;
  if (publishes && times < fewest_kept) {
    refuse(fmt::format("batch \"{}\": a shelf keeps at least {} versions", command.batch,
                       fewest_kept));
  }
  if (submission.loan == nullptr ||
      submission.loan->tensors().size() != times * command.items.size()) {
    refuse(fmt::format("batch \"{}\": the memory of its tensors was not passed", command.batch));
  }
  if (publishes && submission.loan->lender() != nullptr) {
    refuse(fmt::format("batch \"{}\": the memory of a shelf lies in the pool", command.batch));
  }
}

void Agent::register_batch(const Submission& submission, const RegisterBatch& command) {
  check_names(command);
  if (command.items.empty() && command.pairs.empty()) {
    refuse(fmt::format("batch \"{}\" has no tensors", command.batch));
  }
  check_loan(submission, command);
  std::optional<BatchMember> ready = record_of(submission, command);
  if (!ready) {
    deferred_.push_back(submission);
    return;
  }
  BatchMember& record = *ready;
  const std::string side = command.role.value_or(
      local_end(command.items.empty() ? command.pairs.front() : command.items.front().pair,
                command.role)
          .side);
  if (!command.refused.empty()) return refuse_batch(submission, command, record, side);
  std::map<std::string, std::pair<bool, std::set<std::string>>> names;
  for (const BatchItem& item : command.items) {
    const End end = local_end(item.pair, command.role);
    const auto at = std::ranges::lower_bound(record.ends, end) - record.ends.begin();
    element_count(item.shape);
    record.tensors.push_back({static_cast<std::size_t>(at), item.name, item.dtype, item.shape,
                              item.global_shape, item.layout, item.start});
    auto [entry, first] = names.try_emplace(item.pair, !item.name.empty(), std::set<std::string>());
    if (entry->second.first == item.name.empty()) {
      refuse(
          fmt::format("batch \"{}\": of the tensors of pair \"{}\" some have a name and some "
                      "have none",
                      command.batch, item.pair));
    }
    const bool again = !item.name.empty() && !entry->second.second.insert(item.name).second;
    if (again && !item.start) {
      refuse(fmt::format("batch \"{}\": two tensors of pair \"{}\" are named \"{}\"", command.batch,
                         item.pair, item.name));
    }
  }
  const BatchKey key{command.batch, side, context_.rank};
  if (record.versioned && record.versioned->keep) {
    record.versioned->last = std::max(record.versioned->last, shelves_.last_begun(key));
  }
  auto& place = batches_[{command.batch, side}];
  if (place != nullptr && place->self().record.registration == command.registration) {
    return replace_memory(submission, *place, record);
  }
  if (place != nullptr) {
    // A batch that is closing has memory to give back, but its name is free.
    if (!place->self().membership.stale() && !place->self().membership.closing()) {
      refuse(fmt::format("batch \"{}\" is registered already; close it first", command.batch));
    }
    disputed_[{command.batch, side}] = place->disputed();
    place->give_way();
    place->close(std::nullopt, {Code::cancelled, "the batch was registered again"},
                 Batch::Manner::back_soon);
    ending_.push_back(std::move(place));
  }
  place = std::make_unique<Batch>(context_, shelves_, key, submission.id.session, std::move(record),
                                  submission.loan, disputed_[{command.batch, side}]);
  place->register_for(submission.id, submission.deadline);
  refused_.erase({command.batch, side});
  changed_.insert(command.batch);
}

void Agent::replace_memory(const Submission& submission, Batch& batch, const BatchMember& record) {
  if (!record.versioned || record.versioned->direction != Direction::recv ||
      record.tensors != batch.self().record.tensors) {
    refuse(
        fmt::format("batch \"{}\": only memory that is received into can be replaced, by such "
                    "of the same types and shapes",
                    batch.self().key.batch));
  }
  if (!batch.replace(submission.loan)) {
    refuse(fmt::format("batch \"{}\" is being received", batch.self().key.batch));
  }
  answer(submission.id);
}

Batch& Agent::find_batch(const std::string& batch, const std::optional<std::string>& role) {
  std::vector<Batch*> found;
  for (auto each = batches_.lower_bound({batch, ""});
       each != batches_.end() && each->first.first == batch; ++each) {
    const auto covers = [&](const End& end) { return end.side == *role; };
    if (!role || std::ranges::any_of(each->second->self().record.ends, covers)) {
      found.push_back(each->second.get());
    }
  }
  if (found.empty()) {
    refuse(fmt::format("batch \"{}\" is not registered{}", batch,
                       role ? fmt::format(" under the name \"{}\"", *role) : std::string()));
  }
  if (found.size() > 1) {
    refuse(
        fmt::format("rank {} has registered batch \"{}\" under two names; role must say which "
                    "is meant",
                    context_.rank, batch));
  }
  return *found.front();
}

void Agent::transfer(const Submission& submission, const Transfer& command) {
  find_batch(command.batch, command.role).transfer(submission.id, command, submission.deadline);
}

void Agent::publish(const Submission& submission, const Publish& command) {
  find_batch(command.batch, command.role).publish(submission.id, command, submission.deadline);
}

void Agent::shelve(const Submission& submission, const Shelve& command) {
  find_batch(command.batch, command.role).shelve(submission.id, command);
}

void Agent::pull(const Submission& submission, const Pull& command) {
  find_batch(command.batch, command.role).pull(submission.id, command, submission.deadline);
}

void Agent::query_newest(const Submission& submission, const QueryNewest& command) {
  find_batch(command.batch, command.role).ask_newest(submission.id);
}

void Agent::query(const Submission& submission, const QuerySignal& command) {
  Queries& queries = find_batch(command.batch, command.role).exchange().queries();
  queries.ask(submission.id, command, submission.deadline);
}

void Agent::query_versions(const Submission& submission, const QueryVersions& command) {
  find_batch(command.batch, command.role)
      .exchange()
      .queries()
      .ask_versions(submission.id, submission.deadline);
}

void Agent::close_batch(const Submission& submission, const CloseBatch& command) {
  for (const auto& [key, batch] : batches_) {
    if (key.first == command.batch && batch->self().record.registration == command.registration) {
      batch->close(submission.id, {Code::cancelled, "the batch was closed"},
                   command.back_soon ? Batch::Manner::back_soon : Batch::Manner::orderly);
      return;
    }
  }
  std::erase_if(deferred_, [&](const Submission& each) {
    const auto* batch = std::get_if<RegisterBatch>(&each.command);
    if (batch == nullptr || batch->registration != command.registration) return false;
    answer(each.id, {Code::cancelled, "the batch was closed"});
    return true;
  });
  // The registration was closed before, or a newer registration has its name: the newer one stays.
  answer(submission.id);
}

}  // namespace tensorbus::bus
