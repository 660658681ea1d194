#include "bus/agent/batches.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/refuse.h"

namespace tensorbus::bus {
namespace {

// A peer that asks for more is not one of ours.
constexpr std::size_t most_held = 65'536;

std::vector<bool> staged_of(const RegisterBatch& command) {
  std::vector<bool> staged;
  for (const BatchItem& item : command.items) staged.push_back(item.staged);
  return staged;
}

// The batch that SUBSCRIBE or FOLLOW is about.
const std::string& batch_of(const MessageBody& body) {
  const auto* wish = std::get_if<Subscribe>(&body);
  return wish != nullptr ? wish->batch : std::get<Follow>(body).batch;
}

}  // namespace

void Batches::add(const Submission& submission, const RegisterBatch& command) {
  std::optional<RegisteringRecord> made =
      record_of(submission, command, pairs_, sessions_.incarnation(submission.id.session));
  if (!made) {
    deferred_.push_back(submission);
  } else if (!command.refused.empty()) {
    refuse_registration(submission, command, std::move(*made));
  } else {
    put(submission, command, std::move(*made));
  }
}

void Batches::refuse_registration(const Submission& submission, const RegisterBatch& command,
                                  RegisteringRecord made) {
  const Status why{Code::invalid_argument, command.refused};
  const Name name{command.batch, made.side};
  if (const auto place = batches_.find(name); place != batches_.end()) {
    give_way(std::move(place->second), why);
    batches_.erase(place);
  }
  made.record.failed = command.refused;
  made.record.refused = true;
  context_.directory.publish(to_text(BatchKey{command.batch, made.side, context_.rank}),
                             encode(made.record));
  refused_[name] = submission.id.session;
  disputed_[name].insert({context_.rank, command.registration});
  context_.answer(submission.id, why);
}

void Batches::put(const Submission& submission, const RegisterBatch& command,
                  RegisteringRecord made) {
  const Name name{command.batch, made.side};
  const BatchKey key{command.batch, made.side, context_.rank};
  if (made.record.versioned && made.record.versioned->keep) {
    std::int64_t& last = made.record.versioned->last;
    last = std::max(last, shelves_.last_begun(key));
  }
  auto& place = batches_[name];
  if (place != nullptr && place->self().record.registration == command.registration) {
    return replace_memory(submission, *place, command, made.record);
  }
  if (place != nullptr) {
    // A batch that is closing has memory to give back, but its name is free.
    if (!place->self().membership.stale() && !place->self().membership.closing()) {
      refuse(fmt::format("batch \"{}\" is registered already; close it first", command.batch));
    }
    disputed_[name] = place->disputed();
    give_way(std::move(place), {Code::cancelled, "the batch was registered again"});
  }
  place = std::make_unique<Batch>(context_, shelves_, key, submission.id.session,
                                  std::move(made.record), submission.loan, disputed_[name]);
  place->exchange().sending().set_staged(staged_of(command));
  place->register_for(submission.id, submission.deadline);
  refused_.erase(name);
  changed_.insert(command.batch);
}

void Batches::give_way(std::unique_ptr<Batch> batch, const Status& why) {
  routes_.forget(*batch);
  batch->give_way();
  batch->close(std::nullopt, why, Batch::Manner::back_soon);
  ending_.push_back(std::move(batch));
}

void Batches::replace_memory(const Submission& submission, Batch& batch,
                             const RegisterBatch& command, const BatchMember& record) {
  const bool publishes =
      record.versioned && record.versioned->direction == Direction::send && record.versioned->keep;
  if (!record.versioned || publishes || !(record.tensors == batch.self().record.tensors)) {
    refuse(
        fmt::format("batch \"{}\": only memory of versions that are sent or received can be "
                    "replaced, by such of the same types and shapes",
                    batch.self().key.batch));
  }
  const Batch::Replaced replaced = batch.replace(submission.loan, staged_of(command));
  if (replaced == Batch::Replaced::busy) {
    refuse(fmt::format("batch \"{}\" is being {}", batch.self().key.batch,
                       record.versioned->direction == Direction::send ? "sent" : "received"));
  }
  const Status outdated{Code::withdrawn, "readers have come that want other types"};
  context_.answer(submission.id, replaced == Batch::Replaced::yes ? Status{} : outdated);
}

Batch& Batches::find(const std::string& batch, const std::optional<std::string>& role) {
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

void Batches::close(const Submission& submission, const CloseBatch& command) {
  const Status why{Code::cancelled, "the batch was closed"};
  for (const auto& [key, batch] : batches_) {
    if (key.first == command.batch && batch->self().record.registration == command.registration) {
      batch->close(submission.id, why,
                   command.back_soon ? Batch::Manner::back_soon : Batch::Manner::orderly);
      return;
    }
  }
  std::erase_if(deferred_, [&](const Submission& each) {
    const auto* batch = std::get_if<RegisterBatch>(&each.command);
    if (batch == nullptr || batch->registration != command.registration) return false;
    context_.answer(each.id, why);
    return true;
  });
  // The registration was closed before, or a newer registration has its name: the newer one stays.
  context_.answer(submission.id);
}

bool Batches::cancel(CommandId id, const Status& reason) {
  if (std::erase_if(deferred_, [&](const auto& each) { return each.id == id; }) > 0) {
    context_.answer(id, reason);
    return true;
  }
  const auto cancels = [&](const auto& batch) { return batch->cancel(id, reason); };
  for (const auto& [key, batch] : batches_) {
    if (cancels(batch)) return true;
  }
  return std::ranges::any_of(ending_, cancels);
}

void Batches::end_session(std::uint64_t session, const Status& why, Batch::Manner manner) {
  std::erase_if(deferred_, [&](const Submission& each) {
    if (each.id.session != session) return false;
    context_.answer(each.id, why);
    return true;
  });
  for (const auto& [key, batch] : batches_) {
    if (batch->self().session == session) batch->close(std::nullopt, why, manner);
  }
  std::erase_if(refused_, [&](const auto& each) {
    if (each.second != session) return false;
    const auto& [batch, side] = each.first;
    context_.directory.withdraw(to_text(BatchKey{batch, side, context_.rank}));
    return true;
  });
}

void Batches::refused(const BatchKey& key, const Status& why) {
  const auto found = batches_.find({key.batch, key.side});
  if (found != batches_.end()) found->second->fail_registration(why, false);
}

// Other ranks refer to the list, too: their registrations fail with those of this rank.
void Batches::refused(const ListHash& list, const Status& why) {
  for (const auto& [name, batch] : batches_) {
    if (batch->self().record.tensors.id.hash == list) batch->fail_registration(why, true);
  }
}

std::vector<ListKeeper::Use> Batches::list_uses() const {
  std::vector<ListKeeper::Use> uses;
  const auto add = [&](const Batch& batch) {
    const OwnRegistration& self = batch.self();
    const Presence presence = self.membership.presence;
    const bool seen = presence == Presence::shown || presence == Presence::leaving;
    if (seen && self.record.failed.empty()) uses.push_back({self.key, self.record});
  };
  for (const auto& [name, batch] : batches_) add(*batch);
  for (const auto& batch : ending_) add(*batch);
  for (const auto& shelf : shelves_.all()) {
    if (shelf->served()) uses.push_back({shelf->key(), shelf->member(), shelf->generation()});
  }
  return uses;
}

void Batches::renew() {
  for (const auto& [key, batch] : batches_) {
    batch->publish_as(sessions_.incarnation(batch->self().session));
    changed_.insert(key.first);
  }
}

std::string Batches::current() const {
  for (const auto& [key, batch] : batches_) {
    if (std::string current = batch->current(); !current.empty()) return current;
  }
  return "";
}

Awaited Batches::awaited(const std::string& batch, const std::string& role) {
  for (auto each = batches_.lower_bound({batch, ""});
       each != batches_.end() && each->first.first == batch; ++each) {
    if (role.empty() || each->first.second == role) return each->second->awaited();
  }
  return {};
}

// A change of a generation is looked at when it comes, with the registrations of that moment: an
// agent that stood still hears at once of a beginning, of who left after how many rounds, and of
// what that rank registered next.
void Batches::update(const std::set<std::string>& changed) {
  for (const auto& [key, batch] : batches_) {
    if (changed.contains(key.first)) batch->update();
  }
  for (const auto& batch : ending_) {
    if (changed.contains(batch->self().key.batch)) batch->update();
  }
  for (const Held& held : std::exchange(held_, {})) take(held.connection, held.message);
}

void Batches::note_all_changed() {
  for (const auto& [key, batch] : batches_) changed_.insert(key.first);
  for (const Held& held : held_) changed_.insert(batch_of(held.message.body));
}

void Batches::look_at_pairs() {
  note_all_changed();
  for (const Submission& submission : std::exchange(deferred_, {})) {
    try {
      add(submission, std::get<RegisterBatch>(submission.command));
    } catch (...) {
      context_.answer(submission.id, current_exception_status());
    }
  }
}

void Batches::update_changed() {
  if (const auto changed = std::exchange(changed_, {}); !changed.empty()) update(changed);
}

void Batches::expire() {
  std::erase_if(deferred_, [&](const Submission& each) {
    if (each.deadline.at() > context_.now) return false;
    context_.answer(each.id, {Code::timeout, "the pair that it names was not ready in time"});
    return true;
  });
}

void Batches::step() {
  for (const auto& [key, batch] : batches_) batch->step();
  remove_ended();
  for (const auto& batch : ending_) batch->step();
  shelves_.step();
  std::erase_if(ending_, [](const auto& batch) { return batch->over(); });
  announce();
}

void Batches::remove_ended() {
  for (auto each = batches_.begin(); each != batches_.end();) {
    if (!each->second->over()) {
      ++each;
      continue;
    }
    routes_.forget(*each->second);
    disputed_.erase(each->first);
    if (!each->second->disputed().empty()) disputed_[each->first] = each->second->disputed();
    each = batches_.erase(each);
  }
}

// A registration is shown after the earlier one of the same name has left: the other ranks would
// take an earlier one that is replaced before for lost.
void Batches::announce() {
  for (const auto& [key, batch] : batches_) {
    if (batch->self().membership.presence != Presence::hidden) continue;
    const bool waits = std::ranges::any_of(ending_, [&own = batch->self().key](const auto& before) {
      return before->self().key == own && before->self().membership.presence == Presence::leaving;
    });
    if (!waits) batch->announce();
  }
}

TimePoint Batches::wake_at() const {
  TimePoint at = TimePoint::max();
  for (const Submission& each : deferred_) at = std::min(at, each.deadline.at());
  for (const auto& [key, batch] : batches_) at = std::min(at, batch->wake_at());
  return at;
}

void Batches::take(const PeerConnectionPtr& connection, const AgentMessage& message) {
  const std::string& name = batch_of(message.body);
  for (auto each = batches_.lower_bound({name, ""});
       each != batches_.end() && each->first.first == name; ++each) {
    if (each->second->take(connection, message) == Taken::done) return;
  }
  if (shelves_.take(connection, message) == Taken::done) return;
  if (held_.size() < most_held) held_.push_back({connection, message});
}

bool Batches::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  if (std::holds_alternative<Leave>(message.body)) {
    std::erase_if(held_, [&](const Held& held) {
      return held.connection == connection && held.message.serial == message.serial;
    });
  }
  Batch* batch = routes_.find(connection, message, batches_,
                              [](const auto& each) -> Batch& { return *each.second; });
  if (batch != nullptr) batch->exchange().on_message(connection, message);
  return batch != nullptr;
}

void Batches::on_up(const PeerConnectionPtr& connection) {
  for (const auto& [key, batch] : batches_) batch->exchange().on_up(connection);
}

void Batches::on_lost(const PeerConnectionPtr& connection, const Status& why) {
  std::erase_if(held_, [&](const Held& held) { return held.connection == connection; });
  routes_.forget(*connection);
  for (const auto& [key, batch] : batches_) batch->exchange().on_lost(connection, why);
  for (const auto& batch : ending_) batch->exchange().on_lost(connection, why);
}

}  // namespace tensorbus::bus
