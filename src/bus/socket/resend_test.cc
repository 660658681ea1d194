// What a client sends again after its agent was killed, with agents that are processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "base/testing/calls.h"
#include "bus/files/dump.h"
#include "bus/simulation/scripted_agent.h"
#include "bus/socket/channel.h"
#include "bus/socket/frame_socket.h"
#include "bus/socket/protocol.h"
#include "os/io/poll.h"
#include "os/testing/quiet_fork.h"

namespace tensorbus::bus {
namespace {

Command query() { return QuerySignal{"b", true, {}, {}}; }

// Completes every command at once.
class AgentProcess {
 public:
  explicit AgentProcess(const std::string& queue)
      : pid_(os::fork_child([&] {
          ScriptedAgent agent(make_socket_channel({queue, "job", 3, default_queue_capacity, {}}),
                              [](Channel& channel, const ChannelEvent& event) {
                                if (const auto* submission = std::get_if<Submission>(&event))
                                  channel.complete(submission->id, {});
                              });
          while (true) ::pause();
        })) {}
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;
  ~AgentProcess() { kill(); }

  // While its clients are still connected, if they are to be known to the next agent.
  void kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_;
};

class Caller {
 public:
  explicit Caller(const std::string& queue) : socket_(reach(socket_path(queue))) {}

  std::uint64_t greet() {
    say(protocol::Hello{protocol::version, "job", 3, 77, ::getpid()});
    return std::get<protocol::Welcome>(hear()).last_accepted;
  }
  void submit(std::uint64_t sequence) {
    say(protocol::Submit{sequence, encode(query()), std::nullopt, std::nullopt, true});
  }
  std::uint64_t done() { return std::get<protocol::Done>(hear()).sequence; }

 private:
  static os::Fd reach(const std::string& path) {
    for (const Deadline deadline = soon();;) {
      try {
        return os::connect_unix_path(path);
      } catch (const Error&) {
        if (deadline.expired()) throw;
        ::usleep(1000);
      }
    }
  }
  void say(const protocol::FromClient& message) { socket_.send({protocol::encode(message), {}}); }
  protocol::FromAgent hear() {
    for (const Deadline deadline = soon(); !deadline.expired();) {
      if (const auto frame = socket_.receive()) return protocol::decode_from_agent(frame->bytes);
      pollfd ready{socket_.socket().get(), POLLIN, 0};
      os::sleep_ready({&ready, 1}, deadline);
    }
    throw Error(Code::timeout, "the agent says nothing");
  }

  FrameSocket socket_;
};

class ResendTest : public testing::Test {
 protected:
  bool file_has_commands() const {
    return dump_agent_file(queue_).find("command/") != std::string::npos;
  }
  void expect_the_next_agent_knows_of(std::uint64_t last) {
    AgentProcess agent(queue_);
    Caller caller(queue_);
    EXPECT_EQ(caller.greet(), last);
    for (const std::uint64_t sequence : {last, last + 1}) caller.submit(sequence);
    EXPECT_EQ(caller.done(), last + 1);  // nothing is said of the one that was sent again
    agent.kill();
  }

  Folder folder_;
  const std::string queue_ = folder_.file("queue");
};

// proves: B5.18
TEST_F(ResendTest, ACommandThatIsOverIsNotAcceptedByTheNextAgentWhetherItsEndIsWrittenOrNot) {
  {
    AgentProcess agent(queue_);
    Caller caller(queue_);
    EXPECT_EQ(caller.greet(), 0U);
    for (const std::uint64_t sequence : {1, 2, 3}) {
      caller.submit(sequence);
      EXPECT_EQ(caller.done(), sequence);
    }
    agent.kill();
  }
  expect_the_next_agent_knows_of(3);
  expect_the_next_agent_knows_of(4);
}

// proves: B5.18
TEST_F(ResendTest, AnAgentThatHasNothingToDoEmptiesItsFileAndStillKnowsWhatItAccepted) {
  {
    AgentProcess agent(queue_);
    Caller caller(queue_);
    EXPECT_EQ(caller.greet(), 0U);
    caller.submit(1);
    EXPECT_EQ(caller.done(), 1U);
    const Deadline deadline = soon();
    while (file_has_commands() && !deadline.expired()) ::usleep(10'000);
    EXPECT_FALSE(file_has_commands());
    agent.kill();
  }
  expect_the_next_agent_knows_of(1);
}

}  // namespace
}  // namespace tensorbus::bus
