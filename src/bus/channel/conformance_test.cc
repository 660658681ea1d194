// What every channel promises to agents and clients.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <map>
#include <thread>

#include "base/testing/calls.h"
#include "bus/channel/memory_channel.h"
#include "bus/simulation/channel_kinds.h"
#include "bus/simulation/scripted_agent.h"
#include "bus/socket/channel.h"
#include "bus/socket/connection.h"

namespace tensorbus::bus {

namespace {

ChannelSetup memory_setup(std::size_t capacity) {
  std::unique_ptr<MemoryChannel> channel = make_memory_channel(capacity);
  MemoryChannel* raw = channel.get();
  return {std::move(channel), [raw] { return raw->connect(); }, nullptr};
}

ChannelSetup socket_setup(std::size_t capacity) {
  const auto folder = std::make_shared<Folder>();
  SocketChannelOptions options{folder->file("queue"), "job", 3, capacity, {}};
  return {make_socket_channel(options),
          [folder] {
            return connect_to_agent({folder->file("queue"), folder->file("state"), "job", 3, {}},
                                    Deadline::after(std::chrono::seconds(20)));
          },
          folder};
}

}  // namespace

std::vector<ChannelKind> channel_kinds() {
  return {{"memory", memory_setup}, {"socket", socket_setup}};
}

namespace {

Deadline at_once() { return Deadline::after(Duration::zero()); }
Deadline shortly() { return Deadline::after(std::chrono::milliseconds(50)); }

Command query(const std::string& batch) { return QuerySignal{batch, true, {}, {}}; }

// Answers each query with its batch's name as the message.
void echo(Channel& channel, const ChannelEvent& event) {
  if (const auto* submission = std::get_if<Submission>(&event)) {
    Outcome outcome;
    outcome.status.message = context_of(submission->command);
    outcome.round = static_cast<std::int64_t>(submission->id.sequence);
    channel.complete(submission->id, outcome);
  }
}

class ChannelTest : public testing::TestWithParam<ChannelKind> {
 protected:
  ChannelSetup make(std::size_t capacity = default_queue_capacity) {
    return GetParam().make(capacity);
  }
};

TEST_P(ChannelTest, EveryCommandGetsItsOwnOutcome) {
  ChannelSetup setup = make();
  ScriptedAgent agent(std::move(setup.channel), echo);
  const auto client = setup.connect();
  std::vector<std::shared_ptr<Pending>> pending;
  for (int i = 0; i < 200; ++i) {
    pending.push_back(client->submit(query("batch" + std::to_string(i)), nullptr, soon(), soon()));
  }
  for (std::size_t i = 0; i < pending.size(); ++i) {
    const Outcome& outcome = pending[i]->wait(soon());
    EXPECT_TRUE(pending[i]->done());
    EXPECT_EQ(outcome.status.message, "batch" + std::to_string(i));
    EXPECT_EQ(outcome.round, static_cast<std::int64_t>(i + 1));
    EXPECT_EQ(pending[i]->id().sequence, i + 1);
  }
}

TEST_P(ChannelTest, CommandsOfManyThreadsAndClientsAreKeptApart) {
  ChannelSetup setup = make();
  ScriptedAgent agent(std::move(setup.channel), echo);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  const auto shared = setup.connect();
  for (int t = 0; t < 4; ++t) {
    const auto client = t % 2 == 0 ? shared : setup.connect();
    threads.emplace_back([&, client, t] {
      for (int i = 0; i < 100; ++i) {
        const std::string name = std::to_string(t) + "/" + std::to_string(i);
        right +=
            client->submit(query(name), nullptr, soon(), soon())->wait(soon()).status.message ==
            name;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 400);
}

TEST_P(ChannelTest, CommandsAndSessionsArriveInOrderAndWhole) {
  ChannelSetup setup = make();
  std::vector<std::uint64_t> sessions;
  std::vector<Command> commands;
  std::atomic<int> lost{0};
  const auto client = [&] {
    ScriptedAgent agent(std::move(setup.channel), [&](Channel& channel, const ChannelEvent& event) {
      if (const auto* up = std::get_if<SessionUp>(&event)) {
        EXPECT_EQ(up->pid, ::getpid());
        sessions.push_back(up->session);
      }
      if (const auto* submission = std::get_if<Submission>(&event)) {
        EXPECT_EQ(submission->id.session, sessions.back());
        commands.push_back(submission->command);
      }
      if (const auto* gone = std::get_if<SessionLost>(&event)) {
        EXPECT_EQ(gone->session, sessions.back());
        EXPECT_TRUE(gone->reason.ok());
        ++lost;
      }
      echo(channel, event);
    });
    const auto connected = setup.connect();
    for (const Command& command :
         {query("b"), Command(InitPair{"p", "a", "b", 2, SideLayout{{2}, {Shard{0}}, {}}}),
          Command(Transfer{"b", Direction::send, "role", 5})}) {
      connected->submit(command, nullptr, soon(), soon())->wait(soon());
    }
    connected->close();
    while (lost == 0) std::this_thread::yield();
    return connected;
  }();
  EXPECT_EQ(sessions.size(), 1U);
  ASSERT_EQ(commands.size(), 3U);
  EXPECT_EQ(commands[1], Command(InitPair{"p", "a", "b", 2, SideLayout{{2}, {Shard{0}}, {}}}));
  EXPECT_EQ(commands[2], Command(Transfer{"b", Direction::send, "role", 5}));
  EXPECT_NE(code_of([&] { client->submit(query("b"), nullptr, soon(), soon()); }), Code::ok);
}

TEST_P(ChannelTest, TheDeadlineOfACommandReachesTheAgent) {
  ChannelSetup setup = make();
  ScriptedAgent agent(std::move(setup.channel), [](Channel& channel, const ChannelEvent& event) {
    if (const auto* submission = std::get_if<Submission>(&event)) {
      const double left = std::chrono::duration<double>(submission->deadline.remaining()).count();
      channel.complete(submission->id, {.round = submission->deadline.is_never() ? -1
                                                 : left > 5 && left <= 30        ? 1
                                                                                 : 0});
    }
  });
  const auto client = setup.connect();
  EXPECT_EQ(client->submit(query("b"), nullptr, soon(), soon())->wait(soon()).round, 1);
  EXPECT_EQ(client->submit(query("b"), nullptr, Deadline::never(), soon())->wait(soon()).round, -1);
}

// proves: B1.3
TEST_P(ChannelTest, AnExpiredWaitEndsNothing) {
  ChannelSetup setup = make();
  std::deque<CommandId> held;
  ScriptedAgent agent(std::move(setup.channel), [&](Channel& channel, const ChannelEvent& event) {
    if (const auto* submission = std::get_if<Submission>(&event)) {
      if (context_of(submission->command) == "release") {
        channel.complete(held.front(), {.round = 42});
      } else {
        held.push_back(submission->id);
        return;
      }
      channel.complete(submission->id, {});
    }
  });
  const auto client = setup.connect();
  const auto pending = client->submit(query("b"), nullptr, soon(), soon());
  EXPECT_EQ(code_of([&] { pending->wait(shortly()); }), Code::timeout);
  EXPECT_FALSE(pending->done());
  client->submit(query("release"), nullptr, soon(), soon())->wait(soon());
  EXPECT_EQ(pending->wait(soon()).round, 42);
}

TEST_P(ChannelTest, ACancellationIsPassedOnAndTheOutcomeStillComes) {
  ChannelSetup setup = make();
  ScriptedAgent agent(std::move(setup.channel), [](Channel& channel, const ChannelEvent& event) {
    if (const auto* cancelled = std::get_if<Cancelled>(&event)) {
      channel.complete(cancelled->id, {.status = {Code::cancelled, cancelled->reason.message}});
    }
  });
  const auto client = setup.connect();
  const auto pending = client->submit(query("b"), nullptr, soon(), soon());
  pending->cancel({Code::cancelled, "no longer wanted"});
  EXPECT_EQ(pending->wait(soon()).status, (Status{Code::cancelled, "no longer wanted"}));
  pending->cancel({Code::cancelled, "twice"});  // nothing to end
}

TEST_P(ChannelTest, ProgressAndCompletionCallsArrive) {
  ChannelSetup setup = make();
  ScriptedAgent agent(std::move(setup.channel), [&](Channel& channel, const ChannelEvent& event) {
    if (const auto* submission = std::get_if<Submission>(&event)) {
      channel.progress(submission->id, 10, 100);
    }
    if (const auto* cancelled = std::get_if<Cancelled>(&event)) {
      channel.complete(cancelled->id, {});
      channel.complete(cancelled->id, {.round = 9});  // the first one counts
    }
  });
  const auto client = setup.connect();
  const auto pending = client->submit(query("b"), nullptr, soon(), soon());
  while (pending->bytes_done() == 0) std::this_thread::yield();
  EXPECT_EQ(pending->bytes_done(), 10);
  EXPECT_EQ(pending->bytes_total(), 100);
  std::atomic<int> calls{0};
  pending->on_done([&] { ++calls; });
  EXPECT_EQ(calls, 0);
  pending->cancel({});
  EXPECT_EQ(pending->wait(soon()).round, 0);
  pending->on_done([&] { ++calls; });
  while (calls < 2) std::this_thread::yield();
}

// proves: B1.4
TEST_P(ChannelTest, AFullQueueIsAnErrorAtTheDeadlineAndCanBeLookedAt) {
  ChannelSetup setup = make(3);
  std::deque<CommandId> held;
  ScriptedAgent agent(std::move(setup.channel), [&](Channel& channel, const ChannelEvent& event) {
    if (const auto* submission = std::get_if<Submission>(&event)) held.push_back(submission->id);
    if (const auto* cancelled = std::get_if<Cancelled>(&event)) {
      channel.complete(cancelled->id, {});
    }
  });
  const auto client = setup.connect();
  EXPECT_EQ(client->queue(soon()).size, 0U);
  EXPECT_FALSE(client->queue(soon()).first.has_value());
  std::vector<std::shared_ptr<Pending>> pending;
  for (int i = 0; i < 3; ++i) {
    pending.push_back(client->submit(query("b" + std::to_string(i)), nullptr, soon(), soon()));
  }
  EXPECT_EQ(code_of([&] { client->submit(query("c"), nullptr, soon(), at_once()); }),
            Code::queue_full);
  EXPECT_EQ(code_of([&] { client->submit(query("c"), nullptr, soon(), shortly()); }),
            Code::queue_full);
  const QueueState state = client->queue(soon());
  EXPECT_EQ(state.size, 3U);
  EXPECT_EQ(state.first, pending[0]->id());
  EXPECT_EQ(state.first_type, "query_signal");
  EXPECT_EQ(state.first_context, "b0");
  pending[1]->cancel({});
  pending[1]->wait(soon());
  const auto fourth = client->submit(query("c"), nullptr, soon(), soon());
  fourth->cancel({});
  fourth->wait(soon());
}

TEST_P(ChannelTest, WhoeverWaitsForABegunCommandGetsItsOutcomeOnAnyThread) {
  ChannelSetup setup = make();
  ScriptedAgent agent(std::move(setup.channel), [](Channel& channel, const ChannelEvent& event) {
    if (const auto* submission = std::get_if<Submission>(&event)) {
      channel.complete(submission->id,
                       {.round = static_cast<std::int64_t>(submission->id.sequence)});
    }
  });
  const auto client = setup.connect();
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int turn = 0; turn < 200; ++turn) {
        const bool begins = caller % 2 == 0;
        const auto pending = begins ? client->begin(query("b"), soon())
                                    : client->submit(query("b"), nullptr, soon(), soon());
        // What was submitted need not be waited for.
        if (!begins && turn % 4 == 3) {
          pending->on_done([&] { ++calls; });
        } else {
          EXPECT_EQ(pending->wait(soon()).round, static_cast<std::int64_t>(pending->id().sequence));
        }
      }
    });
  }
  for (std::thread& each : callers) each.join();
  const Deadline deadline = soon();
  while (calls < 100 && !deadline.expired()) std::this_thread::yield();
  EXPECT_EQ(calls, 100);
}

TEST_P(ChannelTest, ABegunCommandThatIsWaitedForEndsWithItsClient) {
  ChannelSetup setup = make();
  ScriptedAgent agent(std::move(setup.channel), [](Channel&, const ChannelEvent&) {});
  const auto client = setup.connect();
  const auto pending = client->begin(query("b"), soon());
  std::thread waiter([&] { EXPECT_EQ(pending->wait(soon()).status.code, Code::cancelled); });
  while (client->queue(soon()).size == 0) std::this_thread::yield();
  client->close();
  waiter.join();
}

TEST_P(ChannelTest, ABegunCommandIsWithdrawnUnlessItIsAccepted) {
  ChannelSetup setup = make(1);
  ScriptedAgent agent(std::move(setup.channel), [](Channel& channel, const ChannelEvent& event) {
    if (const auto* cancelled = std::get_if<Cancelled>(&event)) {
      channel.complete(cancelled->id, {});
    }
  });
  const auto client = setup.connect();
  const auto accepted = client->begin(query("b"), soon());
  while (client->queue(soon()).size == 0) std::this_thread::yield();
  EXPECT_TRUE(client->withdraw(*accepted));
  EXPECT_FALSE(accepted->done());
  try {
    const auto refused = client->begin(query("c"), at_once());
    EXPECT_TRUE(client->withdraw(*refused));
    EXPECT_EQ(refused->wait(soon()).status.code, Code::queue_full);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::queue_full);  // a channel that knows at once
  }
  accepted->cancel({});
  EXPECT_TRUE(accepted->wait(soon()).status.ok());
}

TEST_P(ChannelTest, AClosedClientEndsWhatIsPendingAndOthersGoOn) {
  ChannelSetup setup = make();
  ScriptedAgent agent(std::move(setup.channel), [](Channel& channel, const ChannelEvent& event) {
    if (const auto* submission = std::get_if<Submission>(&event)) {
      if (context_of(submission->command) == "answer") channel.complete(submission->id, {});
    }
  });
  const auto first = setup.connect();
  const auto second = setup.connect();
  const auto pending = first->submit(query("b"), nullptr, soon(), soon());
  first->close();
  first->close();
  EXPECT_EQ(pending->wait(soon()).status.code, Code::cancelled);
  EXPECT_TRUE(second->submit(query("answer"), nullptr, soon(), soon())->wait(soon()).status.ok());
}

TEST_P(ChannelTest, AStoppedAgentIsUnreachable) {
  ChannelSetup setup = make();
  ScriptedAgent agent(std::move(setup.channel), [](Channel&, const ChannelEvent&) {});
  const auto client = setup.connect();
  const auto pending = client->submit(query("b"), nullptr, soon(), soon());
  agent.stop();
  EXPECT_EQ(pending->wait(soon()).status.code, Code::unreachable);
  EXPECT_EQ(code_of([&] { client->submit(query("b"), nullptr, soon(), shortly()); }),
            Code::unreachable);
}

INSTANTIATE_TEST_SUITE_P(All, ChannelTest, testing::ValuesIn(channel_kinds()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace tensorbus::bus
