// How requests end: answered, refused, cancelled, or with their server.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "observe/registry.h"
#include "os/process/process.h"
#include "push_pull/request/pack.h"
#include "push_pull/request/trace.h"
#include "push_pull/request/worker_core.h"

namespace tensorbus::push_pull {
namespace {

// A server that has begun to write when the time is up may finish.
constexpr Duration grace = std::chrono::milliseconds(50);
constexpr Duration look_at_orphans_every = std::chrono::seconds(1);
const Status success;

bool is_running(const fabric::Identity& process) {
  try {
    return os::process_start_time(static_cast<pid_t>(process.pid)) == process.start_time;
  } catch (const Error&) {
    return false;
  }
}

Error unknown(std::uint64_t handler) {
  return Error(Code::invalid_argument,
               fmt::format("no request has the handler {} (any more)", handler));
}

}  // namespace

bool Worker::Impl::settled(const Record& record) const {
  if (record.finishing) return false;
  bool all = true;
  for (const Leg& leg : record.legs) {
    if (leg.over && !leg.status.ok()) return true;
    all = all && leg.over;
  }
  return all;
}

void Worker::Impl::wait(Handler given, Deadline deadline) {
  const auto handler = static_cast<std::uint64_t>(given);
  std::vector<std::shared_ptr<const void>> dropped;  // before the lock: let go after it
  Lock lock = node_.loop().lock();
  if (!dropped_.empty()) std::swap(dropped, dropped_);
  Record* record = by_handler_.find(handler);
  if (record != nullptr && !settled(*record)) clear_up();  // there is time now
  const bool over = node_.loop().wait(lock, deadline, [&] {
    // Another thread may wait for the same, and have ended it.
    record = by_handler_.find(handler);
    return record == nullptr || settled(*record);
  });
  if (record == nullptr) {
    const Finished* const known = finished(handler);
    if (known == nullptr) throw unknown(handler);
    if (!known->status.ok()) throw Error(known->status);
    return;
  }
  const bool well =
      over && std::ranges::all_of(record->legs, [](const Leg& leg) { return leg.status.ok(); });
  if (!well) fail(lock, handler);
  copy_out(lock, *record);
  const std::int64_t given_back = node_.ticker().now();
  for (Leg& leg : record->legs) leg.times[7] = given_back;
  finish(*record, success);
  if (dropped_.empty()) return;
  std::ranges::move(dropped_, std::back_inserter(dropped));
  dropped_.clear();
}

void Worker::Impl::copy_out(Lock& lock, Record& record) {
  std::size_t bytes = 0;
  for (const Target& target : record.pulls) {
    if (straight(target)) {
      ++counts_.answers_straight;
    } else {
      ++counts_.answers_copied;
      bytes += target.measured.bytes;
    }
  }
  if (bytes == 0) return;
  record.finishing = true;
  if (bytes > long_copy) lock.unlock();
  for (const Target& target : record.pulls) {
    if (straight(target)) continue;
    if (target.measured.dense) {
      std::memcpy(target.data, target.slot.memory.get(), target.measured.bytes);
      continue;
    }
    const auto extents = std::span<const std::int64_t>(record.extents).subspan(target.first);
    unpack(target.slot.memory.get(), {target.data, target.dtype, extents.first(target.dims),
                                      extents.subspan(target.dims, target.dims)});
  }
  if (!lock.owns_lock()) node_.loop().lock_again(lock);
  record.finishing = false;
}

// No longer known by its handlers; released once no server has it any more.
void Worker::Impl::finish(Record& record, const Status& status) {
  Finished& entry = history_[next_finished_++ % most_finished];
  entry.first = record.first;
  entry.handlers = record.handlers;
  if (!entry.status.ok() || !status.ok()) entry.status = status;
  entry.traces.clear();
  entry.in_ticks = true;
  for (const Leg& leg : record.legs) entry.traces.push_back(leg.times);
  if (observe::registry().is_watched()) keep_span(record, entry, status.code);
  by_handler_.remove(record.first, record.handlers);
  --counts_.requests;
  record.abandoned = true;
  end_if_abandoned(record);
}

void Worker::Impl::end_if_abandoned(Record& record) {
  if (!record.abandoned ||
      !std::ranges::all_of(record.legs, [](const Leg& leg) { return leg.over; })) {
    return;
  }
  if (record.keep != nullptr) dropped_.push_back(std::move(record.keep));
  if (record.standing == 0) return ended_.push_back(&record);
  by_number_.remove(record.number);
  release(record);  // at once: it may come again at once
}

// After it no server begins to write; some may be writing.
void Worker::Impl::cancel(Lock& lock, Record& record) {
  for (std::size_t server = 0; server < servers(); ++server) {
    Leg& leg = record.legs[server];
    Side& side = sides_[server];
    if (leg.over) continue;
    close_targets(server, record);
    if (needs_word(record, server) &&
        !swap(word(side, record), record.number, RequestState::pending, RequestState::cancelled)) {
      node_.loop().wait(lock, Deadline::after(grace), [&] { return leg.over; });
    }
  }
}

void Worker::Impl::fail(Lock& lock, std::uint64_t handler) {
  Record& record = *by_handler_.find(handler);
  record.finishing = true;  // others who wait for it: not now
  try {
    cancel(lock, record);
  } catch (...) {
    record.finishing = false;
    throw;
  }
  record.finishing = false;
  Status failure;
  std::vector<std::string> silent;
  std::vector<std::string> writing;
  for (std::size_t server = 0; server < servers(); ++server) {
    const Leg& leg = record.legs[server];
    Side& side = sides_[server];
    if (leg.over) {
      if (failure.ok()) failure = leg.status;
      continue;
    }
    silent.push_back(side.partner->name());
    if (needs_word(record, server) &&
        word(side, record).load() == word_of(record.number, RequestState::writing)) {
      writing.push_back(side.partner->name());
    }
  }
  if (failure.ok()) {
    failure = {Code::timeout, fmt::format("no answer from {} in time", fmt::join(silent, ", "))};
  }
  if (writing.empty()) {
    if (record.keep != nullptr) dropped_.push_back(std::move(record.keep));
  } else {
    failure.message +=
        fmt::format("; {} is still writing into a pull tensor, which is kept until that has ended",
                    fmt::join(writing, ", "));
  }
  finish(record, failure);
  throw Error(failure);
}

void Worker::Impl::end_leg(Record& record, std::size_t server, const Status& status) {
  Leg& leg = record.legs[server];
  Side& side = sides_[server];
  leg.over = true;
  if (!status.ok()) leg.status = status;
  --side.requests;
  side.bytes -= leg.bytes;
  if (record.standing == 0) {
    give_back_slots(side, leg);
    return close_targets(server, record);
  }
  for (std::size_t i = 0; i < leg.pushes.size(); ++i) {
    fetch_early(leg.pushes[i].slot.memory, record.pushes[i].bytes, true);
  }
}

void Worker::Impl::on_answer(Side& side, wire::Body& message) {
  const std::int64_t received = node_.ticker().now_after_reading();
  const auto answer = wire::take<wire::Answer>(message);
  const std::string_view text = message.raw(message.left());
  const auto server = static_cast<std::size_t>(side.partner->group());
  Record* const record = by_number_.find(answer.number);
  if (record == nullptr || record->legs[server].over) {
    throw Error(Code::failed, "an answer to what nobody asked");
  }
  for (const Target& target : targets(*record, server)) {
    if (!straight(target)) fetch_early(target.slot.memory.get(), target.measured.bytes, false);
  }
  Trace& times = record->legs[server].times;
  std::ranges::copy(answer.times, times.begin() + 2);
  times[6] = received;
  if (answer.code == 0) {
    end_leg(*record, server, success);
  } else {
    end_leg(*record, server,
            {wire::checked_code(answer.code), fmt::format("{}: {}", side.partner->name(), text)});
  }
  end_if_abandoned(*record);
}

void Worker::Impl::on_lost(Partner& partner) {
  const auto server = static_cast<std::size_t>(partner.group());
  Side& side = sides_[server];
  for (const auto& each : records_) {
    Record& record = *each;
    Leg& leg = record.legs[server];
    if (leg.over) continue;
    if (needs_word(record, server) && record.keep != nullptr) {
      Orphan orphan{record.keep, partner.peer().identity(), side.words.memory, &word(side, record),
                    record.number};
      if (still_writing(orphan)) orphans_.push_back(std::move(orphan));
    }
    end_leg(
        record, server,
        {Code::peer_lost, fmt::format("{} is gone: {}", partner.name(), partner.lost()->message)});
    end_if_abandoned(record);
  }
}

// A process that was stopped goes on where it was when it is continued, whatever we think of it.
bool Worker::Impl::still_writing(const Orphan& orphan) const {
  return orphan.word->load() == word_of(orphan.number, RequestState::writing) &&
         is_running(orphan.server);
}

void Worker::Impl::on_turn() {
  if (orphans_.empty()) return;
  const TimePoint time = now();
  if (time < next_look_at_orphans_) return;
  next_look_at_orphans_ = time + look_at_orphans_every;
  std::erase_if(orphans_, [this](Orphan& orphan) {
    if (still_writing(orphan)) return false;
    dropped_.push_back(std::move(orphan.keep));
    return true;
  });
}

Worker::Impl::Finished* Worker::Impl::finished(std::uint64_t handler) {
  for (std::size_t back = 1; back <= history_.size(); ++back) {
    if (back > next_finished_) break;
    Finished& entry = history_[(next_finished_ - back) % most_finished];
    if (handler >= entry.first && handler < entry.first + entry.handlers) return &entry;
  }
  return nullptr;
}

// Once, so that whoever asks again is told the same.
void Worker::Impl::turn_into_times(Finished& entry) const {
  if (!std::exchange(entry.in_ticks, false)) return;
  for (std::size_t server = 0; server < servers(); ++server) {
    const std::span<std::int64_t> trace = entry.traces[server];
    if (sides_[server].partner->shares_memory()) {
      node_.ticker().to_nanoseconds(trace);
    } else {
      node_.ticker().to_nanoseconds(trace.first(2));
      node_.ticker().to_nanoseconds(trace.last(2));
    }
  }
}

// A server's answer has the request's number, too.
void Worker::Impl::keep_span(const Record& record, Finished& entry, Code code) {
  using observe::Phase;
  turn_into_times(entry);
  const auto slowest =
      std::ranges::max_element(entry.traces, {}, [](const Trace& each) { return each[6]; });
  const Trace& times = *slowest;
  const bool answered = code == Code::ok;  // by all; else the last stamps are none
  observe::Span span;
  span.work = observe::Work::request;
  span.code = code;
  span.rank = node_.rank();
  span.begin = times[0];
  span.end = answered ? times[7] : clock_ns();
  span.version = static_cast<std::int64_t>(record.number);
  span.bytes = static_cast<std::int64_t>(record.bytes);
  span.in(Phase::stage) = times[1] - times[0];
  span.in(Phase::wait) = (answered ? times[6] : span.end) - times[1];
  span.in(Phase::read) = answered ? span.end - times[6] : 0;
  for (const Side& side : sides_) span.add_peer(node_.rank_of(*side.partner));
  const auto place = static_cast<std::size_t>(slowest - entry.traces.begin());
  if (answered) span.slowest = node_.rank_of(*sides_[place].partner);
  span.name = observe::ShortText<56>("push_pull");
  span.side = observe::ShortText<24>("worker");
  node_.recorder().finish(span);
}

std::vector<Handler> Worker::Impl::handlers(Handler given) {
  const auto handler = static_cast<std::uint64_t>(given);
  const Lock lock = node_.loop().lock();
  const Record* const record = by_handler_.find(handler);
  if (record == nullptr) {
    if (finished(handler) == nullptr) throw unknown(handler);
    return {given};
  }
  std::vector<Handler> all;
  for (std::uint64_t i = 0; i < record->handlers; ++i) {
    all.push_back(static_cast<Handler>(record->first + i));
  }
  return all;
}

Trace Worker::Impl::trace(Handler given, std::optional<int> server) {
  const auto handler = static_cast<std::uint64_t>(given);
  const Lock lock = node_.loop().lock();
  Finished* const entry = finished(handler);
  if (entry == nullptr) {
    if (by_handler_.find(handler) == nullptr) throw unknown(handler);
    throw Error(Code::invalid_argument, fmt::format("request {} has not been waited for", handler));
  }
  if (!entry->status.ok()) throw Error(entry->status);
  turn_into_times(*entry);
  if (!server) {
    return *std::ranges::max_element(entry->traces, {}, [](const Trace& each) { return each[6]; });
  }
  if (*server < 0 || static_cast<std::size_t>(*server) >= servers()) {
    throw Error(Code::invalid_argument,
                fmt::format("there is no server {}; the job has {}", *server, servers()));
  }
  return entry->traces[static_cast<std::size_t>(*server)];
}

}  // namespace tensorbus::push_pull
