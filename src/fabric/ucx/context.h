// UCX itself: one context and one worker that listens on the device of one address.
//
// Active messages only. Without UCP_FEATURE_RMA a peer cannot read or write our memory: over TCP,
// UCX emulates get and put without checking addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/ucx/library.h"
#include "fabric/ucx/ucx.h"
#include "os/net/tcp.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric::ucx {

struct Settings {
  std::string bind = "127.0.0.1";  // an address of this machine, not a name
  PortRange ports;
};

// "what: UCX's text (status -25)".
Status status_of(Code code, std::string_view what, ucs_status_t status);

// The network device that has this address. Error if no device has.
std::string device_with_address(const std::string& address);

// Gets every active message of a worker, inside Worker::progress(). Header and body are borrowed
// for the call: UCX reuses the memory afterwards.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void received(std::span<const std::byte> header,
                        std::span<const std::byte> payload) noexcept = 0;
};

// Owned and driven by one thread.
class Worker {
 public:
  // `receiver` is borrowed for the worker's life.
  Worker(const Settings& settings, Receiver& receiver);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  // Endpoints are closed before.
  ~Worker();

  // What another worker needs to reach this one.
  const std::string& address() const noexcept { return address_; }
  const std::string& device() const noexcept { return device_; }
  ucp_worker_h handle() const noexcept { return worker_; }

  // Runs callbacks; false if there was nothing to do.
  bool progress() noexcept { return ucx_.ucp_worker_progress(worker_) != 0; }
  // Readable when there is something to do, once arm() has returned true.
  int event_fd() const noexcept { return event_fd_; }
  // The socket on which UCX listens, if it was found.
  std::optional<int> listener() const noexcept { return listener_; }
  // False: something came in meanwhile, call progress() before sleeping.
  bool arm();

  // Programs that this process starts do not inherit its connections. UCX does not see to that.
  void keep_from_programs() noexcept;

 private:
  void create_context();
  void create_worker();
  void look_for_listener(const std::vector<os::ListeningSocket>& before, std::string_view address);
  void destroy() noexcept;

  const Library& ucx_ = library();
  Receiver& receiver_;
  const Settings settings_;
  std::string device_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  int event_fd_ = -1;            // UCX's own, like
  std::optional<int> listener_;  // this
};

// The id under which our messages arrive; other ids have no handler and are dropped by UCX.
inline constexpr unsigned message_id = 7;

// The transports of the UCX that was loaded.
std::vector<std::string> transports();

}  // namespace tensorbus::fabric::ucx
