// What the parts of one CUDA device share.
#pragma once

#include <vector>

#include "device/core/budget.h"
#include "device/cuda/calls.h"
#include "device/cuda/thread.h"

namespace tensorbus::device::cuda {

// Events of a device, used again: making an event costs more than recording it.
class Events {
 public:
  explicit Events(Calls& calls) : calls_(calls) {}

  // With the device's context current.
  Event take();
  // An event that is still to come may be given back, too: whoever waits for the event has been
  // told so.
  void give_back(Event event);
  // Destroys the events that were given back, with the device's context current.
  void clear();

 private:
  Calls& calls_;
  Mutex mutex_;
  std::vector<Event> free_ GUARDED_BY(mutex_);
};

// The device's primary context, which frameworks use, too, and the thread that works in it.
class Engine {
 public:
  // On a thread of a caller: the first context of a process takes long.
  Engine(const Functions& functions, Id id, std::size_t pinned_bytes);
  ~Engine();

  Calls& calls() noexcept { return calls_; }
  Context context() const noexcept { return context_; }
  Events& events() noexcept { return events_; }
  Budget& budget() noexcept { return budget_; }
  Thread& thread() noexcept { return *thread_; }
  std::size_t longest_pitch() const noexcept { return longest_pitch_; }

  // Nothing of CUDA may be used in a forked child: there a call throws, and what is dropped stays.
  bool is_forked() const noexcept;
  void check_not_forked() const;

 private:
  Calls calls_;
  const unsigned generation_;
  Context context_ = nullptr;
  std::size_t longest_pitch_ = 0;
  Events events_;
  Budget budget_;
  std::unique_ptr<Thread> thread_;
};

// Throws Error(failed) in a process forked since then: there CUDA has ended for good.
void check_not_forked(unsigned generation, Id id);

// A thread of a caller uses the device: the thread's own context, and what the thread captures,
// stay as they are.
class Visit {
 public:
  explicit Visit(Engine& engine);
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Calls& calls_;
  CaptureMode mode_ = capture_relaxed;
};

}  // namespace tensorbus::device::cuda
