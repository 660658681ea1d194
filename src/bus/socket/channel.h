// The channel of a daemon: clients connect to `<command queue path>.sock`.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bus/channel/channel.h"
#include "bus/channel/loan.h"
#include "bus/files/lmdb_file.h"

namespace tensorbus::bus {

std::string socket_path(const std::string& queue_path);

struct SocketChannelOptions {
  std::string queue_path;
  std::string space;  // the namespace that clients must name
  Rank rank = 0;      // and the rank
  std::size_t capacity = default_queue_capacity;
  // Opens the memory that a registration brings; errors of this call become those of the
  // registration.
  std::function<std::shared_ptr<Loan>(LoanOffer)> open_loan;
  std::size_t journal_bytes = LmdbFile::usual_bytes;  // how much the queue's file can hold
};

class SocketChannel : public Channel {
 public:
  // The queue goes when the channel does, instead of waiting for the next agent.
  virtual void remove_at_close() noexcept = 0;
};

// Takes the queue's file (Error(failed) if the agent cannot, or another agent has the file) and
// listens. The sessions that the last agent left are Lost when their process is, or if they do not
// come back within seconds.
std::unique_ptr<SocketChannel> make_socket_channel(const SocketChannelOptions& options);

}  // namespace tensorbus::bus
