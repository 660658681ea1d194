// The sending half of a connection: UCX's endpoint, and the memory of messages that are under way.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "fabric/ucx/context.h"
#include "fabric/ucx/wire.h"

namespace tensorbus::fabric::ucx {

// One outgoing message. UCX copies neither frame nor body: both live until the send completes.
struct Outgoing {
  Outgoing() : body(std::make_unique_for_overwrite<std::byte[]>(max_body_bytes)) {}

  FrameBytes frame{};
  std::unique_ptr<std::byte[]> body;
  std::size_t bytes = 0;

  std::span<std::byte> room() noexcept { return {body.get(), max_body_bytes}; }
};

class Endpoint;

// Messages waiting to be filled and messages under way. Outlives the worker: only the worker's
// destruction ends sends that a vanished peer left behind.
class Outbox {
 public:
  std::unique_ptr<Outgoing> take();
  void give_back(std::unique_ptr<Outgoing> message);
  bool empty() const noexcept { return under_way_.empty(); }

 private:
  friend class Endpoint;
  // What an endpoint and the callbacks of its sends share; callbacks may come after the endpoint's
  // end.
  struct Traffic {
    std::size_t sends = 0;
    std::size_t bytes = 0;
    std::optional<ucs_status_t> failure;
  };
  struct Send {
    Outbox* outbox = nullptr;
    std::shared_ptr<Traffic> traffic;
    std::unique_ptr<Outgoing> message;
    std::list<Send>::iterator self;
  };
  static void completed(void* request, ucs_status_t status, void* user_data) noexcept;

  std::vector<std::unique_ptr<Outgoing>> free_;
  std::list<Send> under_way_;
};

// Messages leave in the order of the sends. A completed send is no sign of life: the kernel takes
// megabytes for a peer that is stopped.
class Endpoint {
 public:
  // `remote` is the other worker's address(). Error if these bytes are no address.
  Endpoint(Worker& worker, Outbox& outbox, std::string_view remote);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  // Forced: never waits, cancels what is under way, and neither closes the TCP connection nor tells
  // the peer. Not inside a callback of UCX.
  ~Endpoint();

  void send(std::unique_ptr<Outgoing> message) noexcept;

  std::size_t sends_under_way() const noexcept { return traffic_->sends; }
  std::size_t bytes_under_way() const noexcept { return traffic_->bytes; }
  // Set once UCX has found the peer gone.
  std::optional<ucs_status_t> failure() const noexcept { return traffic_->failure; }

  // Whether all that was sent has reached the kernel. Asks UCX on the first call.
  bool flushed() noexcept;

 private:
  Outbox& outbox_;
  std::shared_ptr<Outbox::Traffic> traffic_;
  ucp_ep_h endpoint_ = nullptr;
  void* flush_ = nullptr;  // UCX's request
  bool flush_started_ = false;
};

}  // namespace tensorbus::fabric::ucx
