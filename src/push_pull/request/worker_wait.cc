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

bool Worker::Impl::settled(const SentRequest& request) const {
  if (request.finishing) return false;
  bool all = true;
  for (const Leg& leg : request.legs) {
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
  SentRequest* request = by_handler_.find(handler);
  if (request != nullptr && !settled(*request)) clear_up();  // there is time now
  const bool over = node_.loop().wait(lock, deadline, [&] {
    // Another thread may wait for the same, and have ended it.
    request = by_handler_.find(handler);
    return request == nullptr || settled(*request);
  });
  if (request == nullptr) {
    const Finished* const known = finished(handler);
    if (known == nullptr) throw unknown(handler);
    if (!known->status.ok()) throw Error(known->status);
    return;
  }
  const bool well =
      over && std::ranges::all_of(request->legs, [](const Leg& leg) { return leg.status.ok(); });
  if (!well) fail(lock, handler);
  copy_out(lock, *request);
  const std::int64_t given_back = node_.ticker().now();
  for (Leg& leg : request->legs) leg.times[7] = given_back;
  finish(*request, success);
  if (dropped_.empty()) return;
  std::ranges::move(dropped_, std::back_inserter(dropped));
  dropped_.clear();
}

void Worker::Impl::copy_out(Lock& lock, SentRequest& request) {
  std::size_t bytes = 0;
  for (const Target& target : request.pulls) {
    if (straight(target)) {
      ++counts_.answers_straight;
    } else {
      ++counts_.answers_copied;
      bytes += target.measured.bytes;
    }
  }
  if (bytes == 0) return;
  request.finishing = true;
  if (bytes > long_copy) lock.unlock();
  for (const Target& target : request.pulls) {
    if (straight(target)) continue;
    if (target.measured.dense) {
      std::memcpy(target.data, target.slot.memory.get(), target.measured.bytes);
      continue;
    }
    const auto extents = std::span<const std::int64_t>(request.extents).subspan(target.first);
    unpack(target.slot.memory.get(), {target.data, target.dtype, extents.first(target.dims),
                                      extents.subspan(target.dims, target.dims)});
  }
  if (!lock.owns_lock()) node_.loop().lock_again(lock);
  request.finishing = false;
}

// No longer known by its handlers; released once no server has it any more.
void Worker::Impl::finish(SentRequest& request, const Status& status) {
  Finished& entry = history_[next_finished_++ % most_finished];
  entry.first = request.first;
  entry.handlers = request.handlers;
  if (!entry.status.ok() || !status.ok()) entry.status = status;
  entry.traces.clear();
  entry.in_ticks = true;
  for (const Leg& leg : request.legs) entry.traces.push_back(leg.times);
  if (observe::registry().is_watched()) keep_span(request, entry, status.code);
  by_handler_.remove(request.first, request.handlers);
  --counts_.requests;
  request.abandoned = true;
  end_if_abandoned(request);
}

void Worker::Impl::end_if_abandoned(SentRequest& request) {
  if (!request.abandoned ||
      !std::ranges::all_of(request.legs, [](const Leg& leg) { return leg.over; })) {
    return;
  }
  if (request.keep != nullptr) dropped_.push_back(std::move(request.keep));
  if (request.standing == 0) return ended_.push_back(&request);
  by_number_.remove(request.number);
  release(request);  // at once: it may come again at once
}

// After cancel() no server begins to write; some may be writing.
void Worker::Impl::cancel(Lock& lock, SentRequest& request) {
  for (std::size_t server = 0; server < servers(); ++server) {
    Leg& leg = request.legs[server];
    ServerState& state = states_[server];
    if (leg.over) continue;
    close_targets(server, request);
    if (needs_word(request, server) && !swap(word(state, request), request.number,
                                             RequestState::pending, RequestState::cancelled)) {
      node_.loop().wait(lock, Deadline::after(grace), [&] { return leg.over; });
    }
  }
}

void Worker::Impl::fail(Lock& lock, std::uint64_t handler) {
  SentRequest& request = *by_handler_.find(handler);
  request.finishing = true;  // others who wait for it: not now
  try {
    cancel(lock, request);
  } catch (...) {
    request.finishing = false;
    throw;
  }
  request.finishing = false;
  Status failure;
  std::vector<std::string> silent;
  std::vector<std::string> writing;
  for (std::size_t server = 0; server < servers(); ++server) {
    const Leg& leg = request.legs[server];
    ServerState& state = states_[server];
    if (leg.over) {
      if (failure.ok()) failure = leg.status;
      continue;
    }
    silent.push_back(state.partner->name());
    if (needs_word(request, server) &&
        word(state, request).load() == word_of(request.number, RequestState::writing)) {
      writing.push_back(state.partner->name());
    }
  }
  if (failure.ok()) {
    failure = {Code::timeout, fmt::format("no answer from {} in time", fmt::join(silent, ", "))};
  }
  if (writing.empty()) {
    if (request.keep != nullptr) dropped_.push_back(std::move(request.keep));
  } else {
    failure.message +=
        fmt::format("; {} is still writing into a pull tensor, which is kept until that has ended",
                    fmt::join(writing, ", "));
  }
  finish(request, failure);
  throw Error(failure);
}

void Worker::Impl::end_leg(SentRequest& request, std::size_t server, const Status& status) {
  Leg& leg = request.legs[server];
  ServerState& state = states_[server];
  leg.over = true;
  if (!status.ok()) leg.status = status;
  --state.requests;
  state.bytes -= leg.bytes;
  if (request.standing == 0) {
    give_back_slots(state, leg);
    return close_targets(server, request);
  }
  for (std::size_t i = 0; i < leg.pushes.size(); ++i) {
    fetch_early(leg.pushes[i].slot.memory, request.pushes[i].bytes, true);
  }
}

void Worker::Impl::on_answer(ServerState& state, wire::Body& message) {
  const std::int64_t received = node_.ticker().now_after_reading();
  const auto answer = wire::take<wire::Answer>(message);
  const std::string_view text = message.raw(message.left());
  const auto server = static_cast<std::size_t>(state.partner->group());
  SentRequest* const request = by_number_.find(answer.number);
  if (request == nullptr || request->legs[server].over) {
    throw Error(Code::failed, "an answer to what nobody asked");
  }
  for (const Target& target : targets(*request, server)) {
    if (!straight(target)) fetch_early(target.slot.memory.get(), target.measured.bytes, false);
  }
  Trace& times = request->legs[server].times;
  std::ranges::copy(answer.times, times.begin() + 2);
  times[6] = received;
  if (answer.code == 0) {
    end_leg(*request, server, success);
  } else {
    end_leg(*request, server,
            {wire::checked_code(answer.code), fmt::format("{}: {}", state.partner->name(), text)});
  }
  end_if_abandoned(*request);
}

void Worker::Impl::on_lost(Partner& partner) {
  const auto server = static_cast<std::size_t>(partner.group());
  ServerState& state = states_[server];
  for (const auto& each : requests_) {
    SentRequest& request = *each;
    Leg& leg = request.legs[server];
    if (leg.over) continue;
    if (needs_word(request, server) && request.keep != nullptr) {
      Orphan orphan{request.keep, partner.peer().identity(), state.words.memory,
                    &word(state, request), request.number};
      if (still_writing(orphan)) orphans_.push_back(std::move(orphan));
    }
    end_leg(
        request, server,
        {Code::peer_lost, fmt::format("{} is gone: {}", partner.name(), partner.lost()->message)});
    end_if_abandoned(request);
  }
}

// A process that was stopped goes on where it was when it is continued, whatever this worker takes
// it for.
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

// Once, so that a caller that asks again is told the same.
void Worker::Impl::turn_into_times(Finished& entry) const {
  if (!std::exchange(entry.in_ticks, false)) return;
  for (std::size_t server = 0; server < servers(); ++server) {
    const std::span<std::int64_t> trace = entry.traces[server];
    if (states_[server].partner->shares_memory()) {
      node_.ticker().to_nanoseconds(trace);
    } else {
      node_.ticker().to_nanoseconds(trace.first(2));
      node_.ticker().to_nanoseconds(trace.last(2));
    }
  }
}

// A server's answer has the request's number, too.
void Worker::Impl::keep_span(const SentRequest& request, Finished& entry, Code code) {
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
  span.version = static_cast<std::int64_t>(request.number);
  span.bytes = static_cast<std::int64_t>(request.bytes);
  span.in(Phase::stage) = times[1] - times[0];
  span.in(Phase::wait) = (answered ? times[6] : span.end) - times[1];
  span.in(Phase::read) = answered ? span.end - times[6] : 0;
  for (const ServerState& state : states_) span.add_peer(node_.rank_of(*state.partner));
  const auto place = static_cast<std::size_t>(slowest - entry.traces.begin());
  if (answered) span.slowest = node_.rank_of(*states_[place].partner);
  span.name = observe::ShortText<56>("push_pull");
  span.side = observe::ShortText<24>("worker");
  node_.recorder().finish(span);
}

std::vector<Handler> Worker::Impl::handlers(Handler given) {
  const auto handler = static_cast<std::uint64_t>(given);
  const Lock lock = node_.loop().lock();
  const SentRequest* const request = by_handler_.find(handler);
  if (request == nullptr) {
    if (finished(handler) == nullptr) throw unknown(handler);
    return {given};
  }
  std::vector<Handler> all;
  for (std::uint64_t i = 0; i < request->handlers; ++i) {
    all.push_back(static_cast<Handler>(request->first + i));
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
