// Memory of a device for two processes, by CUDA's handles for them. Calls that make, open and close
// it may block: the device's thread makes them.
#pragma once

#include <atomic>
#include <map>

#include "device/cuda/engine.h"

namespace tensorbus::device::cuda {

// Windows of this process that nobody uses now, by their size.
class Windows : public std::enable_shared_from_this<Windows> {
 public:
  explicit Windows(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  std::shared_ptr<const Window> make(std::size_t bytes);

 private:
  class Made;
  class MakeJob;

  void give_back(std::shared_ptr<Made> window);

  const std::shared_ptr<Engine> engine_;
  Mutex mutex_;
  std::multimap<std::size_t, std::shared_ptr<Made>> free_ GUARDED_BY(mutex_);
};

class OpenedWindow final : public Window {
 public:
  OpenedWindow(std::shared_ptr<Engine> engine, std::string name);
  ~OpenedWindow() override;

  State state() const override { return shared_->state; }
  std::byte* data() const override { return reinterpret_cast<std::byte*>(shared_->memory); }
  const std::string& name() const override { return shared_->name; }

  struct Shared {
    Engine& engine;
    const std::string name;
    Pointer memory = 0;
    std::atomic<State> state = State::asked_for;
  };

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace tensorbus::device::cuda
