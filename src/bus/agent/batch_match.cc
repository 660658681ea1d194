#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/log.h"
#include "bus/agent/batch.h"
#include "fabric/route/address.h"

namespace tensorbus::bus {
namespace {

// For the store to take the news that this rank leaves. Without it the others take it for lost.
constexpr Duration patience_with_store = std::chrono::seconds(1);

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

std::string is_gone(Rank rank) {
  return fmt::format("sender rank {} is gone or registers again", rank);
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

// A rank's place in a generation, if this registration has one.
const Sender* place_in(const Generation* generation, Rank rank, const BatchMember& member) {
  if (generation == nullptr) return nullptr;
  const auto found = generation->senders.find(rank);
  const bool here =
      found != generation->senders.end() && found->second.registration == member.registration;
  return here ? &found->second : nullptr;
}

// The record speaks of just these registrations.
bool is_of(const Group& group, const Generation& generation) {
  return std::ranges::all_of(group.members, [&](const auto& entry) {
    const auto sender = generation.senders.find(entry.first);
    return sender != generation.senders.end() &&
           sender->second == Sender{entry.second->incarnation, entry.second->registration};
  });
}

// Registrations of the last generation beside newer ones: of two contents.
bool is_mixed(const Group& group, const Generation* last) {
  if (last == nullptr) return false;
  const auto was_there = [&](const auto& entry) {
    return place_in(last, entry.first, *entry.second) != nullptr;
  };
  const auto count = std::ranges::count_if(group.members, was_there);
  return count != 0 && static_cast<std::size_t>(count) != group.members.size();
}

bool fit_together(const Group& group) {
  try {
    for (const auto& [end, side] : group.sides) group.tensors(side);
    return true;
  } catch (const Error&) {
    return false;  // find_groups() says so to whom it concerns
  }
}

// The one that is known stays if nothing has changed: what was made from it is not made again.
void take(GroupPtr& known, std::optional<Group>& found) {
  if (!found || (known != nullptr && known->is(*found))) return;
  known = std::make_shared<const Group>(*std::move(found));
}

bool is_one_group(const Catalog& catalog, const std::string& batch, const Group& group,
                  const End& start, const KnownFailures& known) {
  const GroupFinding found = find_group(catalog, batch, {start}, known);
  return !found.group || found.group->sides.size() == group.sides.size();
}

// A registration that failed after it was seen takes part in nothing.
void drop_if_failed(GroupPtr& group, const KnownFailures& known) {
  if (group == nullptr) return;
  const auto has_failed = [&](const auto& entry) {
    return known.contains({entry.first, entry.second->registration});
  };
  if (std::ranges::any_of(group->members, has_failed)) group.reset();
}

}  // namespace

bool Batch::one_way(Direction direction) const noexcept {
  return record_.versioned && record_.versioned->direction == direction;
}

void Batch::update() {
  if (leaving_) follow_leaving();
  if (closing_ || !announced_) return;
  try {
    look_at_groups();
    if (own_ && !one_way(Direction::recv)) follow_own_generation();
    if (remote_ && !one_way(Direction::send)) follow_their_generation();
  } catch (const FailedElsewhere& error) {
    return registering_ ? fail_registration(error.status(), false) : void();
  } catch (const Error& error) {
    return registering_ ? fail_registration(error.status(), true) : void();
  }
  check_registered();
}

// What is registered goes on with the groups that it knows, and sees by them who has left.
void Batch::look_at_groups() {
  try {
    find_groups();
  } catch (const Error&) {
    if (registering_) throw;
  }
  const auto is_recv = [](const Queued& each) { return each.direction == Direction::recv; };
  if (!std::ranges::any_of(queue_, is_recv)) return;
  if (const Status refused = sender_refuses(); !refused.ok()) {
    fail_queue(Direction::recv, refused, std::nullopt);
  }
}

// Why a sender takes no part any more, if its refusal was not told yet.
Status Batch::sender_refuses() {
  for (const End& end : remote_ends(record_)) {
    for (const auto& [rank, member] : context_.catalog.members(end)) {
      const auto batch = context_.catalog.registration(key_.batch, end, rank);
      if (batch == nullptr || !batch->refused) continue;
      if (!disputed_.insert({rank, batch->registration}).second) continue;
      return failure_of(key_.batch, rank, *batch);
    }
  }
  return {};
}

// All registrations of the groups but our own.
KnownFailures Batch::others() const {
  KnownFailures others;
  for (const GroupPtr& group : {own_, remote_}) {
    if (group == nullptr) continue;
    for (const auto& [rank, member] : group->members) {
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
  known_.merge(context_.catalog.outlived(key_.batch, key_.rank, record_.registration));
  GroupFinding own = find_group(context_.catalog, key_.batch, record_.ends, known_);
  GroupFinding remote = find_group(context_.catalog, key_.batch, remote_ends(record_), known_);
  // Senders whose tensors change do so one after the other: between them they fit nobody.
  for (const auto& [finding, direction] :
       {std::pair(&own, Direction::send), std::pair(&remote, Direction::recv)}) {
    if (finding->group && one_way(direction) &&
        is_mixed(*finding->group,
                 context_.catalog.generation({key_.batch, finding->group->name}).get())) {
      finding->missing = "not all senders have registered their new tensors";
      finding->group.reset();
    }
  }
  missing_ = own.missing;
  if (!missing_.empty() && !remote.missing.empty()) missing_ += "; ";
  missing_ += remote.missing;
  // Our own record may still be an older one: the store has not told us of the new one yet.
  if (own.group && own.group->members.at(key_.rank)->registration == record_.registration) {
    take(own_, own.group);
  }
  take(remote_, remote.group);
  drop_if_failed(own_, known_);
  drop_if_failed(remote_, known_);
  if (!own_ || !remote_) return;
  auto now = signature(*own_, *remote_);
  if (now == matched_) return;
  if (!is_one_group(context_.catalog, key_.batch, *remote_, remote_->name, known_)) {
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
  readers_ = can_send_.ok() ? serving(own_, remote_).readers(record_.versioned.has_value())
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
  if (reader_ == nullptr) return;
  reader_->replace(loan_, joined_ == nullptr ? std::vector<TensorView>() : ordered(*joined_));
}

bool Batch::fresh(const Group& group, const Generation* last) const {
  if (last == nullptr) return true;
  return std::ranges::none_of(group.members, [&](const auto& entry) {
    return place_in(last, entry.first, *entry.second) != nullptr;
  });
}

void Batch::follow_own_generation() {
  const GenerationKey key{key_.batch, own_->name};
  const auto current = context_.catalog.generation(key);
  const auto raw = context_.catalog.raw_generation(key);
  if (const Sender* mine = place_in(current.get(), key_.rank, record_)) {
    if (current->ended) {
      // Its beginning and its end may be heard of at once; its rounds go on all the same.
      const bool unknown = source_ == nullptr && ended_.ok();
      const bool ours = mine->incarnation == record_.incarnation;
      if (unknown && ours && current->after > 0 && is_of(*own_, *current)) {
        begin_generation(*current);
      }
      Generation ended = *current;
      if (unknown && source_ == nullptr) ended.after = 0;
      return end_generation(ended);
    }
    if (mine->incarnation != record_.incarnation) {
      return end_generation(
          propose_end(key, *current, key_.rank, "this rank's agent was taken for dead"));
    }
    if (const auto left = who_left(context_.catalog, key_.batch, *own_, *current)) {
      return end_generation(propose_end(key, *current, *left, is_gone(*left)));
    }
    if (source_ == nullptr && is_of(*own_, *current)) begin_generation(*current);
    return;
  }
  if (current != nullptr && !current->ended) {
    if (const auto left = who_left(context_.catalog, key_.batch, *own_, *current)) {
      propose_end(key, *current, *left, is_gone(*left));
    }
    return;
  }
  if (!fresh(*own_, current.get())) return;
  // Of a batch whose tensors change some may have the new ones and some not yet.
  if (record_.versioned && !fit_together(*own_)) return;
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

void Batch::begin_generation(const Generation& generation) {
  log::debug("bus: rank {}: generation {} of batch \"{}\" begins", key_.rank, generation.number,
             key_.batch);
  sending_ = own_;
  region_ = context_.fabric.expose(ordered(*sending_), loan_->gate(), loan_->lender());
  source_ = std::make_unique<Source>(context_, generation.number);
  if (record_.versioned) {
    const Rank first = first_source(*sending_);
    const auto place = context_.catalog.member({sending_->sides.begin()->first, first});
    herald_ = std::make_unique<Herald>(
        context_, Follow{key_.batch, sending_->name}, generation.number, first,
        first == key_.rank ? std::nullopt
                           : std::optional(place == nullptr ? fabric::Address() : place->address));
  }
  read_versions_.clear();
  named_round_ = 0;
  named_version_ = generation.version;
  for (Queued& queued : queue_) {
    if (queued.direction == Direction::send && record_.versioned) number(queued);
  }
  context_.at(Step::generation_begun);
}

// For all ranks; returns what the record will be, unless another one is quicker.
Generation Batch::propose_end(const GenerationKey& key, Generation generation, Rank left,
                              const std::string& why, std::int64_t after) {
  const auto raw = context_.catalog.raw_generation(key);
  generation.ended = true;
  generation.left = left;
  generation.why = why;
  generation.after = after;
  context_.directory.compare_and_set(to_text(key), raw, encode(generation), 0);
  return generation;
}

void Batch::end_generation(const Generation& ended) {
  if (!ended_.ok() && ends_after_ <= ended.after) return;
  context_.at(Step::generation_ended);
  ends_after_ = ended.after;
  readers_then_ = remote_;
  ended_ = {Code::failed,
            fmt::format("batch \"{}\": {}; every sender rank has to register it again", key_.batch,
                        ended.why)};
  log::info("bus: rank {}: {}", key_.rank, ended_.message);
  const Status lost{ended.left == key_.rank ? Code::failed : Code::peer_lost, ended_.message};
  if (!queue_.empty() && queue_.front().running && queue_.front().round > ends_after_) {
    queue_.front().why = lost;
    source_->revoke(ended.why);
    step_send(queue_.front());
  }
  fail_queue(Direction::send, lost, ended.left, ends_after_);
  drop_source_if_unused();
}

// It has ended, and this rank is through with the rounds that went on.
void Batch::drop_source_if_unused() {
  if (source_ == nullptr || !stale() || source_->is_open()) return;
  if (std::ranges::find(queue_, Direction::send, &Queued::direction) != queue_.end()) return;
  source_->end(ended_.message);
  source_.reset();
  herald_.reset();
}

// The others go on up to the last round that this rank's sends were answered for. Its registration
// stays until they know, or they would take it for lost.
void Batch::leave_generation(std::int64_t after) {
  leaving_ = after;
  leaves_by_ = context_.now + patience_with_store;
  proposed_over_.reset();
  follow_leaving();
}

void Batch::follow_leaving() {
  const GenerationKey key{key_.batch, sending_->name};
  const auto current = context_.catalog.generation(key);
  const bool in_it = place_in(current.get(), key_.rank, record_) != nullptr;
  if (!in_it || (current->ended && current->after <= *leaving_)) return withdraw();
  const auto raw = context_.catalog.raw_generation(key);
  if (proposed_over_ == raw) return;
  proposed_over_ = raw;
  Generation left = *current;
  // The next one counts on from there.
  if (record_.versioned) {
    left.version = std::max(left.version, named_version_ + *leaving_ - named_round_);
  }
  propose_end(key, std::move(left), key_.rank,
              fmt::format("rank {} has ended it after round {}", key_.rank, *leaving_), *leaving_);
}

void Batch::withdraw() {
  leaving_.reset();
  if (announced_ && !superseded_ && record_.failed.empty()) {
    context_.directory.withdraw(to_text(key_));
  }
}

void Batch::follow_their_generation() {
  if (!can_recv_.ok()) return;
  const GenerationKey key{key_.batch, remote_->name};
  const auto current = context_.catalog.generation(key);
  if (current == nullptr) return;
  if (reader_ == nullptr) reader_ = std::make_shared<Reader>(context_, loan_);
  Generation seen = *current;
  if (!seen.ended) {
    if (const auto left = who_left(context_.catalog, key_.batch, *remote_, seen)) {
      seen = propose_end(key, seen, *left, is_gone(*left));
    }
  }
  follow_end(seen);
  if ((seen.ended && seen.after == 0) || reader_->started() || !own_) return;
  // Plans are made from no other registrations, also when some of them have gone on since.
  if (joined_ == nullptr || !is_of(*joined_, seen)) {
    if (!is_of(*remote_, seen)) return;
    joined_ = remote_;
  }
  if (passage_ == nullptr || !passage_->is_between(joined_, own_)) {
    passage_ = std::make_unique<OwnPassage>(joined_, own_, key_.rank);
  }
  if (!reader_->idle() && reader_->fingerprint() != passage_->passage.fingerprint) {
    // Made from older records than the senders have: they would not take it.
    reader_->leave({Code::withdrawn, "the plan has changed"}, std::nullopt);
  }
  if (reader_->idle() && !reader_->waits()) join(*current, passage_->passage);
}

// What the end of their generation means for the reader: it goes on up to the last round that all
// of them send.
void Batch::follow_end(const Generation& current) {
  const bool next = reader_->generation() != current.number;
  reader_ends_after_.reset();
  if (!current.ended && !next) return;
  if (!next && reader_->goes_on(current.after)) {
    reader_ends_after_ = current.after;
    return;
  }
  if (reader_->idle() && reader_->started_in() == 0) return;
  const Rank who = current.ended ? current.left : current.senders.begin()->first;
  const Status lost{Code::peer_lost,
                    fmt::format("batch \"{}\": {}", key_.batch,
                                current.why.empty() ? "the senders began anew" : current.why)};
  if (!reader_->idle()) reader_->leave(lost, who);
  // Its sources may have been lost before the store told so: what waits for them fails too.
  if (reader_->started_in() != 0) fail_queue(Direction::recv, lost, who);
  reader_->forget_start();
}

void Batch::join(const Generation& generation, const Passage& passage) {
  JoinPlan plan;
  plan.batch = key_.batch;
  plan.group = joined_->name;
  plan.generation = generation.number;
  plan.side = key_.side;
  plan.registration = record_.registration;
  plan.fingerprint = passage.fingerprint;
  plan.streams = plan::read_streams(passage.plans, key_.rank, record_.chunk_bytes);
  plan.targets = ordered(*joined_);
  for (const auto& [rank, member] : joined_->members) {
    const Verify verify = std::max(record_.verify, member->verify);
    if (verify != Verify::off) plan.verify[rank] = verify;
  }
  if (!plan.verify.empty()) {
    plan.labels = std::make_shared<const std::vector<std::string>>(labels_of(*joined_));
  }
  std::set<Rank> far;  // read together with sources on other hosts: all in the same way
  for (const plan::Stream& stream : plan.streams) {
    std::set<std::string> hosts;
    for (const Rank rank : stream.source.ranks) {
      for (const auto& [end, side] : joined_->sides) {
        if (const auto member = context_.catalog.member({end, rank})) {
          plan.sources[rank] = member->address;
        }
      }
      hosts.insert(plan.sources[rank].identity.host);
    }
    if (hosts.size() > 1) far.insert(stream.source.ranks.begin(), stream.source.ranks.end());
  }
  if (record_.versioned) {
    // The first sender knows of all readers, also of those who read nothing from it.
    const Rank rank = first_source(*joined_);
    const End& end = joined_->sides.begin()->first;
    if (const auto member = context_.catalog.member({end, rank})) {
      plan.sources.try_emplace(rank, member->address);
    }
  }
  for (const Rank rank : far) plan.sources[rank] = fabric::network_only(plan.sources[rank]);
  reader_->join(std::move(plan));
}

Batch::Taken Batch::subscribe(const PeerConnectionPtr& connection, const AgentMessage& message) {
  const auto& wish = std::get<Subscribe>(message.body);
  if (wish.batch != key_.batch || closing_) return Taken::no;
  if (!own_) return Taken::later;
  if (wish.group != own_->name) return Taken::no;
  if (source_ == nullptr || message.generation > source_->generation()) return Taken::later;
  const auto refuse = [&](Status status) {
    context_.connections.send(*connection, message.generation, message.serial,
                              Subscribed{std::move(status), 0, 0});
    return Taken::done;
  };
  if (message.generation < source_->generation()) {
    return refuse({Code::withdrawn, "that generation is over"});
  }
  try {
    const auto reader = context_.catalog.registration(BatchKey{key_.batch, wish.side, wish.reader});
    if (reader == nullptr || reader->registration != wish.registration) return Taken::later;
    const GroupPtr group = group_of_reader(wish.reader, *reader);
    if (group == nullptr) return Taken::later;
    Serving& serving = this->serving(sending_, group);
    if (const Status status = may_send(*sending_, *group); !status.ok()) return refuse(status);
    if (serving.fingerprint(wish.reader) != wish.fingerprint) return Taken::later;
    const auto& streams = serving.to(wish.reader);
    if (streams.size() != wish.streams.size()) {
      return refuse(
          {Code::failed, fmt::format("rank {} reads {} streams from rank {}, not {}", wish.reader,
                                     streams.size(), key_.rank, wish.streams.size())});
    }
    std::vector<std::shared_ptr<Digest>> digests;
    std::int64_t bytes = 0;
    const Verify verify = std::max(record_.verify, reader->verify);
    for (std::size_t at = 0; at < streams.size(); ++at) {
      plan::Stream stream = streams[at];
      stream.chunk_bytes = reader->chunk_bytes;
      bytes += stream.payload_bytes;
      if (verify != Verify::off) digests.push_back(digest_of(stream, verify));
      region_->serve(stream_number(message.serial, wish.streams[at]), std::move(stream));
    }
    source_->subscribe(connection, message.serial, {wish.reader, wish.registration, bytes},
                       region_->number(), std::move(digests));
  } catch (const Error& error) {
    return refuse(error.status());
  }
  return Taken::done;
}

std::shared_ptr<Digest> Batch::digest_of(const plan::Stream& stream, Verify verify) const {
  const plan::Stream own = stream.source.reduces() ? member_stream(stream, key_.rank) : stream;
  if (auto known = source_->find_digest(own, verify)) return known;
  return std::make_shared<Digest>(own, Digest::End::source, verify, ordered(*sending_),
                                  loan_->lender());
}

Batch::Taken Batch::follow(const PeerConnectionPtr& connection, const AgentMessage& message) {
  const auto& wish = std::get<Follow>(message.body);
  if (wish.batch != key_.batch || closing_) return Taken::no;
  if (!own_) return Taken::later;
  if (wish.group != own_->name) return Taken::no;
  if (source_ == nullptr || message.generation > source_->generation()) return Taken::later;
  if (message.generation == source_->generation() && herald_ != nullptr && herald_->is_first()) {
    herald_->add_follower(connection, message.serial);
  }
  return Taken::done;
}

// Readers of several groups come in any order.
Serving& Batch::serving(const GroupPtr& sources, const GroupPtr& targets) {
  std::unique_ptr<Serving>& known = servings_[targets->name];
  if (known == nullptr || !known->is_between(sources, targets)) {
    known = std::make_unique<Serving>(sources, targets, key_.rank);
  }
  return *known;
}

GroupPtr Batch::group_of_reader(Rank rank, const BatchMember& reader) {
  GroupFinding found = find_group(context_.catalog, key_.batch, reader.ends, known_);
  GroupPtr& known = readers_groups_[reader.ends];
  if (found.group) {
    if (remote_ != nullptr && remote_->is(*found.group)) return remote_;
    take(known, found.group);
    return known;
  }
  // Others of its side may have done their part and left; it joined them when they were there.
  for (const GroupPtr& group : {remote_, known}) {
    if (group == nullptr) continue;
    const auto then = group->members.find(rank);
    if (then != group->members.end() && *then->second == reader) return group;
  }
  return nullptr;
}

// Who registers after the end of a generation waits for the next one. So does who has not joined it
// when one of its senders has left.
bool Batch::may_join(Rank reader) const {
  if (ended_.ok()) return true;
  if (readers_then_ == nullptr || !readers_then_->members.contains(reader)) return false;
  const auto is_there = [&](const Group& group, Rank rank) {
    const BatchMember& then = *group.members.at(rank);
    return std::ranges::any_of(then.ends, [&](const End& end) {
      const auto now = context_.catalog.registration(key_.batch, end, rank);
      return now != nullptr && now->failed.empty() && now->registration == then.registration;
    });
  };
  if (!is_there(*readers_then_, reader)) return false;
  const Passage passage = make_passage(*sending_, *readers_then_, reader);
  for (const plan::Stream& stream :
       plan::read_streams(passage.plans, reader, record_.chunk_bytes)) {
    for (const Rank source : stream.source.ranks) {
      if (!is_there(*sending_, source)) return false;
    }
  }
  return !record_.versioned || is_there(*sending_, first_source(*sending_));
}

void Batch::check_registered() {
  if (registering_ && one_way(Direction::send) && stale()) {
    // It is over before it was complete: the next send says so.
    return answer(std::exchange(registering_, std::nullopt)->id);
  }
  if (!registering_ || !own_ || !remote_ || matched_.empty()) return;
  if (can_recv_.ok()) {
    const auto theirs = context_.catalog.generation({key_.batch, remote_->name});
    // One that somebody has left goes on for those who are joining it.
    const bool joins = reader_ != nullptr && !reader_->idle();
    const bool comes =
        theirs == nullptr || !theirs->ended || joins || fresh(*remote_, theirs.get());
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
    const bool goes_on = source_ != nullptr;
    const bool comes = ours == nullptr || !ours->ended || goes_on || fresh(*own_, ours.get());
    if (comes && !stale()) {
      if (source_ == nullptr) {
        missing_ = "the generation has not begun";
        return;
      }
      std::vector<Rank> absent;
      for (const Rank reader : readers_) {
        if (!source_->has_started(reader) && may_join(reader)) absent.push_back(reader);
      }
      if (!absent.empty()) {
        missing_ = fmt::format("reader rank {} has not subscribed", fmt::join(absent, ", "));
        return;
      }
    }
  }
  answer(std::exchange(registering_, std::nullopt)->id);
}

void Batch::refused(const Status& why) {
  if (registering_) fail_registration(why, false);
}

void Batch::fail_registration(const Status& why, bool tell) {
  disputed_ = others();
  disputed_.merge(context_.catalog.refused(key_.batch));
  if (tell) {
    // The others must know, and those who come later.
    record_.failed = why.message;
    record_.unfit = disputed_;
    context_.directory.publish(to_text(key_), encode(record_));
  }
  answer(std::exchange(registering_, std::nullopt)->id, why);
  close(std::nullopt, why);
}

}  // namespace tensorbus::bus
