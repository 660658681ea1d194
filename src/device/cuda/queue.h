// A queue as two streams of ours: one copies, the other only waits for users' streams.
#pragma once

#include "device/cuda/engine.h"
#include "device/cuda/moment.h"
#include "os/io/poll.h"

namespace tensorbus::device::cuda {

class StreamQueue final : public Queue {
 public:
  explicit StreamQueue(std::shared_ptr<Engine> engine);
  ~StreamQueue() override;

  void wait(std::shared_ptr<const Moment> moment) override;
  Mark watch(std::shared_ptr<const Moment> moment) override;
  Mark copy(std::vector<Block> blocks) override;
  int fd() const noexcept override;
  void drain() noexcept override;

  // What the queue and its jobs share. Only the device's thread touches all but the bell.
  struct State {
    explicit State(Engine& the_engine) : engine(the_engine) {}

    Engine& engine;
    Stream copies = nullptr;
    Stream watches = nullptr;
    int open_jobs = 0;
    Status broken;  // not ok: an order could not be kept, so nothing more is copied
    os::EventFd told;
  };

 private:
  void post(std::unique_ptr<Job> job);

  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<State> state_;
};

}  // namespace tensorbus::device::cuda
