// Whole daemons with clients over their sockets, in one process.
#include "bus/host/daemon.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "base/testing/calls.h"
#include "bus/client/client.h"
#include "bus/simulation/scripted_agent.h"
#include "bus/socket/connection.h"
#include "wire/tally.h"

namespace tensorbus::bus {
namespace {

// A daemon on a thread and a client of it.
class DaemonSide {
 public:
  DaemonSide(const std::string& store, Rank rank, const Folder& folder,
             std::function<void(Step)> reached = nullptr)
      : rank_(rank),
        store_(store),
        reached_(std::move(reached)),
        queue_(folder.file(std::to_string(rank) + ".queue")),
        state_(folder.file(std::to_string(rank) + ".state")) {
    start();
    SocketConnectionOptions options{queue_, state_, "job", rank_, {}};
    options.offer = [pool = pool_](const Loan& loan) { return offer(loan, *pool, *pool); };
    client_ = std::make_unique<Client>(connect_to_agent(options, soon()), pool_);
  }
  ~DaemonSide() {
    client_.reset();
    stop();
  }

  void start() {
    daemon_ = std::make_unique<Daemon>(
        connect(StoreUrl::parse(store_)),
        DaemonOptions{rank_, "job", queue_, state_, {}, {}, reached_}, soon());
    thread_ = std::thread([this] {
      try {
        daemon_->run();
      } catch (const std::exception& error) {
        failure_ = error.what();
      }
    });
  }
  const std::string& failure() const { return failure_; }
  void stop() {
    if (daemon_ == nullptr) return;
    daemon_->stop();
    thread_.join();
    daemon_.reset();
  }

  Client& client() { return *client_; }
  void init_pair(const std::string& local, const std::string& remote) {
    client_->init_pair({"pair", local, remote, 1, {}}, true, soon());
  }
  std::uint64_t register_tensor(std::vector<float>& memory) {
    const Shape shape{static_cast<std::int64_t>(memory.size())};
    const Shape strides{1};
    const BatchTensor tensor{
        {reinterpret_cast<std::byte*>(memory.data()), Dtype::float32, shape, strides},
        "pair",
        "",
        std::nullopt};
    return client_->register_tensors("batch", {&tensor, 1}, {}, soon());
  }
  void transfer(Direction direction) {
    client_->transfer("batch", direction, {}, {}, true, soon());
  }

 private:
  const Rank rank_;
  const std::string store_;
  const std::function<void(Step)> reached_;
  std::string failure_;
  const std::string queue_;
  const std::string state_;
  const std::shared_ptr<fabric::Pool> pool_ = std::make_shared<fabric::Pool>();
  std::unique_ptr<Daemon> daemon_;
  std::thread thread_;
  std::unique_ptr<Client> client_;
};

template <typename First, typename Second>
void together(First first, Second second) {
  std::thread other(second);
  first();
  other.join();
}

TEST(DaemonTest, MovesTensorsBetweenClientsOfTwoDaemons) {
  const Folder folder;
  DaemonSide a("memory://daemon-test", 0, folder);
  DaemonSide b("memory://daemon-test", 1, folder);
  together([&] { a.init_pair("a", "b"); }, [&] { b.init_pair("b", "a"); });
  std::vector<float> sent(1000);
  std::vector<float> got(1000);
  together([&] { a.register_tensor(sent); }, [&] { b.register_tensor(got); });
  for (int round = 1; round <= 3; ++round) {
    std::iota(sent.begin(), sent.end(), static_cast<float>(round));
    together([&] { a.transfer(Direction::send); }, [&] { b.transfer(Direction::recv); });
    EXPECT_EQ(got, sent);
  }
}

// As docs/walk.md counts them.
TEST(DaemonTest, ARoundIsSixMessagesEachReadOnce) {
  const Folder folder;
  DaemonSide a("memory://daemon-walk", 0, folder);
  DaemonSide b("memory://daemon-walk", 1, folder);
  together([&] { a.init_pair("a", "b"); }, [&] { b.init_pair("b", "a"); });
  std::vector<float> sent(1000);
  std::vector<float> got(1000);
  together([&] { a.register_tensor(sent); }, [&] { b.register_tensor(got); });
  const auto round = [&] {
    together([&] { a.transfer(Direction::send); }, [&] { b.transfer(Direction::recv); });
  };
  round();
  constexpr std::uint64_t rounds = 200;
  // Heartbeats, what is told of leases, the queues' ends: by the clock, not by the round.
  constexpr std::uint64_t beside = rounds / 2;
  const std::uint64_t written = wire::tally.written;
  const std::uint64_t read = wire::tally.read;
  for (std::uint64_t each = 0; each < rounds; ++each) round();
  const std::uint64_t writes = wire::tally.written - written;
  const std::uint64_t reads = wire::tally.read - read;
  EXPECT_GE(writes, 6 * rounds);
  EXPECT_LE(writes, 6 * rounds + beside);
  EXPECT_GE(reads, 6 * rounds);
  EXPECT_LE(reads, 6 * rounds + beside);
}

TEST(DaemonTest, WhateverEndsItItsCommandsHaveAnOutcome) {
  const Folder folder;
  DaemonSide a("memory://daemon-failure", 0, folder);
  DaemonSide b("memory://daemon-failure", 1, folder, [](Step step) {
    if (step == Step::reading) throw std::runtime_error("the sky has fallen");
  });
  together([&] { a.init_pair("a", "b"); }, [&] { b.init_pair("b", "a"); });
  std::vector<float> sent(10);
  std::vector<float> got(10);
  together([&] { a.register_tensor(sent); }, [&] { b.register_tensor(got); });
  std::thread sends([&] { EXPECT_THROW(a.transfer(Direction::send), Error); });
  try {
    b.client().transfer("batch", Direction::recv, {}, {}, true, Deadline::never());
    ADD_FAILURE() << "it cannot have received";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::failed);
    EXPECT_NE(std::string(error.what()).find("rank 1 has failed: the sky"), std::string::npos)
        << error.what();
  }
  b.stop();
  EXPECT_EQ(b.failure(), "the sky has fallen");
  sends.join();
}

TEST(DaemonTest, LeavesItsFilesForTheNextOneOrRemovesThem) {
  const Folder folder;
  const auto make = [&] {
    return std::make_unique<Daemon>(
        connect(StoreUrl::parse("memory://daemon-files")),
        DaemonOptions{0, "job", folder.file("queue"), folder.file("state"), {}}, soon());
  };
  make()->close(false);
  EXPECT_TRUE(std::filesystem::exists(folder.file("queue")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("queue.sock")));
  make()->close(true);
  EXPECT_FALSE(std::filesystem::exists(folder.file("queue")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("state")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("state-lock")));
}

}  // namespace
}  // namespace tensorbus::bus
