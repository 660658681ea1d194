// A read as its caller and the loop that carries it out share it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "os/io/poll.h"
#include "os/process/fork.h"
#include "tensorbus/endpoint.h"

namespace tensorbus {

struct ReadOperation::State {
  State(std::string named, std::function<void()> stop)
      : what(std::move(named)), request_cancel(std::move(stop)) {}

  // By the loop, once.
  void finish(Status outcome);
  void set_path(std::string_view name);
  void set_received(std::shared_ptr<const Received> tensors);

  const std::string what;  // "read from trainer (pid 12)"
  const std::function<void()> request_cancel;
  const unsigned generation = os::fork_generation();
  std::atomic<bool> over{false};

  std::mutex mutex;
  Status status;
  std::string path;
  std::shared_ptr<const Received> received;
  std::optional<os::EventFd> event;  // made when somebody waits
};

}  // namespace tensorbus
