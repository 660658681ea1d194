#include "device/cuda/window.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace tensorbus::device::cuda {
namespace {

using SharedWindow = std::shared_ptr<OpenedWindow::Shared>;

class OpenJob final : public Job {
 public:
  explicit OpenJob(SharedWindow window) : window_(std::move(window)) {}

  void start() override {
    IpcMemHandle handle{};
    if (window_->name.size() != sizeof handle.reserved) {
      throw Error(Code::failed, "a window has a name of the wrong size");
    }
    std::memcpy(handle.reserved, window_->name.data(), sizeof handle.reserved);
    window_->engine.calls()(&Functions::cuIpcOpenMemHandle, &window_->memory, handle,
                            ipc_lazy_peer_access);
  }
  void end(const Status& status) noexcept override {
    if (!status.ok()) log::debug("no window of another process: {}", status.message);
    window_->state = status.ok() ? Window::State::ready : Window::State::refused;
  }

 private:
  const SharedWindow window_;
};

class CloseWindowJob final : public Job {
 public:
  explicit CloseWindowJob(SharedWindow window) : window_(std::move(window)) {}

  void start() override {
    if (window_->memory == 0) return;
    window_->engine.calls()(&Functions::cuIpcCloseMemHandle, window_->memory);
  }
  void end(const Status& status) noexcept override {
    if (!status.ok()) log::debug("{}", status.message);
  }

 private:
  const SharedWindow window_;
};

}  // namespace

class Windows::Made {
 public:
  explicit Made(std::size_t size) : bytes(size) {}

  const std::size_t bytes;
  Pointer memory = 0;
  std::string name;
  std::atomic<Window::State> state = Window::State::asked_for;
};

class Windows::MakeJob final : public Job {
 public:
  MakeJob(Engine& engine, std::shared_ptr<Made> window)
      : engine_(engine), window_(std::move(window)) {}

  void start() override {
    Calls& calls = engine_.calls();
    calls(&Functions::cuMemAlloc, &window_->memory, window_->bytes);
    IpcMemHandle handle{};
    const Result result = calls.ask(&Functions::cuIpcGetMemHandle, &handle, window_->memory);
    if (result != success) {
      calls.ask(&Functions::cuMemFree, window_->memory);  // nobody has seen it
      throw Error(Code::failed, "cuIpcGetMemHandle gives " + calls.text_of(result));
    }
    window_->name.assign(handle.reserved, sizeof handle.reserved);
  }
  void end(const Status& status) noexcept override {
    if (!status.ok()) {
      log::debug("{} has no window for other processes: {}", to_string(engine_.calls().id()),
                 status.message);
    }
    window_->state = status.ok() ? Window::State::ready : Window::State::refused;
  }

 private:
  Engine& engine_;
  const std::shared_ptr<Made> window_;
};

std::shared_ptr<const Window> Windows::make(std::size_t bytes) {
  // What its user sees of a window; dropping it gives the window back.
  class Used final : public Window {
   public:
    Used(std::shared_ptr<Windows> windows, std::shared_ptr<Made> window)
        : windows_(std::move(windows)), window_(std::move(window)) {}
    ~Used() override {
      if (state() != State::refused) windows_->give_back(window_);
    }
    State state() const override { return window_->state; }
    std::byte* data() const override { return reinterpret_cast<std::byte*>(window_->memory); }
    const std::string& name() const override { return window_->name; }

   private:
    const std::shared_ptr<Windows> windows_;
    const std::shared_ptr<Made> window_;
  };
  engine_->check_not_forked();
  {
    const Lock lock(mutex_);
    const auto found = free_.find(bytes);
    if (found != free_.end()) {
      auto known = std::make_shared<Used>(shared_from_this(), std::move(found->second));
      free_.erase(found);
      return known;
    }
  }
  auto made = std::make_shared<Made>(bytes);
  engine_->thread().post(std::make_unique<MakeJob>(*engine_, made));
  return std::make_shared<Used>(shared_from_this(), std::move(made));
}

void Windows::give_back(std::shared_ptr<Made> window) {
  const Lock lock(mutex_);
  free_.emplace(window->bytes, std::move(window));
}

OpenedWindow::OpenedWindow(std::shared_ptr<Engine> engine, std::string name)
    : engine_(std::move(engine)), shared_(new Shared{*engine_, std::move(name)}) {
  engine_->check_not_forked();
  engine_->thread().post(std::make_unique<OpenJob>(shared_));
}

OpenedWindow::~OpenedWindow() {
  if (!engine_->is_forked()) {
    engine_->thread().post(std::make_unique<CloseWindowJob>(shared_));
  }
}

}  // namespace tensorbus::device::cuda
