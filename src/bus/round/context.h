// What all parts of one agent use. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "base/clock.h"
#include "bus/channel/channel.h"
#include "bus/directory/catalog.h"
#include "bus/directory/directory.h"
#include "bus/round/peer_connections.h"
#include "bus/round/step.h"
#include "device/core/copier.h"
#include "device/cuda/device.h"
#include "fabric/core/fabric.h"
#include "observe/recorder.h"
#include "tensorbus/deadline.h"

namespace tensorbus::bus {

// What to do when an operation of the fabric is over. A handler keeps alive whatever the operation
// borrows.
class Operations {
 public:
  using Handler = std::function<void(const fabric::Completion&)>;

  fabric::OpId add(Handler handler) {
    const auto id = static_cast<fabric::OpId>(++last_);
    handlers_.emplace(id, std::move(handler));
    return id;
  }
  void forget(fabric::OpId id) { handlers_.erase(id); }
  void finish(const fabric::Completion& completion) {
    const auto found = handlers_.find(completion.id);
    if (found == handlers_.end()) return;
    const Handler handler = std::move(found->second);
    handlers_.erase(found);
    handler(completion);
  }
  bool empty() const noexcept { return handlers_.empty(); }

 private:
  std::uint64_t last_ = 0;
  std::map<fabric::OpId, Handler> handlers_;
};

// Whether a message was for the object that was asked. The agent keeps a message that cannot be
// answered yet.
enum class Taken : std::uint8_t { no, later, done };

struct Context {
  Rank rank = 0;
  fabric::Fabric& fabric;
  PeerConnections& connections;
  Operations& operations;
  Directory& directory;
  Catalog& catalog;
  Channel& channel;
  std::function<std::uint64_t()> random;
  std::function<void(Step)> reached;  // may be empty
  TimePoint now{};
  Status store_is_away{};         // and why, or ok
  std::int64_t copy_threads = 0;  // what workers are told; 0: nothing
  bool records_changed = false;   // in this step: those of others, or what this rank shows of them
  const Clock* clock = nullptr;   // to measure how long something takes; null: nothing is measured
  observe::Recorder* recorder = nullptr;  // none: nothing is recorded
  device::Copiers copiers{&device::cuda::open};

  void at(Step step) const {
    if (reached) reached(step);
  }
  void count(observe::Counter observe::Recorder::*what) const noexcept {
    if (recorder != nullptr) (recorder->*what).add();
  }
  // For durations that are recorded, finer than steps.
  TimePoint moment() const noexcept { return recorder == nullptr ? now : tensorbus::now(); }
  void count_planning(TimePoint begin) const noexcept {
    if (recorder != nullptr) recorder->add_planning(moment() - begin);
  }
  // For durations that decide something: those of a simulation are all the same.
  TimePoint measured() const noexcept { return clock == nullptr ? now : clock->now(); }
  // Ends a command; ok: the agent did what was asked.
  void answer(CommandId id, Status status = {}) const {
    Outcome outcome;
    outcome.status = std::move(status);
    channel.complete(id, outcome);
  }
};

}  // namespace tensorbus::bus
