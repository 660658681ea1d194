#include "hooks.h"

#include "driver.h"

using tensorbus::device::cuda::ContextState;
using tensorbus::device::cuda::driver;
using tensorbus::device::cuda::StreamState;

namespace {

void forget(ContextState& context) {
  const auto streams = context.streams;
  for (StreamState* stream : streams) stream->lane->stop();
  for (StreamState* stream : streams) tensorbus::device::cuda::destroy_stream(stream);
  for (auto* event : context.events) delete event;
  context.events.clear();
  context.legacy = nullptr;
  context.retained = 0;
}

}  // namespace

void standin_restart() {
  auto& all = driver();
  for (ContextState* context : all.contexts) forget(*context);
  const std::lock_guard lock(all.mutex);
  all.past.insert(all.past.end(), all.contexts.begin(), all.contexts.end());
  all.contexts.clear();
  all.memory.clear();
  all.pinned.clear();
  all.calls.clear();
  all.calls_after_death = 0;
  all.initialised_by = 0;
  tensorbus::device::cuda::pushed().clear();
  tensorbus::device::cuda::capture_mode_of_thread() = tensorbus::device::cuda::capture_global;
  all.settings = tensorbus::device::cuda::settings_from_environment();
}

void standin_kill_context(int device, int error) {
  driver().contexts.at(static_cast<std::size_t>(device))->sticky = error;
}

StandinCounts standin_counts() {
  auto& all = driver();
  const std::lock_guard lock(all.mutex);
  StandinCounts counts{};
  for (const ContextState* context : all.contexts) {
    counts.streams += context->streams.size() - (context->legacy == nullptr ? 0 : 1);
    counts.events += context->events.size();
    counts.retained += static_cast<std::size_t>(context->retained);
  }
  counts.blocks = all.memory.count();
  counts.pinned = all.pinned.count();
  counts.after_death = static_cast<std::size_t>(all.calls_after_death);
  return counts;
}

int standin_calls(const char* name) {
  auto& all = driver();
  const std::lock_guard lock(all.mutex);
  return all.calls[name];
}

void* standin_shadow(std::uint64_t address) {
  auto& all = driver();
  const std::lock_guard lock(all.mutex);
  return all.memory.shadow(address, 1);
}
