// What the caller of a read and the loop that carries it out share.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
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

  std::string taken_path();

  const std::string what;  // "read from trainer (pid 12)"
  const std::function<void()> request_cancel;
  const unsigned generation = os::fork_generation();
  std::atomic<bool> over{false};

  Mutex mutex;
  Status status GUARDED_BY(mutex);
  std::string path GUARDED_BY(mutex);
  std::shared_ptr<const Received> received GUARDED_BY(mutex);
  std::optional<os::EventFd> event GUARDED_BY(mutex);  // made when somebody waits
};

}  // namespace tensorbus
