// What the channel of a daemon does beyond the suite of all channels: other processes, restarts,
// strangers.
#include "bus/socket/channel.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <set>

#include "base/clock.h"
#include "base/testing/calls.h"
#include "bus/files/heartbeat.h"
#include "bus/files/lmdb_state.h"
#include "bus/simulation/scripted_agent.h"
#include "bus/socket/connection.h"
#include "bus/socket/frame_socket.h"
#include "bus/socket/protocol.h"
#include "os/io/semaphore.h"
#include "os/testing/quiet_fork.h"

namespace tensorbus::bus {
namespace {

using std::chrono::milliseconds;

class NoLoan final : public Loan {
 public:
  const std::vector<TensorView>& tensors() const noexcept override { return tensors_; }
  std::shared_ptr<const fabric::Lender> lender() const noexcept override { return nullptr; }
  fabric::Gate gate() const override {
    return fabric::Gate(std::make_shared<std::atomic<std::uint64_t>>(0));
  }

 private:
  std::vector<TensorView> tensors_;
};

// Events of an agent, for another thread to wait for.
class SeenEvents {
 public:
  void add(const ChannelEvent& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    changed_.notify_all();
  }
  template <typename Event>
  std::vector<Event> of() {
    const std::lock_guard lock(mutex_);
    std::vector<Event> found;
    for (const ChannelEvent& event : events_) {
      if (const auto* each = std::get_if<Event>(&event)) found.push_back(*each);
    }
    return found;
  }
  template <typename Event>
  bool wait_for(std::size_t count, Duration time = std::chrono::seconds(10)) {
    const Deadline deadline = Deadline::after(time);
    while (of<Event>().size() < count) {
      if (deadline.expired()) return false;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, milliseconds(20));
    }
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ChannelEvent> events_;
};

class SocketChannelTest : public testing::Test {
 protected:
  std::unique_ptr<SocketChannel> listen(const std::string& space = "job", Rank rank = 3) {
    return make_socket_channel(
        {queue_, space, rank, default_queue_capacity, [this](LoanOffer offer) {
           if (offer.bytes != "loan" || offer.fds.size() != 1) {
             throw Error(Code::denied, "the loan was cut");
           }
           ++loans_opened_;
           return std::make_shared<NoLoan>();
         }});
  }
  std::shared_ptr<Connection> connect(const std::string& space = "job",
                                      Duration time = std::chrono::seconds(20)) {
    return connect_to_agent({queue_, state_, space, 3,
                             [](const Loan&) {
                               LoanOffer offer{"loan", {}};
                               offer.fds.emplace_back(::dup(0));
                               return offer;
                             }},
                            Deadline::after(time));
  }
  // Answers everything but batches named "hold".
  ScriptedAgent::Script script() {
    return [this](Channel& channel, const ChannelEvent& event) {
      seen_.add(event);
      if (const auto* submission = std::get_if<Submission>(&event)) {
        if (context_of(submission->command) != "hold") channel.complete(submission->id, {});
      }
    };
  }
  std::string refusal(const std::string& space, Duration time) {
    try {
      connect(space, time);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::unreachable);
      return error.what();
    }
    return {};
  }
  static Command query(const std::string& batch) { return QuerySignal{batch, true, {}, {}}; }

  // Paths of sockets end after 107 bytes.
  std::string deep_folder() {
    const std::string path = folder_.file(std::string(120, 'd'));
    std::filesystem::create_directory(path);
    return path;
  }

  Folder folder_;
  const std::string queue_ = deep_folder() + "/queue.lmdb";
  const std::string state_ = folder_.file("state.lmdb");
  SeenEvents seen_;
  std::atomic<int> loans_opened_{0};
};

bool contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
  return text.find(part) != std::string::npos;
}

// proves: B1.1, B2.2
TEST_F(SocketChannelTest, AnAbsentOrSilentAgentIsToldWithPathHeartbeatAndVariable) {
  const std::string absent = refusal("job", milliseconds(100));
  contains(absent, queue_);
  contains(absent, "no heartbeat");
  contains(absent, "AGENT_RANK");
  LmdbState state(state_);
  state.put("heartbeat",
            encode(Heartbeat{wall_clock_ns() - 7'000'000'000, "job", "send of batch \"w\""}));
  const std::unique_ptr<SocketChannel> nobody_polls = listen();
  const std::string silent = refusal("job", milliseconds(100));
  contains(silent, "does not answer");
  contains(silent, "is 7.");
  contains(silent, "in send of batch \"w\"");
}

// proves: B1.2
TEST_F(SocketChannelTest, AClientOfAnotherJobRankOrVersionIsSentAwayAtOnce) {
  ScriptedAgent agent(listen("job", 3), script());
  contains(refusal("other", std::chrono::seconds(60)), "namespace \"job\"");
  FrameSocket raw(os::connect_unix_path(socket_path(queue_)));
  const auto answer = [&](const protocol::Hello& hello) {
    FrameSocket socket(os::connect_unix_path(socket_path(queue_)));
    socket.send({protocol::encode(hello), {}});
    pollfd ready{socket.socket().get(), POLLIN, 0};
    ::poll(&ready, 1, 10'000);
    return std::get<protocol::Rejected>(protocol::decode_from_agent(socket.receive()->bytes))
        .reason.message;
  };
  contains(answer({99, "job", 3, 1, 1}), "version");
  contains(answer({protocol::version, "job", 4, 1, 1}), "rank 3, not of rank 4");
  EXPECT_TRUE(seen_.of<SessionUp>().empty());
  EXPECT_TRUE(connect()->submit(query("b"), nullptr, soon(), soon())->wait(soon()).status.ok());
}

TEST_F(SocketChannelTest, TheSocketIsOursAloneAndGoesWithTheAgent) {
  {
    const auto channel = listen();
    struct stat info {};
    ASSERT_EQ(::lstat(socket_path(queue_).c_str(), &info), 0);
    EXPECT_TRUE(S_ISSOCK(info.st_mode));
    EXPECT_EQ(info.st_mode & 0777, 0600U);
    EXPECT_THROW(listen(), Error);  // two agents of one rank
  }
  EXPECT_FALSE(std::filesystem::exists(socket_path(queue_)));
  std::filesystem::create_symlink("/nowhere", socket_path(queue_));
  EXPECT_THROW(listen(), Error);
}

TEST_F(SocketChannelTest, GarbageEndsAConnectionAndNothingElse) {
  ScriptedAgent agent(listen(), script());
  for (const std::string& bytes :
       {std::string("\xc1"), std::string(70'000, '\x91'), protocol::encode(protocol::Look{1})}) {
    FrameSocket socket(os::connect_unix_path(socket_path(queue_)));
    socket.send({bytes, {}});
    const Deadline deadline = soon();
    while (!socket.closed() && !deadline.expired()) {
      pollfd ready{socket.socket().get(), POLLIN, 0};
      ::poll(&ready, 1, 100);
      EXPECT_FALSE(socket.receive().has_value());
    }
    EXPECT_TRUE(socket.closed());
  }
  EXPECT_TRUE(connect()->submit(query("b"), nullptr, soon(), soon())->wait(soon()).status.ok());
}

TEST_F(SocketChannelTest, AKilledClientIsSeenWithinTwoSecondsAndItsSemaphoreGoes) {
  ScriptedAgent agent(listen(), script());
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const std::string semaphore = "/command_socket_channel_test." + std::to_string(::getpid());
  const pid_t child = os::fork_child([&] {
    const auto client = connect();
    client->submit(query("hold"), nullptr, Deadline::never(), soon());
    client->guard_semaphore(semaphore, soon());
    const os::NamedSemaphore made(semaphore);
    [[maybe_unused]] const auto told = ::write(ready[1], "x", 1);
    while (true) ::pause();
  });
  ::close(ready[1]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ASSERT_TRUE(seen_.wait_for<SessionUp>(1));
  EXPECT_EQ(seen_.of<SessionUp>()[0].pid, child);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(seen_.wait_for<SessionLost>(1, std::chrono::seconds(2)));
  EXPECT_EQ(seen_.of<SessionLost>()[0].reason.code, Code::peer_lost);
  EXPECT_FALSE(os::unlink_semaphore(semaphore));
}

// proves: B5.18
TEST_F(SocketChannelTest, AClientComesBackToARestartedAgentWithItsMemory) {
  auto agent = std::make_unique<ScriptedAgent>(listen(), script());
  const auto client = connect();
  const RegisterBatch batch{"kept", 5, {}, {}, {}, Verify::off};
  const RegisterBatch closed{"closed", 6, {}, {}, {}, Verify::off};
  for (const RegisterBatch& each : {batch, closed}) {
    client->submit(each, std::make_shared<NoLoan>(), soon(), soon())->wait(soon());
  }
  client->submit(CloseBatch{"closed", 6}, nullptr, soon(), soon())->wait(soon());
  const auto pending = client->submit(query("hold"), nullptr, Deadline::never(), soon());
  agent.reset();
  const Outcome& ended = pending->wait(Deadline::after(std::chrono::seconds(2)));
  EXPECT_EQ(ended.status.code, Code::unreachable);
  contains(ended.status.message, "ended before it was over");

  // Submitted while there is no agent: sent when there is one.
  std::shared_ptr<Pending> waiting;
  std::thread submitter([&] { waiting = client->submit(query("later"), nullptr, soon(), soon()); });
  agent = std::make_unique<ScriptedAgent>(listen(), script());
  submitter.join();
  EXPECT_TRUE(waiting->wait(soon()).status.ok());
  const auto sessions = seen_.of<SessionUp>();
  ASSERT_EQ(sessions.size(), 2U);
  EXPECT_EQ(sessions[0].session, sessions[1].session);
  std::vector<Command> registered;
  for (const Submission& each : seen_.of<Submission>()) {
    if (std::holds_alternative<RegisterBatch>(each.command)) registered.push_back(each.command);
  }
  const std::vector<Command> expected{batch, closed, batch};
  EXPECT_EQ(registered, expected);
  EXPECT_EQ(loans_opened_, 3);
  EXPECT_EQ(seen_.of<Submission>().back().command, query("later"));
}

// proves: B5.18
TEST_F(SocketChannelTest, ARegistrationThatIsClosedWhileItIsMadeAgainIsNotMadeOnceMore) {
  const auto registrations = [this] {
    std::vector<Submission> made;
    for (const Submission& each : seen_.of<Submission>()) {
      if (std::holds_alternative<RegisterBatch>(each.command)) made.push_back(each);
    }
    return made;
  };
  auto agent = std::make_unique<ScriptedAgent>(listen(), script());
  const auto client = connect();
  const RegisterBatch batch{"b", 5, {}, {}, {}, Verify::off};
  client->submit(batch, std::make_shared<NoLoan>(), soon(), soon())->wait(soon());
  agent.reset();
  // The second agent answers the registration when it has been asked to close it.
  agent =
      std::make_unique<ScriptedAgent>(listen(), [&](Channel& channel, const ChannelEvent& event) {
        seen_.add(event);
        const auto* submission = std::get_if<Submission>(&event);
        if (submission == nullptr || !std::holds_alternative<CloseBatch>(submission->command))
          return;
        channel.complete(registrations().back().id, {});
        channel.complete(submission->id, {});
      });
  ASSERT_TRUE(seen_.wait_for<Submission>(2));
  EXPECT_TRUE(
      client->submit(CloseBatch{"b", 5}, nullptr, soon(), soon())->wait(soon()).status.ok());
  agent.reset();
  agent = std::make_unique<ScriptedAgent>(listen(), script());
  client->submit(query("later"), nullptr, soon(), soon())->wait(soon());
  EXPECT_EQ(registrations().size(), 2U);
}

// Closed at any moment of the wait, also where the caller that waits has let go of the mutex: other
// threads take it again and again, and what is answered to them makes the caller look once more.
TEST_F(SocketChannelTest, ACallerThatWaitsIsToldWhenAnotherThreadCloses) {
  const ScriptedAgent agent(listen(), [](Channel& channel, const ChannelEvent& event) {
    const auto* submission = std::get_if<Submission>(&event);
    if (submission == nullptr || context_of(submission->command) == "hold") return;
    channel.complete(submission->id, {});
  });
  for (int round = 0; round < 300; ++round) {
    const auto client = connect();
    const auto held = client->begin(query("hold"), Deadline::never());
    std::vector<std::thread> others;
    for (int other = 0; other < 3; ++other) {
      others.emplace_back([&] {
        while (client->post(query("quick")) != nullptr) continue;
      });
    }
    others.emplace_back([&] {
      const TimePoint close_at = now() + std::chrono::microseconds(round * 10);
      while (now() < close_at) std::this_thread::yield();
      client->close();
    });
    EXPECT_EQ(held->wait(soon()).status.code, Code::cancelled);
    for (std::thread& other : others) other.join();
  }
}

// proves: B3.17, B5.18
TEST_F(SocketChannelTest, ABegunCommandEndsWithTheAgentThatHadAcceptedItAndOthersGoToTheNext) {
  auto agent = std::make_unique<ScriptedAgent>(listen(), script());
  const auto client = connect();
  const auto accepted = client->begin(query("hold"), Deadline::never());
  ASSERT_TRUE(seen_.wait_for<Submission>(1));
  agent.reset();
  // The client was never told that the command was accepted; the agent's journal says so.
  EXPECT_EQ(accepted->wait(Deadline::after(std::chrono::seconds(2))).status.code,
            Code::unreachable);

  const auto sent_again = client->begin(query("b"), soon());
  const auto given_up = client->begin(query("c"), soon());
  EXPECT_FALSE(client->withdraw(*given_up));
  EXPECT_EQ(given_up->wait(soon()).status.code, Code::unreachable);
  agent = std::make_unique<ScriptedAgent>(listen(), script());
  EXPECT_TRUE(sent_again->wait(soon()).status.ok());
  EXPECT_EQ(seen_.of<Submission>().size(), 2U);
}

TEST_F(SocketChannelTest, AnAgentThatDoesNotAnswerLeavesOpenWhetherItHasAccepted) {
  std::unique_ptr<SocketChannel> silent = listen();
  std::shared_ptr<Connection> client;
  std::thread greeter([&] { client = connect(); });
  const Deadline deadline = soon();
  while (!deadline.expired()) {
    if (const auto events = silent->poll(); !events.empty()) break;
    silent->arm();
  }
  greeter.join();
  const auto pending = client->begin(query("b"), soon());
  EXPECT_FALSE(client->withdraw(*pending));
  EXPECT_EQ(pending->wait(soon()).status.code, Code::unreachable);
  contains(pending->wait(soon()).status.message, "has accepted nothing in time");
}

TEST_F(SocketChannelTest, ACommandThatIsSentAgainIsAcceptedOnce) {
  const protocol::Hello hello{protocol::version, "job", 3, 77, ::getpid()};
  const protocol::Submit submit{1, encode(query("hold")), std::nullopt, std::nullopt};
  const auto greet = [&](FrameSocket& socket) {
    socket.send({protocol::encode(hello), {}});
    pollfd ready{socket.socket().get(), POLLIN, 0};
    ::poll(&ready, 1, 10'000);
    return std::get<protocol::Welcome>(protocol::decode_from_agent(socket.receive()->bytes))
        .last_accepted;
  };
  {
    ScriptedAgent agent(listen(), script());
    FrameSocket socket(os::connect_unix_path(socket_path(queue_)));
    EXPECT_EQ(greet(socket), 0U);
    socket.send({protocol::encode(submit), {}});
    ASSERT_TRUE(seen_.wait_for<Submission>(1));
    agent.stop();
  }
  ScriptedAgent agent(listen(), script());
  FrameSocket socket(os::connect_unix_path(socket_path(queue_)));
  EXPECT_EQ(greet(socket), 1U);
  socket.send({protocol::encode(submit), {}});
  socket.send(
      {protocol::encode(protocol::Submit{2, encode(query("b")), std::nullopt, std::nullopt}), {}});
  ASSERT_TRUE(seen_.wait_for<Submission>(2));
  EXPECT_EQ(seen_.of<Submission>()[1].id.sequence, 2U);
}

TEST_F(SocketChannelTest, WhatIsSubmittedWhileAnAgentComesBackIsSentOnce) {
  auto agent = std::make_unique<ScriptedAgent>(listen(), script());
  const auto client = connect();
  std::atomic<bool> enough{false};
  std::thread submitter([&] {
    for (int i = 0; !enough; ++i) {
      client->post(query(std::to_string(i)));
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  for (std::size_t restarts = 1; restarts <= 10; ++restarts) {
    agent.reset();
    agent = std::make_unique<ScriptedAgent>(listen(), script());
    EXPECT_TRUE(seen_.wait_for<SessionUp>(restarts + 1));
  }
  enough = true;
  submitter.join();
  std::set<std::string> seen;
  for (const Submission& each : seen_.of<Submission>()) {
    EXPECT_TRUE(seen.insert(context_of(each.command)).second) << context_of(each.command);
  }
}

TEST_F(SocketChannelTest, ASessionWhoseProcessDiedMeanwhileIsLost) {
  const pid_t child = os::fork_child([&] {
    auto channel = listen();
    ScriptedAgent agent(std::move(channel), [](Channel&, const ChannelEvent&) {});
    const auto client = connect();
    client->submit(query("hold"), nullptr, Deadline::never(), soon());
    ::raise(SIGKILL);
  });
  ::waitpid(child, nullptr, 0);
  ScriptedAgent agent(listen(), script());
  ASSERT_TRUE(seen_.wait_for<SessionLost>(1));
  EXPECT_EQ(seen_.of<SessionLost>()[0].reason.code, Code::peer_lost);
}

TEST_F(SocketChannelTest, ARegistrationThatTheAgentCannotOpenFailsWithItsReason) {
  ScriptedAgent agent(make_socket_channel({queue_, "job", 3, default_queue_capacity,
                                           [](LoanOffer) -> std::shared_ptr<Loan> {
                                             throw Error(Code::denied, "use tensorbus.empty");
                                           }}),
                      script());
  const auto client = connect();
  try {
    client->submit(RegisterBatch{"b", 1, {}, {}, {}, Verify::off}, std::make_shared<NoLoan>(),
                   soon(), soon());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::denied);
    contains(error.what(), "tensorbus.empty");
  }
  EXPECT_TRUE(client->submit(query("b"), nullptr, soon(), soon())->wait(soon()).status.ok());
}

TEST_F(SocketChannelTest, ManyTensorsAndDescriptorsGoInOneCommand) {
  std::atomic<std::size_t> fds{0};
  ScriptedAgent agent(make_socket_channel({queue_, "job", 3, default_queue_capacity,
                                           [&](LoanOffer offer) {
                                             fds = offer.fds.size();
                                             return std::make_shared<NoLoan>();
                                           }}),
                      script());
  const auto client = connect_to_agent({queue_, state_, "job", 3,
                                        [](const Loan&) {
                                          LoanOffer offer{"loan", {}};
                                          for (int i = 0; i < 150; ++i) {
                                            offer.fds.emplace_back(::dup(0));
                                          }
                                          return offer;
                                        }},
                                       soon());
  RegisterBatch batch{"big", 1, {}, {}, {}, Verify::off};
  for (int i = 0; i < 10'000; ++i) {
    batch.items.push_back(
        {"pair", "layer." + std::to_string(i), Dtype::float32, {64, 64}, {64, 1}, Shape{128, 64}});
  }
  client->submit(batch, std::make_shared<NoLoan>(), soon(), soon())->wait(soon());
  EXPECT_EQ(seen_.of<Submission>().at(0).command, Command(batch));
  EXPECT_EQ(fds, 150U);
}

TEST_F(SocketChannelTest, AForkedChildIsToldSo) {
  ScriptedAgent agent(listen(), script());
  const auto client = connect();
  EXPECT_TRUE(os::holds_in_child([&] {
    try {
      client->submit(query("b"), nullptr, soon(), soon());
    } catch (const Error& error) {
      return std::string(error.what()).find("fork") != std::string::npos;
    }
    return false;
  }));
  EXPECT_TRUE(client->submit(query("b"), nullptr, soon(), soon())->wait(soon()).status.ok());
}

TEST_F(SocketChannelTest, AFullJournalRefusesCommandsAndTakesThemAgainWhenThereIsRoom) {
  const SocketChannelOptions options{queue_, "job", 3, default_queue_capacity, {}, 1 << 18};
  std::vector<CommandId> held;
  ScriptedAgent agent(make_socket_channel(options),
                      [&](Channel& channel, const ChannelEvent& event) {
                        if (const auto* submission = std::get_if<Submission>(&event)) {
                          if (context_of(submission->command) == "short")
                            channel.complete(submission->id, {});
                          held.push_back(submission->id);
                        } else if (std::holds_alternative<Cancelled>(event)) {
                          for (const CommandId id : std::exchange(held, {}))
                            channel.complete(id, {});
                        }
                      });
  const auto client = connect();
  for (int times = 0; times < 3; ++times) {
    std::vector<std::shared_ptr<Pending>> pending;
    std::string refusal;
    while (refusal.empty() && pending.size() < 1000) {
      try {
        pending.push_back(
            client->submit(query(std::string(4000, 'x')), nullptr, Deadline::never(), soon()));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::queue_full);
        refusal = error.what();
      }
    }
    contains(refusal, queue_ + " is full");
    EXPECT_GT(pending.size(), 10U);
    pending.front()->cancel({Code::cancelled, "enough"});
    for (const auto& each : pending) EXPECT_TRUE(each->wait(soon()).status.ok());
    EXPECT_TRUE(client->submit(query("short"), nullptr, Deadline::never(), soon())
                    ->wait(soon())
                    .status.ok());
  }
}

// What is not over when the agent fails is not waited for.
TEST_F(SocketChannelTest, AnAgentThatFailsEndsEveryCommand) {
  ScriptedAgent agent(listen(), [&](Channel& channel, const ChannelEvent& event) {
    const auto* submission = std::get_if<Submission>(&event);
    if (submission != nullptr && context_of(submission->command) == "last") {
      channel.fail({Code::failed, "it has failed"});
    }
  });
  const auto client = connect();
  const auto first = client->submit(query("first"), nullptr, Deadline::never(), soon());
  const auto last = client->begin(query("last"), Deadline::never());
  for (const auto& pending : {first, last}) {
    const Outcome& outcome = pending->wait(soon());
    EXPECT_EQ(outcome.status.code, Code::failed);
    contains(outcome.status.message, "it has failed");
  }
}

}  // namespace
}  // namespace tensorbus::bus
