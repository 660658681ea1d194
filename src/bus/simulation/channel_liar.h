// A process of the same user that says anything to an agent's channel, with any descriptors; and a
// file that holds any records. Another client beside the liar notices nothing.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

#include "bus/channel/loan.h"
#include "bus/files/queue_journal.h"
#include "bus/simulation/scripted_agent.h"
#include "bus/socket/channel.h"
#include "bus/socket/frame_socket.h"
#include "bus/socket/protocol.h"
#include "fabric/conformance/dice.h"
#include "os/io/memory.h"
#include "os/io/poll.h"
#include "os/net/unix_socket.h"

namespace tensorbus::bus {

class DeceivedChannel {
 public:
  DeceivedChannel()
      : channel_(make_socket_channel(
            {folder_.file("queue"), "job", 3, 4,
             [this](LoanOffer offer) { return open_loan(std::move(offer), pool_); }})),
        good_(os::connect_unix_path(socket_path(folder_.file("queue")))) {
    good_.send({protocol::encode(protocol::Hello{protocol::version, "job", 3, 1, ::getpid()}), {}});
    hears<protocol::Welcome>();
  }

  // One liar, from its first word to its end. False: the other client has noticed.
  bool lie(std::string_view bytes) {
    fabric::Dice dice(bytes);
    {
      FrameSocket liar(os::connect_unix_path(socket_path(folder_.file("queue"))));
      const std::string hello = protocol::encode(
          protocol::Hello{protocol::version, "job", 3, 2 + dice.below(2), ::getpid()});
      liar.send({dice.below(8) == 0 ? dice.damaged(hello) : hello, {}});
      while (!dice.used_up() && !liar.closed()) {
        auto [words, fds] = something(dice);
        liar.send({dice.below(8) != 0 ? words : dice.damaged(words), std::move(fds)});
        poll(dice);
        while (liar.receive()) continue;
      }
    }
    fabric::Dice none("");
    poll(none);
    good_.send({protocol::encode(protocol::Look{7}), {}});
    return hears<protocol::Looked>();
  }

  std::size_t accepted() const noexcept { return accepted_; }  // of all that liars have submitted

 private:
  std::pair<std::string, std::vector<os::Fd>> something(fabric::Dice& dice) {
    std::vector<os::Fd> fds;
    protocol::FromClient message;
    switch (dice.below(10)) {
      case 0:
        message = protocol::Withdraw{dice.number()};
        break;
      case 1:
        message = protocol::Cancel{dice.number(), {Code::cancelled, dice.text(20)}};
        break;
      case 2:
        message = protocol::Look{dice.number()};
        break;
      case 3:
        message = protocol::GuardSemaphore{dice.number(), "/command_" + dice.text(20)};
        break;
      case 4:
        message = protocol::ReleaseSemaphore{"/command_" + dice.text(20)};
        break;
      case 5:
        message = protocol::Hello{protocol::version, "job", 3, dice.number(), ::getpid()};
        break;
      case 6:
        return {dice.text(60), std::move(fds)};
      default: {
        protocol::Submit submit;
        submit.sequence = dice.below(2) == 0 ? ++sequence_ : dice.number();
        submit.command = encode(
            dice.below(2) == 0 ? Command(CloseBatch{"b", dice.number()})
                               : Command(RegisterBatch{"b", dice.number(), std::nullopt, {}, {}}));
        if (dice.below(8) == 0) submit.command = dice.damaged(submit.command.bytes());
        if (dice.below(3) == 0) submit.time_left = static_cast<std::int64_t>(dice.number());
        if (dice.below(2) == 0) {
          LoanOffer offered = offer(*loan_, pool_, pool_);
          submit.loan = dice.below(2) == 0 ? offered.bytes : dice.damaged(offered.bytes);
          fds = std::move(offered.fds);
          if (dice.below(4) == 0) fds.resize(dice.below(3));
          if (dice.below(4) == 0) fds.emplace_back(::dup(file_.get()));
        }
        message = std::move(submit);
      }
    }
    return {protocol::encode(message), std::move(fds)};
  }

  // Some of the commands that the channel has accepted are over at once.
  void poll(fabric::Dice& dice) {
    for (const ChannelEvent& event : channel_->poll()) {
      const auto* submission = std::get_if<Submission>(&event);
      if (submission == nullptr) continue;
      ++accepted_;
      running_.push_back(submission->id);
    }
    while (!running_.empty() && dice.below(2) == 0) {
      channel_->complete(running_.back(), {});
      running_.pop_back();
    }
  }

  template <typename Message>
  bool hears() {
    const Deadline patience = Deadline::after(std::chrono::seconds(20));
    while (!patience.expired() && !good_.closed()) {
      fabric::Dice none("");
      poll(none);
      if (const auto frame = good_.receive()) {
        return std::holds_alternative<Message>(protocol::decode_from_agent(frame->bytes));
      }
    }
    return false;
  }

  Folder folder_;
  fabric::Pool pool_;
  os::Fd file_{os::sealed_memfd("liar", 4096)};
  std::shared_ptr<std::byte> memory_ = pool_.allocate(64);
  const std::int64_t shape_[1]{8};
  const std::int64_t strides_[1]{1};
  const TensorView tensor_{memory_.get(), Dtype::int64, shape_, strides_};
  std::shared_ptr<Loan> loan_ = make_loan(std::span(&tensor_, 1), pool_);
  std::unique_ptr<SocketChannel> channel_;
  FrameSocket good_;
  std::vector<CommandId> running_;
  std::size_t accepted_ = 0;
  std::uint64_t sequence_ = 0;
};

// Opens a queue whose records say anything. False: the queue was refused, in words.
inline bool is_read(std::string_view bytes) {
  fabric::Dice dice(bytes);
  const Folder folder;
  const std::string path = folder.file("queue");
  {
    QueueJournal journal(path);
    journal.add_session(5, {0, ::getpid(), 7});
    journal.accept({5, 1}, CloseBatch{"b", 1}, encode(Command(CloseBatch{"b", 1})));
    journal.guard_semaphore(5, "/command_of_a_liar");
  }
  {
    LmdbFile file(path, QueueJournal::kind);
    while (!dice.used_up()) {
      const std::string prefix = dice.below(2) == 0 ? "session/" : "command/";
      auto entries = file.scan(prefix);
      auto [key, value] = entries.empty() ? std::pair(prefix, std::string())
                                          : entries[dice.byte() % entries.size()];
      if (dice.below(4) == 0) key = prefix + dice.text(20);
      file.write({{key, dice.damaged(value)}});
    }
  }
  try {
    QueueJournal journal(path);
    return true;
  } catch (const Error& error) {
    if (error.code() != Code::failed) throw;
    return false;
  }
}

}  // namespace tensorbus::bus
