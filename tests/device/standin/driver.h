// What the stand-in knows: the process, its contexts, and whether a call may do its work.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lane.h"
#include "memory.h"
#include "settings.h"

// How each function of the driver is declared.
#define STANDIN_API \
  extern "C" __attribute__((visibility("default"))) ::tensorbus::device::cuda::Result

namespace tensorbus::device::cuda {

struct StreamState {
  ContextState* context = nullptr;
  unsigned flags = 0;
  std::shared_ptr<Lane> lane;
  CaptureStatus capture = capture_none;
  CaptureMode capture_mode = capture_relaxed;
};

struct EventState {
  ContextState* context = nullptr;
  std::shared_ptr<Point> point;  // null: never recorded, which counts as over
};

// The primary context of a device.
struct ContextState {
  Device device = 0;
  std::atomic<int> retained = 0;
  std::atomic<Result> sticky = success;
  bool sticky_was_told = false;
  StreamState* legacy = nullptr;
  std::set<StreamState*> streams;  // the legacy one among them
  std::set<EventState*> events;
};

struct Driver {
  std::mutex mutex;  // guards all but the settings
  Settings settings = settings_from_environment();
  pid_t initialised_by = 0;
  bool ended = false;
  DeviceMemory memory;
  PinnedMemory pinned;
  std::vector<ContextState*> contexts;  // one per device
  std::vector<ContextState*> past;      // of before a restart: threads may still name them
  std::map<std::string, int> calls;
  int calls_after_death = 0;  // with a context whose sticky error had been told before
};

// Never destroyed: threads of streams use it to the end.
Driver& driver();

// The contexts that the calling thread has pushed.
std::vector<ContextState*>& pushed();
CaptureMode& capture_mode_of_thread();

// Whether a call may go on: not before cuInit, not in a forked child, not after exit, not if a
// failure is asked for.
Result admit(const char* name);
// The same for calls that need a context: its sticky error comes first.
Result admit(const char* name, ContextState** current);

// Calls that a capture in mode "global" forbids break that capture.
bool capture_forbids();

StreamState* make_stream(ContextState& context, unsigned flags);
void destroy_stream(StreamState* stream);
// The stream that a handle names in this context; null: no such stream.
StreamState* stream_of(ContextState& context, Stream handle);
bool is_event(Event event);

// Adds to a stream. The legacy stream and blocking streams wait for each other; what a capturing
// stream is given never runs, nor what comes after a sticky error.
std::shared_ptr<Point> enqueue(StreamState& stream, Work work,
                               std::vector<std::shared_ptr<Point>> after = {});
// Waits for all that a context has been given.
void synchronize(ContextState& context);

template <typename Call>
Result with_driver(const char* name, const Call& call) {
  const Result refusal = admit(name);
  return refusal == success ? call() : refusal;
}

template <typename Call>
Result with_context(const char* name, const Call& call) {
  ContextState* context = nullptr;
  const Result refusal = admit(name, &context);
  return refusal == success ? call(*context) : refusal;
}

}  // namespace tensorbus::device::cuda
