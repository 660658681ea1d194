#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/log.h"
#include "bus/batch.h"
#include "fabric/routed_fabric.h"

namespace tensorbus::bus {
namespace {

// Whoever is in the record but registered otherwise now, or not at all.
std::optional<Rank> who_left(const Catalog& catalog, const std::string& batch, const Group& group,
                             const Generation& generation) {
  for (const auto& [rank, sender] : generation.senders) {
    std::shared_ptr<const BatchMember> now;
    for (const auto& [end, side] : group.sides) {
      if (now == nullptr) now = catalog.registration(batch, end, rank);
    }
    if (now == nullptr || !now->failed.empty() ||
        Sender{now->incarnation, now->registration} != sender) {
      return rank;
    }
  }
  return std::nullopt;
}

std::vector<std::pair<Rank, std::uint64_t>> signature(const Group& one, const Group& other) {
  std::vector<std::pair<Rank, std::uint64_t>> all;
  for (const Group* group : {&one, &other}) {
    for (const auto& [rank, member] : group->members) {
      all.emplace_back(rank, member->registration ^ member->incarnation);
    }
    all.emplace_back(-1, 0);
  }
  return all;
}

std::int64_t last_of(const BatchMember& member) {
  return member.versioned ? member.versioned->last : 0;
}

bool is_one_group(const Catalog& catalog, const std::string& batch, const Group& group,
                  const End& start) {
  const GroupFinding found = find_group(catalog, batch, {start});
  return !found.group || found.group->sides.size() == group.sides.size();
}

}  // namespace

bool Batch::one_way(Direction direction) const noexcept {
  return record_.versioned && record_.versioned->direction == direction;
}

void Batch::update() {
  if (closing_) return;
  try {
    find_groups();
    if (own_ && !one_way(Direction::recv)) {
      if (region_ == nullptr) expose();
      follow_own_generation();
    }
    if (remote_ && !one_way(Direction::send)) follow_their_generation();
  } catch (const FailedElsewhere& error) {
    // What is registered goes on with those it knows.
    return registering_ ? fail_registration(error.status(), false) : void();
  } catch (const Error& error) {
    return registering_ ? fail_registration(error.status(), true) : void();
  }
  check_registered();
}

// All registrations of the groups but our own.
KnownFailures Batch::others() const {
  KnownFailures others;
  for (const auto* group : {&own_, &remote_}) {
    if (!*group) continue;
    for (const auto& [rank, member] : (*group)->members) {
      if (member->registration != record_.registration) others.insert({rank, member->registration});
    }
  }
  return others;
}

// Who had a version before has changed its tensors: so will the others, in their own time. The same
// if we tried with other tensors before and they are those who did not fit.
bool Batch::waits_for_others_to_change() const {
  return last_of(record_) != 0 || std::ranges::includes(disputed_, others());
}

// The last complete groups are kept: what runs goes on when a rank is gone.
void Batch::find_groups() {
  // Those who did not fit have noticed it, too.
  for (const auto& failure : context_.catalog.failed(key_.batch)) {
    if (disputed_.contains(failure)) known_.insert(failure);
  }
  GroupFinding own = find_group(context_.catalog, key_.batch, record_.ends, known_);
  GroupFinding remote = find_group(context_.catalog, key_.batch, remote_ends(record_), known_);
  missing_ = own.missing;
  if (!missing_.empty() && !remote.missing.empty()) missing_ += "; ";
  missing_ += remote.missing;
  // Our own record may still be an older one: the store has not told us of the new one yet.
  if (own.group && own.group->members.at(key_.rank)->registration == record_.registration) {
    own_ = std::move(own.group);
  }
  if (remote.group) remote_ = std::move(remote.group);
  if (!own_ || !remote_) return;
  auto now = signature(*own_, *remote_);
  if (now == matched_) return;
  if (!is_one_group(context_.catalog, key_.batch, *remote_, remote_->name)) {
    throw Error(Code::invalid_argument,
                fmt::format("batch \"{}\": its tensors come from groups of senders that share no "
                            "rank; register them as batches of their own",
                            key_.batch));
  }
  try {
    check_tensors(*own_, *remote_);
  } catch (const Error& error) {
    if (!registering_ || !waits_for_others_to_change()) throw;
    missing_ = fmt::format("others have not changed their tensors: {}", error.what());
    remote_.reset();
    return;
  }
  can_send_ = may_send(*own_, *remote_);
  if (can_send_.ok()) can_send_ = are_named(*own_, *remote_);
  can_recv_ = may_send(*remote_, *own_);
  const Status wrong_way{Code::invalid_argument,
                         fmt::format("batch \"{}\" goes the other way", key_.batch)};
  if (one_way(Direction::recv)) can_send_ = wrong_way;
  if (one_way(Direction::send)) can_recv_ = wrong_way;
  readers_ = can_send_.ok() ? readers_of(*own_, *remote_, key_.rank, record_.versioned.has_value())
                            : std::vector<Rank>();
  matched_ = std::move(now);
}

std::vector<TensorView> Batch::ordered(const Group& sources) const {
  static constexpr std::int64_t nothing[] = {0};
  static constexpr std::int64_t stride[] = {1};
  std::vector<TensorView> views;
  for (const auto& item : item_order(sources, record_)) {
    views.push_back(item ? loan_->tensors().at(*item)
                         : TensorView{nullptr, Dtype::uint8, nothing, stride});
  }
  return views;
}

void Batch::replace(std::shared_ptr<Loan> loan) {
  loan_ = std::move(loan);
  if (reader_ != nullptr && remote_) reader_->replace(loan_, ordered(*remote_));
}

void Batch::expose() {
  region_ = context_.fabric.expose(ordered(*own_), loan_->gate(), loan_->lender());
}

bool Batch::fresh(const Group& group, const Generation* last) const {
  if (last == nullptr) return true;
  return std::ranges::none_of(group.members, [&](const auto& entry) {
    const auto sender = last->senders.find(entry.first);
    return sender != last->senders.end() &&
           sender->second.registration == entry.second->registration;
  });
}

void Batch::follow_own_generation() {
  const GenerationKey key{key_.batch, own_->name};
  const auto current = context_.catalog.generation(key);
  const auto raw = context_.catalog.raw_generation(key);
  const auto mine = current == nullptr ? nullptr : [&]() -> const Sender* {
    const auto found = current->senders.find(key_.rank);
    return found == current->senders.end() ? nullptr : &found->second;
  }();
  if (mine != nullptr && mine->registration == record_.registration) {
    if (current->ended) return end_generation(current->left, current->why);
    if (mine->incarnation != record_.incarnation) {
      propose_end(key, *current, key_.rank, "its agent was taken for dead");
      return end_generation(key_.rank, "this rank's agent was taken for dead");
    }
    if (const auto left = who_left(context_.catalog, key_.batch, *own_, *current)) {
      const std::string why = fmt::format("sender rank {} is gone or registers again", *left);
      propose_end(key, *current, *left, why);
      return end_generation(*left, why);
    }
    if (source_ == nullptr) {
      log::debug("bus: rank {}: generation {} of batch \"{}\" begins", key_.rank, current->number,
                 key_.batch);
      source_ = std::make_unique<Source>(context_, current->number);
      last_version_ = current->version;
      context_.at(Step::generation_begun);
    }
    return;
  }
  if (current != nullptr && !current->ended) {
    if (const auto left = who_left(context_.catalog, key_.batch, *own_, *current)) {
      propose_end(key, *current, *left,
                  fmt::format("sender rank {} is gone or registers again", *left));
    }
    return;
  }
  if (!fresh(*own_, current.get())) return;
  Generation next;
  next.number = current == nullptr ? 1 : current->number + 1;
  for (const auto& [rank, member] : own_->members) {
    next.senders[rank] = {member->incarnation, member->registration};
  }
  if (record_.versioned) {
    if (current != nullptr) next.version = current->version;
    for (const auto& [side, ranks] : context_.catalog.versions(key_.batch)) {
      for (const auto& [rank, version] : ranks) next.version = std::max(next.version, version);
    }
  }
  const std::string proposal = raw.value_or("");
  if (proposed_over_ == proposal) return;
  proposed_over_ = proposal;
  context_.directory.compare_and_set(to_text(key), raw, encode(next), 0);
}

void Batch::propose_end(const GenerationKey& key, const Generation& generation, Rank left,
                        const std::string& why) {
  const auto raw = context_.catalog.raw_generation(key);
  Generation ended = generation;
  ended.ended = true;
  ended.left = left;
  ended.why = why;
  context_.directory.compare_and_set(to_text(key), raw, encode(ended), 0);
}

void Batch::end_generation(Rank left, const std::string& why) {
  if (stale()) return;
  context_.at(Step::generation_ended);
  left_ = left;
  stale_ = {
      Code::failed,
      fmt::format("batch \"{}\": {}; every sender rank has to register it again", key_.batch, why)};
  log::info("bus: rank {}: {}", key_.rank, stale_.message);
  const Status lost{left == key_.rank ? Code::failed : Code::peer_lost, stale_.message};
  if (source_ != nullptr) {
    source_->end(why);
    if (!queue_.empty() && queue_.front().running) {
      queue_.front().why = lost;
      step_send(queue_.front());
    }
    source_.reset();
  }
  fail_queue(Direction::send, lost, left);
}

void Batch::follow_their_generation() {
  if (!can_recv_.ok()) return;
  const GenerationKey key{key_.batch, remote_->name};
  const auto current = context_.catalog.generation(key);
  if (current == nullptr) return;
  std::optional<Rank> left;
  std::string why = current->why;
  if (current->ended) {
    left = current->left;
  } else if ((left = who_left(context_.catalog, key_.batch, *remote_, *current))) {
    why = fmt::format("sender rank {} is gone or registers again", *left);
    propose_end(key, *current, *left, why);
  }
  if (reader_ == nullptr) reader_ = std::make_shared<Reader>(context_, loan_);
  const bool over = left || reader_->generation() != current->number;
  if (over && (!reader_->idle() || reader_->started_in() != 0)) {
    const Rank who = left.value_or(current->senders.begin()->first);
    const Status lost{Code::peer_lost, fmt::format("batch \"{}\": {}", key_.batch,
                                                   why.empty() ? "the senders began anew" : why)};
    if (!reader_->idle()) reader_->leave(lost, who);
    // Its sources may have been lost before the store told so: what waits for them fails too.
    if (reader_->started_in() != 0) fail_queue(Direction::recv, lost, who);
    reader_->forget_start();
  }
  if (left || reader_->started() || !own_) return;
  // The record speaks of these registrations: plans are made from no others.
  const bool same = std::ranges::all_of(remote_->members, [&](const auto& entry) {
    const auto sender = current->senders.find(entry.first);
    return sender != current->senders.end() &&
           sender->second == Sender{entry.second->incarnation, entry.second->registration};
  });
  if (!same) return;
  const Passage passage = make_passage(*remote_, *own_, key_.rank);
  if (!reader_->idle() && reader_->fingerprint() != passage.fingerprint) {
    // Made from older records than the senders have: they would not take it.
    reader_->leave({Code::withdrawn, "the plan has changed"}, std::nullopt);
  }
  if (reader_->idle() && !reader_->waits()) join(*current, passage);
}

void Batch::join(const Generation& generation, const Passage& passage) {
  JoinPlan plan;
  plan.batch = key_.batch;
  plan.group = remote_->name;
  plan.generation = generation.number;
  plan.side = key_.side;
  plan.registration = record_.registration;
  plan.fingerprint = passage.fingerprint;
  plan.streams = plan::read_streams(passage.plans, key_.rank, record_.chunk_bytes);
  plan.targets = ordered(*remote_);
  for (const auto& [rank, member] : remote_->members) {
    const Verify verify = std::max(record_.verify, member->verify);
    if (verify != Verify::off) plan.verify[rank] = verify;
  }
  if (!plan.verify.empty()) {
    plan.labels = std::make_shared<const std::vector<std::string>>(labels_of(*remote_));
  }
  std::set<Rank> far;  // read together with sources on other hosts: all in the same way
  for (const plan::Stream& stream : plan.streams) {
    std::set<std::string> hosts;
    for (const Rank rank : stream.source.ranks) {
      for (const auto& [end, side] : remote_->sides) {
        if (const auto member = context_.catalog.member({end, rank})) {
          plan.sources[rank] = member->address;
        }
      }
      hosts.insert(plan.sources[rank].identity.host);
    }
    if (hosts.size() > 1) far.insert(stream.source.ranks.begin(), stream.source.ranks.end());
  }
  if (record_.versioned && plan.sources.empty()) {
    // Nothing to read, but the versions to follow.
    const Rank rank = first_source(*remote_);
    const End& end = remote_->sides.begin()->first;
    if (const auto member = context_.catalog.member({end, rank})) {
      plan.sources[rank] = member->address;
    }
  }
  for (const Rank rank : far) plan.sources[rank] = fabric::network_only(plan.sources[rank]);
  reader_->join(std::move(plan));
}

Batch::Taken Batch::subscribe(const LinkPtr& link, const AgentMessage& message) {
  const auto& wish = std::get<Subscribe>(message.body);
  if (wish.batch != key_.batch || closing_) return Taken::no;
  if (!own_) return Taken::later;
  if (wish.group != own_->name) return Taken::no;
  if (source_ == nullptr || message.generation > source_->generation()) return Taken::later;
  const auto refuse = [&](Status status) {
    context_.links.send(*link, message.generation, message.serial,
                        Subscribed{std::move(status), 0, 0});
    return Taken::done;
  };
  if (message.generation < source_->generation()) {
    return refuse({Code::withdrawn, "that generation is over"});
  }
  try {
    const auto reader = context_.catalog.registration(BatchKey{key_.batch, wish.side, wish.reader});
    if (reader == nullptr || reader->registration != wish.registration) return Taken::later;
    const GroupFinding found = find_group(context_.catalog, key_.batch, reader->ends, known_);
    if (!found.group) return Taken::later;
    check_tensors(*own_, *found.group);
    if (const Status status = may_send(*own_, *found.group); !status.ok()) return refuse(status);
    const Passage passage = make_passage(*own_, *found.group, wish.reader);
    if (passage.fingerprint != wish.fingerprint) return Taken::later;
    const auto streams = plan::read_streams(passage.plans, wish.reader, reader->chunk_bytes);
    std::vector<std::shared_ptr<Digest>> digests;
    std::int64_t bytes = 0;
    const Verify verify = std::max(record_.verify, reader->verify);
    for (std::size_t at = 0; at < streams.size(); ++at) {
      if (std::ranges::find(streams[at].source.ranks, key_.rank) ==
          streams[at].source.ranks.end()) {
        continue;
      }
      region_->serve(message.serial + at + 1, streams[at]);
      bytes += streams[at].payload_bytes;
      if (verify == Verify::off) continue;
      const plan::Stream own =
          streams[at].source.reduces() ? member_stream(streams[at], key_.rank) : streams[at];
      auto digest = source_->find_digest(own, verify);
      if (digest == nullptr) {
        digest = std::make_shared<Digest>(own, Digest::End::source, verify, ordered(*own_),
                                          loan_->lender());
      }
      digests.push_back(std::move(digest));
    }
    source_->subscribe(link, message.serial, wish.reader, region_->number(), bytes,
                       std::move(digests));
  } catch (const Error& error) {
    return refuse(error.status());
  }
  return Taken::done;
}

void Batch::check_registered() {
  if (!registering_ || !own_ || !remote_ || matched_.empty()) return;
  if (can_recv_.ok()) {
    const auto theirs = context_.catalog.generation({key_.batch, remote_->name});
    const bool comes = theirs == nullptr || !theirs->ended || fresh(*remote_, theirs.get());
    if (comes && (reader_ == nullptr || !reader_->started())) {
      missing_ = "the senders' generation has not begun";
      if (reader_ != nullptr && theirs != nullptr) {
        missing_ = "not all senders have taken this rank's subscription";
        if (!reader_->trouble().empty()) missing_ += ": " + reader_->trouble();
      }
      return;
    }
  }
  if (can_send_.ok()) {
    const auto ours = context_.catalog.generation({key_.batch, own_->name});
    const bool comes = ours == nullptr || !ours->ended || fresh(*own_, ours.get());
    if (comes && !stale()) {
      if (source_ == nullptr) {
        missing_ = "the generation has not begun";
        return;
      }
      std::vector<Rank> absent;
      for (const Rank reader : readers_) {
        if (!source_->has_started(reader)) absent.push_back(reader);
      }
      if (!absent.empty()) {
        missing_ = fmt::format("reader rank {} has not subscribed", fmt::join(absent, ", "));
        return;
      }
    }
  }
  answer(std::exchange(registering_, std::nullopt)->id, Status{});
}

void Batch::fail_registration(const Status& why, bool tell) {
  disputed_ = others();
  if (tell) {
    // The others must know, and those who come later.
    record_.failed = why.message;
    context_.directory.publish(to_text(key_), encode(record_));
  }
  answer(std::exchange(registering_, std::nullopt)->id, why);
  close(std::nullopt, why);
}

}  // namespace tensorbus::bus
