#include "driver.h"

#include <unistd.h>

#include <algorithm>

namespace tensorbus::device::cuda {

Driver& driver() {
  static Driver* const only = new Driver;
  return *only;
}

std::vector<ContextState*>& pushed() {
  thread_local std::vector<ContextState*> stack;
  return stack;
}

CaptureMode& capture_mode_of_thread() {
  thread_local CaptureMode mode = capture_global;
  return mode;
}

namespace {

bool ends_contexts(Result result) {
  const bool of_memory =
      result == host_memory_already_registered || result == host_memory_not_registered;
  return result == deinitialized || result == unknown ||
         (result >= illegal_address && result <= launch_failed && !of_memory);
}

// Work stops with its context: what was issued is not done, what is under way is over before the
// caller hears of it.
void end_contexts(Result error) {
  std::vector<ContextState*> ended;
  {
    const std::lock_guard lock(driver().mutex);
    ended = driver().contexts;
  }
  for (ContextState* context : ended) {
    context->sticky = error;
    synchronize(*context);
  }
}

}  // namespace

Result admit(const char* name) {
  Driver& all = driver();
  Result failure = success;
  {
    const std::lock_guard lock(all.mutex);
    if (all.ended) return deinitialized;
    if (all.initialised_by != ::getpid()) return not_initialized;  // a forked child's, too
    failure = injected(all.settings, name, ++all.calls[name]);
  }
  if (ends_contexts(failure)) end_contexts(failure);
  return failure;
}

Result admit(const char* name, ContextState** current) {
  if (const Result refusal = admit(name)) return refusal;
  if (pushed().empty()) return invalid_context;
  ContextState& context = *pushed().back();
  Driver& all = driver();
  const std::lock_guard lock(all.mutex);
  if (context.retained == 0) return invalid_context;
  *current = &context;
  if (context.sticky == success) return success;
  if (context.sticky_was_told) ++all.calls_after_death;
  context.sticky_was_told = true;
  return context.sticky;
}

bool capture_forbids() {
  if (capture_mode_of_thread() != capture_global) return false;
  Driver& all = driver();
  const std::lock_guard lock(all.mutex);
  bool forbidden = false;
  for (ContextState* context : all.contexts) {
    for (StreamState* stream : context->streams) {
      if (stream->capture == capture_none || stream->capture_mode != capture_global) continue;
      stream->capture = capture_broken;
      forbidden = true;
    }
  }
  return forbidden;
}

StreamState* make_stream(ContextState& context, unsigned flags) {
  Driver& all = driver();
  const std::lock_guard lock(all.mutex);
  const auto seed = static_cast<unsigned>(all.settings.seed * 7919 + ::getpid()) +
                    static_cast<unsigned>(context.streams.size());
  auto* stream = new StreamState{&context, flags, std::make_shared<Lane>(all.settings, seed)};
  stream->lane->start();
  context.streams.insert(stream);
  return stream;
}

void destroy_stream(StreamState* stream) {
  stream->lane->finish();
  const std::lock_guard lock(driver().mutex);
  stream->context->streams.erase(stream);
  delete stream;
}

StreamState* stream_of(ContextState& context, Stream handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number == 0 || number == legacy_stream || number == per_thread_stream) return context.legacy;
  const std::lock_guard lock(driver().mutex);
  return context.streams.contains(handle) ? handle : nullptr;
}

bool is_event(Event event) {
  const std::lock_guard lock(driver().mutex);
  return std::ranges::any_of(driver().contexts, [&](const ContextState* context) {
    return context->events.contains(event);
  });
}

namespace {

bool is_blocking(const StreamState& stream) { return (stream.flags & stream_non_blocking) == 0; }

void add_last(const StreamState& stream, std::vector<std::shared_ptr<Point>>& after) {
  if (auto last = stream.lane->last()) after.push_back(std::move(last));
}

}  // namespace

std::shared_ptr<Point> enqueue(StreamState& stream, Work work,
                               std::vector<std::shared_ptr<Point>> after) {
  const std::lock_guard lock(driver().mutex);
  ContextState& context = *stream.context;
  if (stream.capture != capture_none) work = [](Dice&) {};
  if (&stream == context.legacy) {
    for (const StreamState* other : context.streams) {
      if (other != &stream && is_blocking(*other)) add_last(*other, after);
    }
  } else if (is_blocking(stream)) {
    add_last(*context.legacy, after);
  }
  const auto unless_dead = [&context, work = std::move(work)](Dice& dice) {
    if (context.sticky == success) work(dice);
  };
  return stream.lane->add(unless_dead, std::move(after));
}

void synchronize(ContextState& context) {
  std::vector<std::shared_ptr<Point>> ends;
  {
    const std::lock_guard lock(driver().mutex);
    for (const StreamState* stream : context.streams) add_last(*stream, ends);
  }
  for (const auto& end : ends) end->wait();
}

}  // namespace tensorbus::device::cuda
