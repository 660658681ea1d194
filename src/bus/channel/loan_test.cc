// Real workers lend to real agents, with and without the right to.
#include "bus/channel/loan.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "os/io/poll.h"
#include "os/net/unix_socket.h"
#include "os/testing/quiet_fork.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

constexpr uid_t nobody_special = 12345;
constexpr std::int64_t elements = 5000;

// One end of a conversation between two processes of a test.
class Line {
 public:
  explicit Line(int fd) : socket_(fd) {}

  void send(std::string_view bytes, const std::vector<os::Fd>& fds = {}) const {
    std::vector<int> numbers;
    for (const os::Fd& fd : fds) numbers.push_back(fd.get());
    if (os::send_packet(socket_, bytes, numbers) != os::PacketResult::done) ::_exit(3);
  }
  // Empty if the other end is gone.
  os::Packet receive() const {
    os::Packet packet;
    while (os::receive_packet(socket_, packet) == os::PacketResult::would_block) {
      pollfd ready{socket_.get(), POLLIN, 0};
      ::poll(&ready, 1, 10'000);
    }
    return packet;
  }

 private:
  os::Fd socket_;
};

// A process that runs `work` and goes with the test, however that ends.
class Child {
 public:
  explicit Child(const std::function<void(const Line&)>& work) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      throw Error(Code::failed, "socketpair");
    }
    pid_ = os::fork_child([&] {
      ::close(ends[0]);
      work(Line(ends[1]));
    });
    ::close(ends[1]);
    line_ = std::make_unique<Line>(ends[0]);
  }
  ~Child() { kill(); }

  const Line& line() const { return *line_; }
  pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  std::unique_ptr<Line> line_;
};

void become_nobody() {
  if (::setresgid(nobody_special, nobody_special, nobody_special) != 0 ||
      ::setresuid(nobody_special, nobody_special, nobody_special) != 0) {
    throw Error(Code::failed, "setresuid");
  }
  ::prctl(PR_SET_DUMPABLE, 1);
}

const Shape shape{elements};
const Shape strides{1};
const Shape empty_shape{0};

TensorView view_of(std::byte* data) { return {data, Dtype::int8, shape, strides}; }

// A worker: tensor 0 is pooled, 1 private (or pooled too), 2 empty. Offers them, then answers "?"
// with the first bytes of both, and moves its gate when told to.
std::function<void(const Line&)> worker(
    bool with_private, std::function<void()> first = [] {}) {
  return [=](const Line& line) {
    first();
    fabric::Pool pool;
    fabric::Pool gates({4096});
    const auto pooled = pool.allocate(elements);
    const auto second = with_private
                            ? std::shared_ptr<std::byte>(new std::byte[elements],
                                                         std::default_delete<std::byte[]>())
                            : pool.allocate(elements);
    std::memset(pooled.get(), 'p', elements);
    std::memset(second.get(), 'q', elements);
    const TensorView views[] = {view_of(pooled.get()),
                                view_of(second.get()),
                                {nullptr, Dtype::float32, empty_shape, strides}};
    const auto loan = make_loan(views, gates);
    const LoanOffer made = offer(*loan, pool, gates);
    line.send(made.bytes, made.fds);
    while (true) {
      const os::Packet packet = line.receive();
      if (packet.bytes.empty()) return;
      if (packet.bytes == "gate") loan->gate().move_to(7);
      const char third[] = {static_cast<char>(pooled.get()[3]), static_cast<char>(second.get()[3])};
      line.send({third, sizeof third});
    }
  };
}

std::shared_ptr<Loan> open_from(const Line& line, fabric::Pool& pool) {
  os::Packet packet = line.receive();
  return open_loan({std::move(packet.bytes), std::move(packet.fds)}, pool);
}

std::string ask(const Line& line, std::string_view what) {
  line.send(what);
  return line.receive().bytes;
}

// What opening a worker's loan says, to an agent without privileges.
std::string refusal_to_nobody(const std::function<void(const Line&)>& work) {
  const Child agent([&](const Line& line) {
    become_nobody();
    const os::Packet offered = line.receive();
    LoanOffer made{offered.bytes, {}};
    for (const os::Fd& fd : offered.fds) made.fds.emplace_back(::dup(fd.get()));
    fabric::Pool pool;
    try {
      const auto loan = open_loan(std::move(made), pool);
      line.send("opened");
    } catch (const Error& error) {
      line.send(std::string(to_string(error.code())) + ": " + error.what());
    }
  });
  const Child lending(work);
  const os::Packet offered = lending.line().receive();
  agent.line().send(offered.bytes, offered.fds);
  return agent.line().receive().bytes;
}

TEST(LoanTest, AnAgentSeesTheWorkersMemoryAndNotACopy) {
  const Child lending(worker(true));
  fabric::Pool pool;
  const auto loan = open_from(lending.line(), pool);
  ASSERT_EQ(loan->tensors().size(), 3u);
  const TensorView& pooled = loan->tensors()[0];
  const TensorView& privately = loan->tensors()[1];
  EXPECT_FALSE(pooled.elsewhere);
  EXPECT_TRUE(privately.elsewhere);
  EXPECT_FALSE(loan->tensors()[2].elsewhere);
  EXPECT_TRUE(loan->tensors()[2].empty());
  EXPECT_EQ(pooled.data[elements - 1], std::byte{'p'});
  EXPECT_TRUE(pool.find(pooled.data, elements)) << "its own peers can map it";

  char byte = 0;
  const iovec local{&byte, 1};
  const iovec remote{privately.data + 3, 1};
  loan->lender()->read({&local, 1}, {&remote, 1});
  EXPECT_EQ(byte, 'q');
  EXPECT_EQ(ask(lending.line(), "?"), "pq");
  pooled.data[3] = std::byte{'P'};
  byte = 'Q';
  loan->lender()->write({&local, 1}, {&remote, 1});
  EXPECT_EQ(ask(lending.line(), "?"), "PQ");
}

TEST(LoanTest, TheGateIsTheWorkersAndTheAgentOnlyReadsIt) {
  const Child lending(worker(false));
  os::Packet packet = lending.line().receive();
  ASSERT_GE(packet.fds.size(), 2u);
  EXPECT_EQ(::fcntl(packet.fds[1].get(), F_GETFL) & O_ACCMODE, O_RDONLY);
  fabric::Pool pool;
  const auto loan = open_loan({std::move(packet.bytes), std::move(packet.fds)}, pool);
  const fabric::Gate gate = loan->gate();
  EXPECT_EQ(gate.value(), 0u);
  EXPECT_TRUE(pool.find(gate.counter().get(), 8)) << "its own peers can map it";
  ask(lending.line(), "gate");
  EXPECT_EQ(gate.value(), 7u);
}

TEST(LoanTest, MemoryComesBackWithTheLoan) {
  const Child lending(worker(false));
  os::Packet packet = lending.line().receive();
  const auto copy = [&] {
    LoanOffer made{packet.bytes, {}};
    for (const os::Fd& fd : packet.fds) made.fds.emplace_back(::dup(fd.get()));
    return made;
  };
  fabric::Pool pool;
  auto first = open_loan(copy(), pool);
  const auto second = open_loan(copy(), pool);
  EXPECT_EQ(first->tensors()[0].data, second->tensors()[0].data) << "mapped once";
  const auto place = pool.find(first->tensors()[0].data, elements);
  ASSERT_TRUE(place);
  first.reset();
  EXPECT_TRUE(pool.has(place->segment));
  EXPECT_EQ(second->tensors()[0].data[0], std::byte{'p'});
}

TEST(LoanTest, ADeadWorkersMemoryIsNotTouched) {
  Child lending(worker(true));
  os::Packet packet = lending.line().receive();
  LoanOffer late{packet.bytes, {}};
  for (const os::Fd& fd : packet.fds) late.fds.emplace_back(::dup(fd.get()));
  fabric::Pool pool;
  const auto loan = open_loan({std::move(packet.bytes), std::move(packet.fds)}, pool);
  lending.kill();
  EXPECT_TRUE(loan->lender()->ended());
  EXPECT_EQ(loan->tensors()[0].data[5], std::byte{'p'}) << "pooled memory outlives its worker";
  char byte = 0;
  const iovec local{&byte, 1};
  const iovec remote{loan->tensors()[1].data, 1};
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto& lender = *loan->lender();
  EXPECT_NE(message([&] {
              lender.read({&local, 1}, {&remote, 1});
            }).find("died"),
            std::string::npos);
  EXPECT_NE(message([&] {
              lender.write({&local, 1}, {&remote, 1});
            }).find("died"),
            std::string::npos);
  EXPECT_NE(message([&] { open_loan(std::move(late), pool); }).find("has ended"),
            std::string::npos);
}

// proves: B2.3
TEST(LoanTest, AWorkerThatIsNotDumpableIsToldWhatToDo) {
  if (::getuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  const auto closed = [] {
    become_nobody();
    ::prctl(PR_SET_DUMPABLE, 0);
  };
  const std::string message = refusal_to_nobody(worker(true, closed));
  EXPECT_TRUE(message.starts_with("denied")) << message;
  for (const char* advice : {"tensor 1", "tensorbus.empty", "share_", "embedded"}) {
    EXPECT_NE(message.find(advice), std::string::npos) << message;
  }
  EXPECT_EQ(refusal_to_nobody(worker(false, closed)), "opened") << "pooled tensors need no right";
  EXPECT_EQ(refusal_to_nobody(worker(true, become_nobody)), "opened");
}

TEST(LoanTest, AWorkerOfAnotherUserIsToldWhatToDo) {
  if (::getuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  const std::string message = refusal_to_nobody(worker(true));
  EXPECT_TRUE(message.starts_with("denied")) << message;
  EXPECT_NE(message.find("tensorbus.empty"), std::string::npos) << message;
}

TEST(LoanTest, WhatIsMalformedIsRefused) {
  fabric::Pool pool;
  fabric::Pool gates({4096});
  const auto memory = pool.allocate(elements);
  const TensorView tensor = view_of(memory.get());
  const auto loan = make_loan({&tensor, 1}, gates);
  const LoanOffer good = offer(*loan, pool, gates);
  fabric::Pool agent;
  const auto opens = [&](const std::string& bytes, std::size_t fds) {
    LoanOffer made{bytes, {}};
    for (std::size_t i = 0; i < fds; ++i) made.fds.emplace_back(::dup(good.fds[i].get()));
    try {
      const auto opened = open_loan(std::move(made), agent);
      return opened->tensors()[0].elsewhere ||
             agent.find(opened->tensors()[0].data, elements).has_value();
    } catch (const Error&) {
      return false;
    }
  };
  ASSERT_EQ(good.fds.size(), 3u);
  EXPECT_TRUE(opens(good.bytes, 3));
  for (std::size_t fds = 0; fds < 3; ++fds) EXPECT_FALSE(opens(good.bytes, fds));
  for (std::size_t size = 0; size < good.bytes.size(); ++size) {
    EXPECT_FALSE(opens(good.bytes.substr(0, size), 3));
  }
  EXPECT_FALSE(opens(good.bytes + 'x', 3));
  std::string far = good.bytes;
  far[far.size() - 1] = '\x10';  // the offset's highest byte
  EXPECT_FALSE(opens(far, 3));
}

}  // namespace
}  // namespace tensorbus::bus
