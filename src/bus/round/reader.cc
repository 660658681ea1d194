#include "bus/round/reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace tensorbus::bus {
namespace {

constexpr Duration shortest_backoff = std::chrono::milliseconds(20);
constexpr Duration longest_backoff = std::chrono::seconds(1);
constexpr std::size_t most_held = 65'536;  // of a source that lets its reader wait
constexpr std::uint64_t serial_mask = ~std::uint64_t{0xFFFF};

// Of another region, or that there will be none.
bool tells_of_region(const AgentMessage& message) {
  const auto* over = std::get_if<Over>(&message.body);
  return std::holds_alternative<Restaged>(message.body) ||
         (over != nullptr && over->mark == Mark::closed);
}

}  // namespace

Subscribe JoinPlan::wish(Rank reader, Rank source) const {
  Subscribe wish{batch, group, reader, side, registration, fingerprint, {}, version, promises};
  for (std::size_t at = 0; at < streams.size(); ++at) {
    const auto& ranks = streams[at].source.ranks;
    if (std::ranges::find(ranks, source) == ranks.end()) continue;
    wish.streams.push_back(static_cast<std::int64_t>(at));
  }
  return wish;
}

std::uint64_t draw_serial(const Context& context) {
  return (context.random() & serial_mask) | (std::uint64_t{1} << 16);
}

void JoinTrouble::fail(std::string why, TimePoint now) {
  why_ = std::move(why);
  backoff_ = std::clamp(backoff_ * 2, shortest_backoff, longest_backoff);
  retry_at_ = now + backoff_;
}

void JoinTrouble::end() noexcept {
  why_.clear();
  backoff_ = Duration::zero();
}

void Reader::join(JoinPlan plan) {
  plan_ = std::move(plan);
  serial_ = draw_serial(context_);
  if (plan_.streams.size() > most_streams) {
    return fail_joining(fmt::format("a rank reads from more than {} groups", most_streams));
  }
  streams_.clear();
  parts_.clear();
  folds_.clear();
  for (const plan::Stream& stream : plan_.streams) {
    streams_.push_back(std::make_shared<const plan::Stream>(stream));
  }
  sources_.clear();
  phase_ = Phase::subscribing;
  context_.at(Step::subscribing);
  const Deadline deadline(context_.now + connect_patience);
  for (const auto& [rank, address] : plan_.sources) {
    SourceEnd& source = sources_[rank];
    try {
      source.connection = context_.connections.open(address, deadline);
    } catch (const Error& error) {
      return fail_joining(fmt::format("rank {}: {}", rank, error.what()));
    }
    if (source.connection->up()) ask(rank, source);
  }
  join_all_when_ready();
}

void Reader::ask(Rank rank, SourceEnd& source) {
  source.asked = true;
  log::debug("bus: rank {} subscribes to rank {} for batch \"{}\", generation {}", context_.rank,
             rank, plan_.batch, plan_.generation);
  context_.connections.send(*source.connection, plan_.generation, serial_,
                            plan_.wish(context_.rank, rank));
}

bool Reader::ask_versions(Rank rank) {
  const auto found = sources_.find(rank);
  if (!started() || found == sources_.end()) return false;
  context_.connections.send(*found->second.connection, plan_.generation, serial_, AskVersions{});
  return true;
}

void Reader::fail_joining(const std::string& why) {
  for (auto& [rank, source] : sources_) {
    if (source.connection && source.asked) {
      context_.connections.send(*source.connection, plan_.generation, serial_, Leave{});
    }
  }
  sources_.clear();
  phase_ = Phase::idle;
  trouble_.fail(why, context_.now);
}

void Reader::leave(const Status& why, std::optional<Rank> rank) {
  if (recv_ != nullptr) {
    if (rank) {
      recv_->lost(why, *rank);
    } else {
      recv_->end(why);
    }
  }
  if (phase_ != Phase::idle) fail_joining(why.message);
}

bool Reader::goes_on(std::int64_t last_round) const {
  if (started() && sources_.empty()) return true;  // the reader needs nobody
  if (idle() || last_round == 0) return false;
  if (!started()) return true;
  return (recv_ != nullptr ? recv_->round() : choice().round) <= last_round;
}

void Reader::on_up(const PeerConnectionPtr& connection) {
  if (phase_ != Phase::subscribing) return;
  for (auto& [rank, source] : sources_) {
    if (source.connection == connection && !source.asked) ask(rank, source);
  }
}

void Reader::on_lost(const PeerConnectionPtr& connection, const Status& why) {
  if (phase_ == Phase::idle) return;
  for (const auto& [rank, source] : sources_) {
    if (source.connection != connection) continue;
    const bool was_started = started();
    const Status status{Code::peer_lost,
                        fmt::format("sender rank {} was lost: {}", rank, why.message)};
    const Rank lost = rank;
    lost_ = {lost};
    if (was_started) {
      log::warn("bus: rank {}, batch \"{}\": {}", context_.rank, plan_.batch, status.message);
      return leave(status, lost);
    }
    return fail_joining(status.message);
  }
}

bool Reader::is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const {
  return knows(message.serial) && std::ranges::any_of(sources_, [&](const auto& each) {
           return each.second.connection == connection;
         });
}

void Reader::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  if (message.generation != plan_.generation) return;
  const auto found = std::ranges::find_if(
      sources_, [&](const auto& entry) { return entry.second.connection == connection; });
  if (found == sources_.end()) return;
  const auto& [rank, source] = *found;
  if (!source.attaching) return hear(rank, found->second, message.body);
  if (source.held.size() == most_held) {
    return leave({Code::failed, fmt::format("rank {} says too much at once", rank)}, rank);
  }
  found->second.held.push_back(message);
  if (source.let_go && tells_of_region(message)) hear_held(rank);
}

void Reader::hear_held(Rank rank) {
  sources_.at(rank).attaching = false;
  sources_.at(rank).let_go = false;
  const std::uint64_t serial = serial_;
  while (knows(serial) && !sources_.at(rank).attaching && !sources_.at(rank).held.empty()) {
    SourceEnd& source = sources_.at(rank);
    const AgentMessage message = std::move(source.held.front());
    source.held.pop_front();
    hear(rank, source, message.body);
  }
}

void Reader::hear(Rank rank, SourceEnd& source, const MessageBody& body) {
  std::visit(Overloaded{
                 [&](const Subscribed& answer) { on_subscribed(rank, source, answer); },
                 [&](const Joined& joined) { on_joined(source, joined); },
                 [&](const Restaged& restaged) { attach(rank, source, restaged.region); },
                 [&](const Offer& offer) { on_offer(rank, source, offer); },
                 [&](const Sums& sums) { on_sums(source, sums); },
                 [&](const Over& over) { on_over(rank, over); },
                 // These messages are not for a reader.
                 [](const ToSource auto&) {},
                 [](const ToPuller auto&) {},
                 [](const AmongSenders auto&) {},
                 [](const AmongPullers auto&) {},
                 [](const OneOf<Subscribe, Leave, Hold, AskPatch, AskSums> auto&) {},
             },
             body);
}

void Reader::on_joined(SourceEnd& source, const Joined& joined) {
  if (phase_ != Phase::joining || source.next != 0) return;
  source.next = std::max<std::int64_t>(joined.next, 1);
  source.view = {source.next, false};
  start_when_joined();
}

void Reader::on_offer(Rank rank, SourceEnd& source, const Offer& offer) {
  if (source.next == 0) return;
  if (offer.round < source.view.floor) {
    // The round was over for this reader before the source began it.
    return swap_word(rank, offer.round, offer.ticket, Mark::skipped);
  }
  source.view = {offer.round, true};
  source.ticket = offer.ticket;
  source.version = offer.version;
}

void Reader::on_sums(SourceEnd& source, const Sums& sums) {
  if (sums.round != source.sums.round) source.sums = {sums.round, 0, {}};
  auto& values = source.sums.values;
  if (sums.first == values.size()) {
    values.insert(values.end(), sums.values.begin(), sums.values.end());
  }
}

void Reader::on_over(Rank rank, const Over& over) {
  if (over.mark != Mark::closed) {
    return on_word(rank, serial_, over.round, {over.mark, over.round});
  }
  lost_ = {rank};
  leave({Code::peer_lost, fmt::format("sender rank {} has ended the batch: {}", rank, over.why)},
        rank);
}

void Reader::on_subscribed(Rank rank, SourceEnd& source, const Subscribed& answer) {
  if (phase_ != Phase::subscribing || source.region != nullptr) return;
  if (!answer.status.ok()) {
    // The source has no word left for this reader on the connection; a new connection starts
    // afresh.
    if (answer.status.code == Code::queue_full)
      context_.fabric.disconnect(*source.connection->peer());
    return fail_joining(fmt::format("rank {}: {}", rank, answer.status.message));
  }
  source.word = answer.word;
  attach(rank, source, answer.region);
}

void Reader::attach(Rank rank, SourceEnd& source, std::uint64_t region) {
  const auto id = context_.operations.add(
      [weak = weak_from_this(), serial = serial_, rank](const fabric::Completion& done) {
        const auto self = weak.lock();
        if (self != nullptr && self->knows(serial)) self->on_attached(rank, done);
      });
  source.attaching = true;
  try {
    context_.fabric.attach(*source.connection->peer(), region, id, Deadline::never());
  } catch (const Error& error) {
    context_.operations.forget(id);
    leave({error.code(), fmt::format("rank {}: {}", rank, error.what())}, rank);
  }
}

void Reader::on_attached(Rank rank, const fabric::Completion& done) {
  SourceEnd& source = sources_.at(rank);
  const bool told_more = std::ranges::any_of(source.held, tells_of_region);
  // A source that has restaged twice has let the region between go. What the source says of the
  // next region may be still on its way, which is another way than that of this answer.
  source.let_go = done.status.code == Code::withdrawn && started() && !told_more;
  if (source.let_go) return;
  if (!done.status.ok() && !told_more) {
    if (started()) lost_ = {rank};
    return leave({done.status.code, fmt::format("rank {}: {}", rank, done.status.message)}, rank);
  }
  if (done.status.ok()) source.region = done.region;
  parts_.clear();
  folds_.clear();
  const std::uint64_t serial = serial_;
  hear_held(rank);
  if (knows(serial) && phase_ == Phase::subscribing) join_all_when_ready();
}

void Reader::join_all_when_ready() {
  for (const auto& [rank, source] : sources_) {
    if (source.region == nullptr || source.attaching) return;
  }
  phase_ = Phase::joining;
  context_.at(Step::joining);
  for (const auto& [rank, source] : sources_) {
    context_.connections.send(*source.connection, plan_.generation, serial_, Join{});
  }
  start_when_joined();
}

void Reader::start_when_joined() {
  std::int64_t first = 1;
  for (const auto& [rank, source] : sources_) {
    if (source.next == 0) return;
    first = std::max(first, source.next);
  }
  phase_ = Phase::started;
  context_.at(Step::joined);
  started_in_ = plan_.generation;
  trouble_.end();
  for (auto& [rank, source] : sources_) {
    context_.connections.send(*source.connection, plan_.generation, serial_, Start{first});
    if (source.view.floor < first) source.view = {first, false};
  }
  log::debug("bus: rank {} reads batch \"{}\" from round {} on", context_.rank, plan_.batch, first);
}

Choice Reader::choice() const {
  std::vector<SourceView> views;
  for (const auto& [rank, source] : sources_) views.push_back(source.view);
  return choose(views);
}

void Reader::step(bool wanted) {
  if (!started()) return;
  const Choice chosen = choice();
  const bool committing = recv_ != nullptr && recv_->state() == RecvState::committing;
  if (!chosen.skip.empty()) {
    std::size_t at = 0;
    std::size_t skip = 0;
    for (auto& [rank, source] : sources_) {
      if (skip == chosen.skip.size() || at++ != chosen.skip[skip]) continue;
      ++skip;
      if (source.swapping || (committing && source.view.floor == recv_->round())) continue;
      source.swapping = true;
      swap_word(rank, source.view.floor, source.ticket, Mark::skipped);
    }
  }
  if (wanted && recv_ == nullptr && chosen.ready) start_recv(chosen.round);
}

std::optional<std::map<Rank, std::int64_t>> Reader::offered_versions() const {
  if (!started() || !choice().ready) return std::nullopt;
  std::map<Rank, std::int64_t> versions;
  for (const auto& [rank, source] : sources_) versions[rank] = source.version;
  return versions;
}

void Reader::pass_over(Mark mark) {
  for (auto& [rank, source] : sources_) {
    const std::int64_t round = source.view.floor;
    swap_word(rank, round, source.ticket, mark);
    source.view = {round + 1, false};
  }
}

void Reader::start_recv(std::int64_t round) {
  std::vector<RecvCommit> commits;
  for (const auto& [rank, source] : sources_) {
    commits.push_back({rank, source.connection, lent(source), source.word});
  }
  recv_ = std::make_shared<Recv>(context_, plan_.generation, serial_, sources_.empty() ? 0 : round,
                                 sources_.empty() ? 0 : sources_.begin()->second.version,
                                 std::move(commits), loan_);
  std::vector<RecvPart> parts;
  try {
    if (parts_.empty() || checked_ != checked_in(round)) make_parts(round);
    for (const auto& fold : folds_) fold->begin();
    for (const Part& part : parts_) parts.push_back(part_of(part, round));
  } catch (...) {
    // A checked reduction takes memory of its own, which may not be there. The next recv tries
    // anew.
    parts_.clear();
    folds_.clear();
    const Status why = current_exception_status();
    return recv_->end({why.code, fmt::format("round {}: rank {} cannot prepare to read it: {}",
                                             round, context_.rank, why.message)});
  }
  recv_->start(std::move(parts), folds_, plan_.labels);
}

std::set<Rank> Reader::checked_in(std::int64_t round) const {
  std::set<Rank> checked;
  for (const auto& [rank, verify] : plan_.verify) {
    const auto source = sources_.find(rank);
    if (source == sources_.end()) continue;
    if (verify != Verify::first || source->second.sums.round == round) checked.insert(rank);
  }
  return checked;
}

// A reduction that is checked is read member by member: only the reader can compare what each
// source gave.
void Reader::make_parts(std::int64_t round) {
  parts_.clear();
  folds_.clear();
  checked_ = checked_in(round);
  for (std::size_t at = 0; at < streams_.size(); ++at) {
    const std::uint64_t number = stream_number(serial_, static_cast<std::int64_t>(at));
    const plan::Group& group = streams_[at]->source;
    const bool checked =
        std::ranges::any_of(group.ranks, [&](Rank rank) { return checked_.contains(rank); });
    if (!checked || !group.reduces()) {
      add_part(number, stream_as_stored(at), plan_.targets);
      continue;
    }
    const auto fold = std::make_shared<GroupFold>(*streams_[at], plan_.targets, loan_->lender(),
                                                  &context_.copiers);
    for (std::size_t member = 0; member < group.ranks.size(); ++member) {
      add_part(number, fold->stream(member), fold->scratch(member));
    }
    folds_.push_back(fold);
  }
}

// What does not fit is found when it is read.
std::shared_ptr<const plan::Stream> Reader::stream_as_stored(std::size_t at) const {
  const plan::Stream& stream = *streams_[at];
  if (stream.source.reduces()) return streams_[at];
  const auto& region = sources_.at(stream.source.ranks.front()).region;
  auto stored = fabric::stream_from(region->forms(), stream);
  if (!stored || *stored == stream) return streams_[at];
  return std::make_shared<const plan::Stream>(*std::move(stored));
}

void Reader::add_part(std::uint64_t number, std::shared_ptr<const plan::Stream> stream,
                      std::span<const TensorView> targets) {
  Part part{number, std::move(stream), targets};
  const Rank rank = part.stream->source.ranks.front();
  if (checked_.contains(rank)) {
    part.digest = std::make_shared<Digest>(*part.stream, Digest::End::target, plan_.verify.at(rank),
                                           part.targets, loan_->lender(), &context_.copiers);
    for (const Part& before : parts_) {
      if (before.stream->source.ranks.front() == rank) {
        part.first_sum += before.stream->parts.size();
      }
    }
  }
  parts_.push_back(std::move(part));
}

RecvPart Reader::part_of(const Part& part, std::int64_t round) const {
  RecvPart read{part.stream, part.number, {}, part.targets};
  for (const Rank rank : part.stream->source.ranks) {
    read.sources.push_back(lent(sources_.at(rank)));
  }
  if (part.digest == nullptr) return read;
  part.digest->begin(round);
  read.digest = part.digest;
  const Sums& sums = sources_.at(part.stream->source.ranks.front()).sums;
  const std::size_t count = part.stream->parts.size();
  if (sums.round == round && sums.values.size() >= part.first_sum + count) {
    const auto first = sums.values.begin() + static_cast<std::ptrdiff_t>(part.first_sum);
    read.sums.assign(first, first + static_cast<std::ptrdiff_t>(count));
  }
  return read;
}

void Reader::finish_recv() {
  // A reader from which one source has withdrawn the round cannot read that round any more: the
  // other sources need not wait for the reader.
  const std::int64_t round = recv_->round();
  const bool withdrawn = recv_->outcome().status.code == Code::withdrawn || recv_->damaged();
  if ((recv_->consumed() || withdrawn) && knows(recv_->serial())) {
    for (auto& [rank, source] : sources_) {
      if (source.view.floor > round) continue;
      if (source.view.offered && !recv_->consumed()) {
        swap_word(rank, round, source.ticket, Mark::skipped);
      }
      source.view = {round + 1, false};
    }
  }
  recv_.reset();
}

void Reader::swap_word(Rank rank, std::int64_t round, std::uint64_t ticket, Mark mark) {
  SourceEnd& source = sources_.at(rank);
  if (source.region == nullptr) return;
  context_.at(Step::skipping);
  fabric::Source lent_source = lent(source);
  lent_source.ticket = ticket;
  const RoundWord offered{Mark::offered, round};
  const auto id = context_.operations.add(
      [weak = weak_from_this(), connection = source.connection, rank, round, mark, serial = serial_,
       generation = plan_.generation, &context = context_](const fabric::Completion& done) {
        const RoundWord before = unpack(done.value);
        if (done.status.ok() && before == RoundWord{Mark::offered, round}) {
          context.connections.send(*connection, generation, serial, Look{round});
        }
        const auto self = weak.lock();
        if (self == nullptr) return;
        // Whatever the word was before: the round is offered no more, or its memory was taken back.
        self->on_word(rank, serial, round, {mark, round});
      });
  try {
    context_.fabric.swap({lent_source, source.word, pack(offered), pack(RoundWord{mark, round})},
                         id, Deadline::never());
  } catch (const Error&) {
    context_.operations.forget(id);  // the loss of the source is on the way
  }
}

void Reader::on_word(Rank rank, std::uint64_t serial, std::int64_t round, RoundWord word) {
  if (!knows(serial)) return;
  SourceEnd& source = sources_.at(rank);
  source.swapping = false;
  if (source.view.floor == round) source.view = {round + 1, false};
  if (recv_ != nullptr && recv_->serial() == serial && recv_->round() == round) {
    recv_->withdrawn(rank, word.mark == Mark::conflict ? "both are sending" : "it was taken back");
  }
}

bool Reader::published(std::optional<std::int64_t> round) const {
  if (!started()) return false;
  if (!round) return choice().ready;
  return awaited(round).empty();
}

std::vector<Rank> Reader::awaited(std::optional<std::int64_t> round) const {
  // No source offers a round after the one that the reader takes next.
  const std::int64_t wanted = round.value_or(choice().round);
  std::vector<Rank> ranks;
  for (const auto& [rank, source] : sources_) {
    if (!has_offered(source.view, wanted)) ranks.push_back(rank);
  }
  return ranks;
}

std::map<Rank, std::int64_t> Reader::offering() const {
  std::map<Rank, std::int64_t> rounds;
  for (const auto& [rank, source] : sources_) {
    if (!source.view.offered) continue;
    // Where the word is in sight the word is the truth; the round of the last offer may be over.
    const auto& peer = source.connection->peer();
    if (!peer->up()) continue;  // the loss of the source is on the way
    const auto* word = context_.fabric.watch(*peer, source.word);
    if (word != nullptr && unpack(word->load(std::memory_order_acquire)).over()) continue;
    rounds[rank] = source.view.floor;
  }
  return rounds;
}

void Reader::conflict(Rank rank, std::int64_t round) {
  const auto found = sources_.find(rank);
  if (found == sources_.end()) return;
  // No recv takes the round meanwhile.
  found->second.view = {round + 1, false};
  swap_word(rank, round, found->second.ticket, Mark::conflict);
}

}  // namespace tensorbus::bus
