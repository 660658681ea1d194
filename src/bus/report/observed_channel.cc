#include "bus/report/observed_channel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/overloaded.h"
#include "bus/report/status_record.h"
#include "tensor/view.h"

namespace tensorbus::bus {
namespace {

using observe::Phase;
using observe::Work;

// Borrows from the command.
struct Seen {
  Work work;
  std::string_view batch;
  std::optional<std::string_view> role;
};

// Nothing for commands that move nothing.
std::optional<Seen> seen_in(const Command& command) {
  return std::visit(
      Overloaded{
          [](const InitPair& c) -> std::optional<Seen> {
            return Seen{Work::init_pair, c.pair, c.local};
          },
          [](const RegisterBatch& c) -> std::optional<Seen> {
            return Seen{Work::registration, c.batch, c.role};
          },
          [](const Transfer& c) -> std::optional<Seen> {
            return Seen{c.direction == Direction::send ? Work::send : Work::recv, c.batch, c.role};
          },
          [](const Publish& c) -> std::optional<Seen> {
            return Seen{Work::publish, c.batch, c.role};
          },
          [](const Shelve& c) -> std::optional<Seen> {
            return Seen{Work::publish, c.batch, c.role};
          },
          [](const Pull& c) -> std::optional<Seen> {
            return Seen{Work::pull, c.batch, c.role};
          },
          [](const OneOf<QuerySignal, QueryVersions, QueryNewest, QueryContents, QueryStage,
                         CloseBatch> auto&) -> std::optional<Seen> { return std::nullopt; },
      },
      command);
}

std::int64_t bytes_of(const RegisterBatch& command) try {
  std::int64_t bytes = 0;
  for (const BatchItem& item : command.items) {
    bytes += element_count(item.shape) * static_cast<std::int64_t>(item_bytes(item.dtype));
  }
  return bytes;
} catch (const Error&) {
  return 0;  // no shape at all: the registration will be refused
}

std::int64_t read_bytes(const Outcome& outcome) {
  std::int64_t bytes = 0;
  for (const auto& [path, count] : outcome.bytes_by_path) bytes += count;
  return bytes;
}

constexpr std::int64_t line_every = 1'000'000'000;

std::string paths_of(const Outcome& outcome) {
  std::vector<std::string_view> paths;
  for (const auto& [path, bytes] : outcome.bytes_by_path) paths.push_back(path);
  return paths.empty() ? "" : fmt::format(" ({})", fmt::join(paths, ", "));
}

// "bus: rank 2 (rollout): pull of "policy" version 8: 1.2 GB at 4.1 GB/s (mapped); wait 3 ms, read
// 290 ms; slowest rank 1".
std::string line_about(const observe::Span& span, const Outcome& outcome) {
  std::vector<std::string> took;
  for (std::size_t at = 0; at < observe::phases; ++at) {
    const double milliseconds = static_cast<double>(span.phase_ns[at]) / 1e6;
    if (milliseconds < 0.05) continue;
    took.push_back(
        fmt::format("{} {:.1f} ms", to_string(static_cast<observe::Phase>(at)), milliseconds));
  }
  const auto busy = static_cast<double>(span.end - span.begin - span.in(Phase::wait));
  const auto bytes = static_cast<double>(span.bytes);
  return fmt::format("bus: rank {} ({}): {} of \"{}\" version {}: {:.3f} GB at {:.2f} GB/s{}{}{}{}",
                     span.rank, span.side.view(), to_string(span.work), span.name.view(),
                     span.version, bytes / 1e9, busy > 0 ? bytes / busy : 0.0, paths_of(outcome),
                     took.empty() ? "" : "; ", fmt::join(took, ", "),
                     span.slowest < 0 ? "" : fmt::format("; slowest rank {}", span.slowest));
}

}  // namespace

std::span<const ChannelEvent> ObservedChannel::poll() {
  const auto events = inner_.poll();
  for (const ChannelEvent& event : events) {
    std::visit(Overloaded{
                   [&](const Submission& submission) { begin(submission); },
                   [&](const SessionLost& lost) { end_session(lost.session); },
                   [](const OneOf<Cancelled, SessionUp> auto&) {},
               },
               event);
  }
  return events;
}

void ObservedChannel::forget(const std::string& batch) {
  std::erase_if(registered_, [&](const auto& entry) { return entry.first.first == batch; });
  count_shelves();
  ++changes_;
}

void ObservedChannel::count_shelves() {
  std::int64_t bytes = 0;
  for (const auto& [of, registered] : registered_) bytes += registered.shelf_bytes;
  recorder_.shelf_bytes.set(static_cast<std::uint64_t>(bytes));
}

// A worker that has a batch once only need not say as which side it acts.
BatchSide ObservedChannel::place_of(std::string_view batch,
                                    std::optional<std::string_view> role) const {
  BatchSide of{batch, role.value_or("")};
  if (role) return of;
  const auto found = registered_.lower_bound(of);
  return found != registered_.end() && found->first.first == batch ? found->first : of;
}

void ObservedChannel::note(const InitPair& pair, std::uint64_t session) {
  pairs_[{pair.pair, pair.local}] = {pair.world_size, session};
}

BatchSide ObservedChannel::note(const RegisterBatch& batch, std::uint64_t session) {
  const std::string pair = !batch.pairs.empty()   ? batch.pairs.front()
                           : !batch.items.empty() ? batch.items.front().pair
                                                  : "";
  const auto found = batch.role ? pairs_.find({pair, *batch.role}) : pairs_.lower_bound({pair, ""});
  const bool known = found != pairs_.end() && found->first.first == pair;
  BatchSide of{batch.batch, batch.role.value_or(known ? found->first.second : "")};
  Registered& registered = registered_[of];
  registered.session = session;
  registered.bytes = bytes_of(batch);
  registered.shelf_bytes =
      registered.bytes * (batch.versioned ? batch.versioned->keep.value_or(0) : 0);
  count_shelves();
  registered.world_size = known ? found->second.world_size : 0;
  return of;
}

void ObservedChannel::begin(const Submission& submission) {
  const auto* closed = std::get_if<CloseBatch>(&submission.command);
  if (closed != nullptr && !closed->back_soon) return forget(closed->batch);
  const auto seen = seen_in(submission.command);
  if (!seen) return;
  const std::uint64_t session = submission.id.session;
  BatchSide of = place_of(seen->batch, seen->role);
  if (const auto* pair = std::get_if<InitPair>(&submission.command)) note(*pair, session);
  if (const auto* batch = std::get_if<RegisterBatch>(&submission.command)) {
    of = note(*batch, session);
  }
  const TimePoint at = now();
  if (std::holds_alternative<Publish>(submission.command)) {
    if (const auto found = registered_.find(of); found != registered_.end()) {
      found->second.filling = Filling{at};
    }
  }
  recorder_.begin(seen->work);
  running_[submission.id] = {seen->work, std::move(of), at};
  recorder_.commands.set(running_.size());
  ++changes_;
}

void ObservedChannel::end_session(std::uint64_t session) {
  std::erase_if(running_, [&](const auto& entry) { return entry.first.session == session; });
  std::erase_if(registered_, [&](const auto& entry) { return entry.second.session == session; });
  std::erase_if(pairs_, [&](const auto& entry) { return entry.second.session == session; });
  count_shelves();
  recorder_.commands.set(running_.size());
  ++changes_;
}

// The worker waits for its outcome: what it may ask for next is counted before, the rest is noted
// after that.
void ObservedChannel::complete(CommandId id, const Outcome& outcome) {
  const auto taken = running_.extract(id);
  if (!taken) return inner_.complete(id, outcome);
  const RunningCommand& command = taken.mapped();
  const std::optional<observe::Span> span = end(command, outcome);
  if (span) recorder_.count(*span);
  inner_.complete(id, outcome);
  if (span) note(*span, command.of, outcome);
  recorder_.commands.set(running_.size());
  ++changes_;
}

void ObservedChannel::progress(CommandId id, std::int64_t done, std::int64_t total) noexcept {
  if (const auto found = running_.find(id); found != running_.end()) {
    found->second.bytes_done = done;
    found->second.bytes_total = total;
  }
  inner_.progress(id, done, total);
}

std::optional<observe::Span> ObservedChannel::end(const RunningCommand& command,
                                                  const Outcome& outcome) {
  if (command.work == Work::publish) return end_publish(command, outcome);
  for (const auto& [path, bytes] : outcome.bytes_by_path) recorder_.add_bytes(path, bytes);
  return span_of(command, outcome);
}

// The first of its two commands gives a slot, the second says that it is filled.
std::optional<observe::Span> ObservedChannel::end_publish(const RunningCommand& command,
                                                          const Outcome& outcome) {
  const auto found = registered_.find(command.of);
  if (found == registered_.end() || !found->second.filling) {
    return outcome.status.ok() ? std::nullopt : std::optional(span_of(command, outcome));
  }
  Filling& filling = *found->second.filling;
  const bool has_slot = filling.given_at != TimePoint{};
  if (!has_slot && outcome.status.ok()) {
    filling.given_at = now();
    filling.version = outcome.version;
    return std::nullopt;
  }
  observe::Span span = span_of(command, outcome);
  span.begin = filling.asked_at.time_since_epoch().count();
  span.in(Phase::wait) =
      (has_slot ? filling.given_at : now()).time_since_epoch().count() - span.begin;
  if (has_slot) {
    span.in(Phase::stage) = (command.since - filling.given_at).count();
    span.version = filling.version;
    span.bytes = found->second.bytes;
  }
  found->second.filling.reset();
  return span;
}

observe::Span ObservedChannel::span_of(const RunningCommand& command,
                                       const Outcome& outcome) const {
  const Timing& timing = outcome.timing;
  observe::Span span;
  span.work = command.work;
  span.code = outcome.status.code;
  span.rank = static_cast<std::int32_t>(rank_);
  span.begin = command.since.time_since_epoch().count();
  span.end = now().time_since_epoch().count();
  span.version = outcome.version != 0 ? outcome.version : outcome.round;
  span.bytes = command.work == Work::send ? outcome.bytes : read_bytes(outcome);
  span.name = observe::ShortText<56>(shown_batch(command.of.first));
  span.side = observe::ShortText<24>(command.of.second);
  span.in(Phase::read) = timing.read;
  span.in(Phase::verify) = timing.verify;
  span.in(Phase::commit) = timing.commit;
  span.in(Phase::wait) = span.end - span.begin - timing.read - timing.verify - timing.commit;
  for (const Rank rank : timing.sources) span.add_peer(rank);
  for (const auto& [rank, how] : outcome.readers) span.add_peer(rank);
  if (timing.slowest) span.slowest = static_cast<std::int32_t>(*timing.slowest);
  return span;
}

void ObservedChannel::note(const observe::Span& span, const BatchSide& of, const Outcome& outcome) {
  recorder_.keep(span);
  const bool moves = span.work != Work::registration && span.work != Work::init_pair;
  const auto found = registered_.find(of);
  if (span.code != Code::ok || !moves || found == registered_.end()) return;
  Registered& registered = found->second;
  // Links have versions; rounds of a batch without are too many to be told of.
  const bool versioned = span.work == Work::publish || outcome.version > 0;
  if (versioned && span.end >= registered.said_at + line_every) {
    registered.said_at = span.end;
    log::info("{}", line_about(span, outcome));
  }
  registered.last = LastMove{span.work,
                             span.version,
                             wall_clock_ns(),
                             span.bytes,
                             Duration(span.end - span.begin - span.in(Phase::wait)),
                             outcome.timing.sources};
}

}  // namespace tensorbus::bus
