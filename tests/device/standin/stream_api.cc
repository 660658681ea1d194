// Streams, events, functions of the host, captures of graphs.
#include <utility>

#include "driver.h"

namespace tensorbus::device::cuda {
namespace {

template <typename Call>
Result with_stream(const char* name, Stream handle, const Call& call) {
  return with_context(name, [&](ContextState& context) -> Result {
    StreamState* stream = stream_of(context, handle);
    return stream == nullptr ? invalid_handle : call(context, *stream);
  });
}

template <typename Call>
Result with_event(const char* name, Event event, const Call& call) {
  return with_context(name, [&](ContextState& context) -> Result {
    return is_event(event) ? call(context) : invalid_handle;
  });
}

void do_nothing(Dice&) {}

}  // namespace

STANDIN_API cuStreamCreate(Stream* stream, unsigned flags) {
  return with_context("cuStreamCreate", [&](ContextState& context) {
    *stream = make_stream(context, flags);
    return success;
  });
}

STANDIN_API cuStreamCreateWithPriority(Stream* stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}

STANDIN_API cuStreamDestroy_v2(Stream handle) {
  return with_stream("cuStreamDestroy", handle, [&](ContextState& context, StreamState& stream) {
    if (&stream == context.legacy) return invalid_handle;
    destroy_stream(&stream);
    return success;
  });
}

STANDIN_API cuStreamSynchronize(Stream handle) {
  return with_stream("cuStreamSynchronize", handle,
                     [&](ContextState& context, StreamState& stream) -> Result {
                       if (capture_forbids()) return capture_unsupported;
                       if (const auto last = stream.lane->last()) last->wait();
                       return context.sticky;
                     });
}

STANDIN_API cuStreamQuery(Stream handle) {
  return with_stream("cuStreamQuery", handle, [&](ContextState&, StreamState& stream) {
    if (capture_forbids()) return capture_unsupported;
    const auto last = stream.lane->last();
    return last == nullptr || last->looked_at() ? success : not_ready;
  });
}

STANDIN_API cuStreamWaitEvent(Stream handle, Event event, unsigned) {
  return with_stream("cuStreamWaitEvent", handle, [&](ContextState&, StreamState& stream) {
    if (!is_event(event)) return invalid_handle;
    if (event->point != nullptr) enqueue(stream, do_nothing, {event->point});
    return success;
  });
}

STANDIN_API cuStreamGetCtx(Stream handle, Context* result) {
  return with_stream("cuStreamGetCtx", handle, [&](ContextState& context, StreamState&) {
    *result = &context;
    return success;
  });
}

STANDIN_API cuStreamGetFlags(Stream handle, unsigned* flags) {
  return with_stream("cuStreamGetFlags", handle, [&](ContextState&, StreamState& stream) {
    *flags = stream.flags;
    return success;
  });
}

STANDIN_API cuStreamGetPriority(Stream handle, int* priority) {
  return with_stream("cuStreamGetPriority", handle, [&](ContextState&, StreamState&) {
    *priority = 0;
    return success;
  });
}

STANDIN_API cuStreamIsCapturing(Stream handle, CaptureStatus* status) {
  return with_stream("cuStreamIsCapturing", handle, [&](ContextState&, StreamState& stream) {
    *status = stream.capture;
    return success;
  });
}

STANDIN_API cuStreamBeginCapture_v2(Stream handle, CaptureMode mode) {
  return with_stream("cuStreamBeginCapture", handle,
                     [&](ContextState& context, StreamState& stream) {
                       if (&stream == context.legacy) return capture_unsupported;
                       const std::lock_guard lock(driver().mutex);
                       stream.capture = capture_active;
                       stream.capture_mode = mode;
                       return success;
                     });
}

// There is no graph: what was captured is forgotten.
STANDIN_API cuStreamEndCapture(Stream handle, void** graph) {
  return with_stream("cuStreamEndCapture", handle, [&](ContextState&, StreamState& stream) {
    const std::lock_guard lock(driver().mutex);
    const CaptureStatus ended = std::exchange(stream.capture, capture_none);
    *graph = nullptr;
    if (ended == capture_none) return invalid_value;
    return ended == capture_broken ? capture_invalidated : success;
  });
}

// Not called when the context has died before its turn, as documented.
STANDIN_API cuLaunchHostFunc(Stream handle, HostFunction function, void* argument) {
  return with_stream("cuLaunchHostFunc", handle, [&](ContextState&, StreamState& stream) {
    enqueue(stream, [=](Dice&) { function(argument); });
    return success;
  });
}

STANDIN_API cuEventCreate(Event* result, unsigned flags) {
  return with_context("cuEventCreate", [&](ContextState& context) {
    const bool timed = (flags & event_disable_timing) == 0;
    if ((flags & event_interprocess) != 0 && timed) return invalid_value;
    const std::lock_guard lock(driver().mutex);
    *result = new EventState{&context, nullptr};
    context.events.insert(*result);
    return success;
  });
}

STANDIN_API cuEventDestroy_v2(Event event) {
  return with_event("cuEventDestroy", event, [&](ContextState&) {
    const std::lock_guard lock(driver().mutex);
    event->context->events.erase(event);
    delete event;
    return success;
  });
}

STANDIN_API cuEventRecord(Event event, Stream handle) {
  return with_stream("cuEventRecord", handle, [&](ContextState& context, StreamState& stream) {
    if (!is_event(event) || event->context != &context) return invalid_handle;
    event->point = enqueue(stream, do_nothing);
    return success;
  });
}

STANDIN_API cuEventQuery(Event event) {
  return with_event("cuEventQuery", event, [&](ContextState&) {
    if (capture_forbids()) return capture_unsupported;
    return event->point == nullptr || event->point->looked_at() ? success : not_ready;
  });
}

STANDIN_API cuEventSynchronize(Event event) {
  return with_event("cuEventSynchronize", event, [&](ContextState& context) -> Result {
    if (capture_forbids()) return capture_unsupported;
    if (event->point != nullptr) event->point->wait();
    return context.sticky;
  });
}

}  // namespace tensorbus::device::cuda
