// A client against an agent that the test plays, in this process and over a socket.
#include "bus/client/client.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <mutex>

#include "base/testing/calls.h"
#include "bus/channel/memory_channel.h"
#include "bus/simulation/scripted_agent.h"

namespace tensorbus::bus {
namespace {

using std::chrono::milliseconds;

Deadline shortly() { return Deadline::after(milliseconds(30)); }

template <typename Call>
Status status_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

class ClientTest : public testing::Test {
 protected:
  ClientTest() {
    std::unique_ptr<MemoryChannel> channel = make_memory_channel();
    client_ = std::make_unique<Client>(channel->connect(), std::make_shared<fabric::Pool>());
    agent_ = std::make_unique<ScriptedAgent>(
        std::move(channel), [this](Channel& end, const ChannelEvent& event) { play(end, event); });
  }

  // Transfers are answered by the test; everything else succeeds.
  void play(Channel& channel, const ChannelEvent& event) {
    const std::lock_guard lock(mutex_);
    if (const auto* submission = std::get_if<Submission>(&event)) {
      commands_.push_back(submission->command);
      if (submission->loan != nullptr) loan_ = submission->loan;
      if (const auto* transfer = std::get_if<Transfer>(&submission->command)) {
        tickets_.push_back(transfer->ticket);
        open_.push_back(submission->id);
        if (!hold_) channel.complete(open_.back(), answer_);
      } else if (lose_ > 0) {
        --lose_;
        channel.complete(submission->id, {.status = {Code::unreachable, "the agent has ended"}});
      } else if (!hold_) {
        channel.complete(submission->id, answer_);
      } else {
        open_.push_back(submission->id);
      }
    }
    if (const auto* cancelled = std::get_if<Cancelled>(&event)) {
      if (obedient_) {
        channel.complete(cancelled->id, {.status = {Code::cancelled, cancelled->reason.message}});
      }
    }
    if (release_) {
      for (const CommandId id : open_) channel.complete(id, answer_);
      open_.clear();
    }
  }
  void set(const std::function<void()>& change) {
    const std::lock_guard lock(mutex_);
    change();
  }
  void answer_all(Outcome outcome) {
    set([&] {
      answer_ = std::move(outcome);
      release_ = true;
      hold_ = false;
    });
    status_of([&] { client_->query_signal({"poke", true, {}, {}}, soon()); });
    set([&] { release_ = false; });
  }

  std::uint64_t register_batch(const std::string& batch = "w",
                               std::optional<std::string> role = std::nullopt) {
    const BatchTensor tensor{view(), "pair", "layer", std::nullopt};
    RegisterOptions options;
    options.role = std::move(role);
    return client_->register_tensors(batch, {&tensor, 1}, options, soon());
  }
  TensorView view() {
    return {reinterpret_cast<std::byte*>(memory_.data()), Dtype::float32, shape_, strides_};
  }
  std::shared_ptr<TransferState> send(bool blocking, Deadline deadline) {
    return client_->transfer("w", Direction::send, {}, {}, blocking, deadline);
  }
  std::uint64_t gate() { return loan_->gate().value(); }

  std::vector<float> memory_ = std::vector<float>(6);
  Shape shape_{2, 3};
  Shape strides_{3, 1};
  std::mutex mutex_;
  std::vector<Command> commands_;
  std::vector<std::uint64_t> tickets_;
  std::deque<CommandId> open_;
  std::shared_ptr<Loan> loan_;
  Outcome answer_;
  int lose_ = 0;  // so many commands: their agent ends before it answers
  bool hold_ = false;
  bool obedient_ = true;
  bool release_ = false;
  std::unique_ptr<Client> client_;
  std::unique_ptr<ScriptedAgent> agent_;
};

TEST_F(ClientTest, ASendLendsItsMemoryUntilItIsOver) {
  register_batch();
  EXPECT_EQ(loan_->tensors().at(0).data, view().data);
  set([&] { hold_ = true; });
  const auto first = send(false, soon());
  const auto second = send(false, soon());
  EXPECT_TRUE(loan_->gate().open(first == nullptr ? 0 : 1));
  EXPECT_FALSE(first->done());
  second->cancel({Code::cancelled, "not wanted"});
  EXPECT_EQ(second->wait(soon()).status.code, Code::cancelled);
  EXPECT_TRUE(loan_->gate().open(1)) << "the first still lends";
  answer_all({});
  first->result(soon());
  EXPECT_FALSE(loan_->gate().open(2));
  EXPECT_EQ(tickets_, (std::vector<std::uint64_t>{1, 2}));
}

// proves: B1.3
TEST_F(ClientTest, AnExpiredWaitEndsNothingAndAnExpiredCallCancels) {
  register_batch();
  set([&] { hold_ = true; });
  const auto pending = send(false, soon());
  EXPECT_EQ(status_of([&] { pending->wait(shortly()); }).code, Code::timeout);
  EXPECT_TRUE(loan_->gate().open(1));
  EXPECT_FALSE(pending->acquire(shortly()));
  answer_all({});
  EXPECT_TRUE(pending->acquire(soon()));
  EXPECT_FALSE(pending->acquire(shortly())) << "it counts once";
  set([&] { hold_ = true; });
  EXPECT_EQ(status_of([&] { send(true, shortly()); }).code, Code::timeout);
  EXPECT_FALSE(loan_->gate().open(2));
}

TEST_F(ClientTest, MemoryComesBackAlsoFromAnAgentThatDoesNotAnswer) {
  register_batch();
  set([&] {
    hold_ = true;
    obedient_ = false;
  });
  const Status expired = status_of([&] { send(true, shortly()); });
  EXPECT_EQ(expired.code, Code::timeout);
  EXPECT_FALSE(loan_->gate().open(1));
  // What it may still write to is not used again before it has answered.
  const auto recv = [&] { client_->transfer("w", Direction::recv, {}, {}, true, shortly()); };
  EXPECT_NE(status_of(recv).message.find("may still write"), std::string::npos);
  EXPECT_EQ(status_of(recv).code, Code::failed);
  answer_all({});
  EXPECT_TRUE(
      status_of([&] { client_->transfer("w", Direction::recv, {}, {}, true, soon()); }).ok());
}

// proves: B5.2
TEST_F(ClientTest, AFailureComesWithAllThatTheAgentSays) {
  register_batch();
  Outcome lost;
  lost.status = {Code::peer_lost, "rank 4 is gone"};
  lost.readers = {{3, ReaderOutcome::read}, {4, ReaderOutcome::lost}};
  lost.lost = {4};
  set([&] { answer_ = lost; });
  try {
    send(true, soon());
    FAIL();
  } catch (const CommandError& error) {
    EXPECT_EQ(error.outcome(), lost);
  }
  const auto later = send(false, soon());
  EXPECT_EQ(status_of([&] { later->acquire(soon()); }), lost.status);
  EXPECT_EQ(status_of([&] { later->result(soon()); }), lost.status);
}

TEST_F(ClientTest, ARegistrationIsTriedAgainAsANewOneWhenTheAgentHasEnded) {
  set([&] { lose_ = 2; });
  const std::uint64_t registration = register_batch();
  std::set<std::uint64_t> tried;
  for (const Command& command : commands_)
    tried.insert(std::get<RegisterBatch>(command).registration);
  EXPECT_EQ(tried.size(), 3u);
  EXPECT_EQ(std::get<RegisterBatch>(commands_.back()).registration, registration);
}

TEST_F(ClientTest, AMovedTensorIsRefusedByName) {
  register_batch();
  std::vector<float> elsewhere(6);
  TensorView moved = view();
  moved.data = reinterpret_cast<std::byte*>(elsewhere.data());
  const auto transfer = [&](TensorView now) {
    return status_of([&] { client_->transfer("w", Direction::send, {}, {&now, 1}, true, soon()); });
  };
  EXPECT_EQ(transfer(moved).code, Code::invalid_argument);
  EXPECT_NE(transfer(moved).message.find("\"layer\""), std::string::npos);
  TensorView turned = view();
  const Shape other{1, 2};
  turned.strides = other;
  EXPECT_EQ(transfer(turned).code, Code::invalid_argument);
  EXPECT_TRUE(transfer(view()).ok());
}

TEST_F(ClientTest, UnknownBatchesAndDoubleRolesAreErrors) {
  EXPECT_EQ(status_of([&] { send(true, soon()); }).code, Code::invalid_argument);
  register_batch("w", "a");
  register_batch("w", "b");
  EXPECT_EQ(status_of([&] { send(true, soon()); }).code, Code::invalid_argument);
  EXPECT_TRUE(
      status_of([&] { client_->transfer("w", Direction::send, "a", {}, true, soon()); }).ok());
}

// proves: B3.7, B5.4
TEST_F(ClientTest, ADroppedHandlerClosesItsOwnRegistrationOnly) {
  const std::uint64_t first = register_batch();
  client_->drop_batch({"w", first});
  const std::uint64_t second = register_batch();
  EXPECT_NE(first, second);
  client_->drop_batch({"w", first});
  EXPECT_EQ(client_->registration_of("w", {}), second);
  EXPECT_TRUE(status_of([&] { send(true, soon()); }).ok());
  client_->close_batch({"w", second}, true, soon());
  EXPECT_EQ(client_->registration_of("w", {}), 0U);
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(commands_.back(), Command(CloseBatch{"w", second}));
}

// proves: B3.13
TEST_F(ClientTest, APairThatWasNotWaitedForIsWaitedForWhenItIsNamed) {
  set([&] { hold_ = true; });
  client_->init_pair({"pair", "a", "b", 1, {}}, false, soon());
  const BatchTensor tensor{view(), "pair", "", std::nullopt};
  const auto registering = [&](Deadline deadline) {
    return status_of([&] { client_->register_tensors("w", {&tensor, 1}, {}, deadline); });
  };
  EXPECT_EQ(registering(shortly()).code, Code::timeout);
  answer_all({.status = {Code::invalid_argument, "layouts do not fit"}});
  EXPECT_EQ(registering(soon()).message, "layouts do not fit");
  set([&] { answer_ = {}; });
  EXPECT_TRUE(registering(soon()).ok());
}

// proves: B1.3, B1.6
TEST_F(ClientTest, ATransferIsARealSemaphoreOnceItsNameIsRead) {
  register_batch();
  set([&] { hold_ = true; });
  const auto pending = send(false, soon());
  const std::string name = pending->name(soon());
  EXPECT_TRUE(name.starts_with("/command_transfer_w_" + std::to_string(::getpid()) + "_")) << name;
  EXPECT_EQ(pending->name(soon()), name);
  EXPECT_TRUE(std::filesystem::exists("/dev/shm/sem." + name.substr(1)));
  EXPECT_EQ(pending->value(), 0);
  EXPECT_FALSE(pending->acquire(shortly()));
  pending->release();
  EXPECT_EQ(pending->value(), 1);
  EXPECT_TRUE(pending->acquire(soon()));
  answer_all({});
  EXPECT_TRUE(pending->acquire(soon()));
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/sem." + name.substr(1))) << "it was consumed";
}

// proves: B5.13
TEST_F(ClientTest, AClosedClientLeavesNoSemaphoreAndEndsItsTransfers) {
  register_batch();
  set([&] { hold_ = true; });
  const auto pending = send(false, soon());
  const std::string file = "/dev/shm/sem." + pending->name(soon()).substr(1);
  EXPECT_TRUE(std::filesystem::exists(file));
  client_->close(shortly());
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_EQ(pending->wait(soon()).status.code, Code::cancelled);
  EXPECT_FALSE(loan_->gate().open(1));
  EXPECT_NE(status_of([&] { send(true, soon()); }).code, Code::ok);
}

// proves: B1.6
TEST(SemaphoreNameTest, KeepsItsUniquePartWithinTheLimit) {
  const std::string name = semaphore_name("transfer", "a/b:c");
  EXPECT_TRUE(name.starts_with("/command_transfer_a_b_c_" + std::to_string(::getpid()) + "_"));
  const std::string cut = semaphore_name("transfer", std::string(1000, 'x'));
  EXPECT_EQ(cut.size(), 250U);
  EXPECT_NE(cut, semaphore_name("transfer", std::string(1000, 'x')));
}

}  // namespace
}  // namespace tensorbus::bus
