// Real processes that die, stop, lie and fork.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <random>

#include "base/clock.h"
#include "base/log.h"
#include "fabric/conformance/party.h"
#include "fabric/core/descriptor.h"
#include "fabric/core/pool.h"
#include "fabric/route/station.h"
#include "fabric/shm/fabric.h"
#include "fabric/shm/handshake.h"
#include "os/io/poll.h"
#include "os/net/unix_socket.h"
#include "os/testing/no_descriptors.h"
#include "os/testing/quiet_fork.h"
#include "os/testing/signals.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* secret = "s3cret";
constexpr std::int64_t elements = 30'000'000;
constexpr uid_t nobody_special = 12345;

enum class Memory { pooled, private_, packed };

struct Tensor {
  std::shared_ptr<std::byte> memory;
  Shape shape{elements};
  Shape strides{1};
  TensorView view() const { return {memory.get(), Dtype::int8, shape, strides}; }
};

Tensor make_tensor(Pool* pool) {
  Tensor tensor;
  tensor.memory = pool != nullptr ? pool->allocate(elements)
                                  : std::shared_ptr<std::byte>(new std::byte[elements],
                                                               std::default_delete<std::byte[]>());
  std::memset(tensor.memory.get(), 7, elements);
  return tensor;
}

void sleep_until(Fabric& fabric, Deadline deadline) {
  if (!fabric.arm()) return;
  pollfd descriptor{fabric.fd(), POLLIN, 0};
  os::sleep_ready({&descriptor, 1}, sooner(deadline, Deadline(fabric.wake_at())));
}
void sleep_until_something(Fabric& fabric) { sleep_until(fabric, Deadline::never()); }

// A process that exposes a tensor and answers every message, until it is killed. The process goes
// with the test, however the test ends.
class Owner {
 public:
  struct Options {
    Memory memory = Memory::pooled;
    std::function<void()> first = [] {};  // runs in the process
    bool forks = false;                   // has a child of its own
  };

  explicit Owner(const Options& options) {
    int pipe[2];
    if (::pipe(pipe) != 0) throw Error(Code::failed, "pipe");
    pid_ = os::fork_child([&] {
      ::close(pipe[0]);
      run(options, pipe[1]);
    });
    ::close(pipe[1]);
    std::string bytes(4096, '\0');
    const ssize_t got = ::read(pipe[0], bytes.data(), bytes.size());
    ::close(pipe[0]);
    if (got <= static_cast<ssize_t>(sizeof grandchild_)) throw Error(Code::failed, "no owner");
    std::memcpy(&grandchild_, bytes.data(), sizeof grandchild_);
    descriptor_ = decode_descriptor(std::string_view(bytes).substr(
        sizeof grandchild_, static_cast<std::size_t>(got) - sizeof grandchild_));
  }
  ~Owner() {
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    if (grandchild_ > 0) ::kill(grandchild_, SIGKILL);
  }

  void signal(int number) const { os::send_signal(pid_, number); }
  const Descriptor& descriptor() const { return descriptor_; }

 private:
  [[noreturn]] static void run(const Options& options, int out) try {
    options.first();
    const auto pool = std::make_shared<Pool>();
    const Tensor tensor = make_tensor(options.memory == Memory::pooled ? pool.get() : nullptr);
    const auto fabric = make_shm_fabric({"the owner", secret, pool});
    const TensorView view = tensor.view();
    const auto region = fabric->expose({&view, 1});
    pid_t child = 0;
    if (options.forks) {
      child = os::quiet_fork();
      if (child == 0) {
        ::alarm(60);
        while (true) ::pause();
      }
    }
    std::string bytes(reinterpret_cast<const char*>(&child), sizeof child);
    bytes += encode(Descriptor{fabric->address().identity,
                               {{"shm", fabric->address().where, region->number()}},
                               0,
                               secret,
                               false,
                               {}});
    if (::write(out, bytes.data(), bytes.size()) < 0) ::_exit(1);
    ::close(out);
    while (true) {
      for (const Event& event : fabric->poll()) {
        const auto* message = std::get_if<Message>(&event);
        if (message == nullptr) continue;
        try {
          fabric->send(*message->from, std::as_bytes(std::span(message->bytes)));
        } catch (const Error&) {
        }
      }
      sleep_until_something(*fabric);
    }
  } catch (...) {
    ::_exit(2);
  }

  pid_t pid_ = -1;
  pid_t grandchild_ = 0;
  Descriptor descriptor_;
};

// A reader in this process.
class Reader {
 public:
  explicit Reader(Memory memory = Memory::pooled)
      : Reader(make_shm_fabric({"the reader", "own", nullptr, memory != Memory::packed})) {}
  explicit Reader(std::unique_ptr<Fabric> fabric) : party(std::move(fabric)) {}

  template <typename Condition>
  bool until(Condition holds, Duration patience = seconds(30)) {
    const Deadline deadline = Deadline::after(patience);
    while (!holds()) {
      if (deadline.expired()) return false;
      party.poll();
      if (!holds()) sleep_until_something(*party);
    }
    return true;
  }

  std::shared_ptr<Peer> connect(const Descriptor& descriptor) {
    auto peer =
        party->connect(addresses(descriptor)[0], descriptor.secret, Deadline::after(seconds(20)));
    EXPECT_TRUE(until([&] { return peer->up() || !party.losses.empty(); }));
    return peer;
  }

  Source attach(const std::shared_ptr<Peer>& peer, const Descriptor& descriptor) {
    party->attach(*peer, descriptor.ways[0].region, OpId{1}, Deadline::never());
    EXPECT_TRUE(until([&] { return party.completion(OpId{1}) != nullptr; }));
    Source source{peer, party.completion(OpId{1})->region, descriptor.ticket};
    party.completions.clear();
    return source;
  }

  void start_read(const Source& source, OpId id) {
    const Dtype type = Dtype::int8;
    party->read({std::make_shared<plan::Stream>(whole_stream(source.region->forms(), {&type, 1})),
                 0,
                 {source},
                 {target.view()}},
                id, Deadline::never());
  }

  Status read(const Source& source) {
    start_read(source, OpId{2});
    EXPECT_TRUE(until([&] { return party.completion(OpId{2}) != nullptr; }));
    const Status status = party.completion(OpId{2})->status;
    party.completions.clear();
    return status;
  }

  Party party;
  Tensor target = make_tensor(nullptr);
};

void expect_loss_within(Reader& reader, Duration time, const char* what) {
  const TimePoint start = now();
  EXPECT_TRUE(reader.until([&] { return !reader.party.losses.empty(); }, seconds(20))) << what;
  EXPECT_LT(now() - start, time) << what;
  if (reader.party.losses.empty()) return;
  const Status& reason = reader.party.losses.front().reason;
  EXPECT_EQ(reason.code, Code::peer_lost);
  EXPECT_NE(reason.message.find("the owner (pid "), std::string::npos) << reason.message;
}

class ShmPathTest : public testing::TestWithParam<Memory> {};

TEST_P(ShmPathTest, AnotherProcessIsReadByTheRightPath) {
  const Owner owner({.memory = GetParam()});
  Reader reader(GetParam());
  const Source source = reader.attach(reader.connect(owner.descriptor()), owner.descriptor());
  const char* paths[] = {"mapped", "process_vm_readv", "packed"};
  EXPECT_EQ(source.region->path(), paths[static_cast<int>(GetParam())]);
  std::memset(reader.target.memory.get(), 0, elements);
  const Status status = reader.read(source);
  EXPECT_TRUE(status.ok()) << status.message;
  const std::string expected(elements, '\7');
  EXPECT_EQ(std::memcmp(reader.target.memory.get(), expected.data(), elements), 0);
}

TEST_P(ShmPathTest, AKilledOwnerIsNamedWhileItIsRead) {
  const Owner owner({.memory = GetParam()});
  Reader reader(GetParam());
  const Source source = reader.attach(reader.connect(owner.descriptor()), owner.descriptor());
  reader.start_read(source, OpId{5});
  reader.party.poll();
  owner.signal(SIGKILL);
  expect_loss_within(reader, seconds(2), "killed during a read");
  const Completion* done = reader.party.completion(OpId{5});
  ASSERT_NE(done, nullptr);
  if (!done->status.ok()) {
    EXPECT_EQ(done->status.code, Code::peer_lost) << done->status.message;
  }
  EXPECT_THROW(reader.start_read(source, OpId{6}), Error);
}

std::string memory_name(const testing::TestParamInfo<Memory>& each) {
  if (each.param == Memory::pooled) return "pooled";
  return each.param == Memory::private_ ? "private" : "packed";
}

INSTANTIATE_TEST_SUITE_P(All, ShmPathTest,
                         testing::Values(Memory::pooled, Memory::private_, Memory::packed),
                         memory_name);

TEST(ShmFaultTest, AKilledOwnerIsNamedWhileIdle) {
  const Owner owner({});
  Reader reader;
  reader.connect(owner.descriptor());
  owner.signal(SIGKILL);
  expect_loss_within(reader, seconds(2), "killed while idle");
}

TEST(ShmFaultTest, AKilledOwnerIsNamedAlsoWhenItHadForked) {
  const Owner owner({.forks = true});
  Reader reader;
  reader.connect(owner.descriptor());
  owner.signal(SIGKILL);
  expect_loss_within(reader, seconds(2), "killed, with a child that lives");
}

TEST(ShmFaultTest, AKilledOwnerIsNamedUnderMessages) {
  const Owner owner({});
  Reader reader;
  const auto peer = reader.connect(owner.descriptor());
  const std::vector<std::byte> bytes(5000);
  const auto flood = [&] {
    try {
      while (true) reader.party->send(*peer, bytes);
    } catch (const Error& error) {
      return error.code();
    }
  };
  EXPECT_EQ(flood(), Code::queue_full);
  EXPECT_TRUE(reader.until([&] { return reader.party.messages.size() > 20; }));
  flood();
  owner.signal(SIGKILL);
  expect_loss_within(reader, seconds(2), "killed under messages");
  EXPECT_EQ(flood(), Code::peer_lost);
}

TEST(ShmFaultTest, AStoppedOwnerIsLostAfterSixSecondsAndUsableAgain) {
  const Owner owner({});
  Reader reader;
  reader.connect(owner.descriptor());
  owner.signal(SIGSTOP);
  const TimePoint start = now();
  expect_loss_within(reader, milliseconds(7500), "stopped");
  EXPECT_GT(now() - start, seconds(4));
  owner.signal(SIGCONT);
  reader.party.losses.clear();
  const Source source = reader.attach(reader.connect(owner.descriptor()), owner.descriptor());
  EXPECT_TRUE(reader.read(source).ok());
}

TEST(ShmFaultTest, AStoppedOwnerEndsAReadAtItsDeadline) {
  const Owner owner({.memory = Memory::packed});
  Reader reader(Memory::packed);
  const Source source = reader.attach(reader.connect(owner.descriptor()), owner.descriptor());
  EXPECT_TRUE(reader.read(source).ok());
  owner.signal(SIGSTOP);
  const Dtype type = Dtype::int8;
  reader.party->read(
      {std::make_shared<plan::Stream>(whole_stream(source.region->forms(), {&type, 1})),
       0,
       {source},
       {reader.target.view()}},
      OpId{9}, Deadline::after(milliseconds(300)));
  EXPECT_TRUE(
      reader.until([&] { return reader.party.completion(OpId{9}) != nullptr; }, seconds(3)));
  EXPECT_EQ(reader.party.completion(OpId{9})->status.code, Code::timeout);
  owner.signal(SIGCONT);
  EXPECT_TRUE(reader.read(source).ok());
}

// Whether all holds in a process of another user.
template <typename Check>
bool as_another_user(Check check) {
  return os::holds_in_child([&] {
    return ::setgid(nobody_special) == 0 && ::setuid(nobody_special) == 0 &&
           ::prctl(PR_SET_DUMPABLE, 1) == 0 && check();
  });
}

TEST(ShmFaultTest, AnotherUserIsRefusedBothWays) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const Owner owner({});
  EXPECT_TRUE(as_another_user([&] {
    Reader reader;
    reader.connect(owner.descriptor());
    return !reader.party.losses.empty() && reader.party.losses.front().reason.code == Code::denied;
  }));
  const Owner other({.first = [] {
    if (::setgid(nobody_special) != 0 || ::setuid(nobody_special) != 0) ::_exit(3);
  }});
  Reader reader;
  reader.connect(other.descriptor());
  ASSERT_FALSE(reader.party.losses.empty());
  EXPECT_EQ(reader.party.losses.front().reason.code, Code::denied)
      << reader.party.losses.front().reason.message;
}

TEST(ShmFaultTest, AnOwnerWhoseMemoryMayNotBeReadPacksIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  EXPECT_TRUE(as_another_user([] {
    const Owner owner({.memory = Memory::private_, .first = [] { ::prctl(PR_SET_DUMPABLE, 0); }});
    Reader reader;
    const Source source = reader.attach(reader.connect(owner.descriptor()), owner.descriptor());
    return source.region->path() == "packed" && reader.read(source).ok();
  }));
}

TEST(ShmFaultTest, AnOwnerInAnotherPidNamespacePacksItsMemory) {
  const Owner owner({.memory = Memory::private_});
  const pid_t outside = os::fork_child([&] {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(77);
    const bool held = os::holds_in_child([&] {
      Reader reader;
      const Source source = reader.attach(reader.connect(owner.descriptor()), owner.descriptor());
      return source.region->path() == "packed" && reader.read(source).ok();
    });
    ::_exit(held ? 0 : 1);
  });
  int status = -1;
  ::waitpid(outside, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no new pid namespaces here";
  EXPECT_EQ(status, 0);
}

TEST(ShmFaultTest, MemoryThatWasUnmappedIsAnError) {
  const std::size_t size = elements;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const Tensor form;
  const TensorView view{static_cast<std::byte*>(memory), Dtype::int8, form.shape, form.strides};
  Reader reader;
  Party owner(make_shm_fabric({"the owner", secret, nullptr}));
  const auto region = owner->expose({&view, 1});
  const auto peer = reader.party->connect(owner->address(), secret, Deadline::never());
  const auto both = [&](auto holds) {
    while (!holds()) {
      owner.poll();
      reader.party.poll();
    }
  };
  both([&] { return peer->up(); });
  reader.party->attach(*peer, region->number(), OpId{1}, Deadline::never());
  both([&] { return reader.party.completion(OpId{1}) != nullptr; });
  ::munmap(memory, size);
  reader.start_read({peer, reader.party.completion(OpId{1})->region, 0}, OpId{2});
  both([&] { return reader.party.completion(OpId{2}) != nullptr; });
  const Status status = reader.party.completion(OpId{2})->status;
  EXPECT_EQ(status.code, Code::failed);
  EXPECT_NE(status.message.find("freed after it was exposed"), std::string::npos) << status.message;
}

TEST(ShmFaultTest, AForkedChildCannotUseItAndDoesNoHarm) {
  const Owner owner({});
  // The station knows of forks, for all its transports.
  auto reader = std::make_unique<Reader>(
      std::make_unique<Station>(StationOptions{"the reader", "own", nullptr}));
  const auto peer = reader->connect(owner.descriptor());
  const Source source = reader->attach(peer, owner.descriptor());
  EXPECT_TRUE(os::holds_in_child([&] {
    bool refused = false;
    try {
      reader->party->poll();
    } catch (const Error& error) {
      refused = error.code() == Code::failed;
    }
    reader->party.kill();
    return refused;
  }));
  EXPECT_TRUE(reader->read(source).ok());
}

TEST(ShmFaultTest, NonsenseOnTheSocketHurtsNobodyElse) {
  const Owner owner({});
  Reader reader;
  const Source source = reader.attach(reader.connect(owner.descriptor()), owner.descriptor());
  std::mt19937 random(3);
  os::EventFd some_fd;
  for (int i = 0; i < 300; ++i) {
    const os::Fd socket = os::connect_unix(owner.descriptor().ways[0].where);
    std::string hello = packet(PacketKind::hello, encode(Hello{{}, owner.descriptor().owner}));
    for (int packets = 0; packets < 3; ++packets) {
      std::string bytes = random() % 2 == 0 ? hello : std::string(1 + random() % 200, '\0');
      for (std::size_t n = random() % 5; n > 0; --n) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      if (random() % 2 == 0) bytes[0] = static_cast<char>(1 + random() % 12);
      os::send_packet(socket, bytes,
                      random() % 2 == 0 ? std::vector<int>{some_fd.get()} : std::vector<int>{});
    }
  }
  EXPECT_TRUE(reader.read(source).ok());
  EXPECT_TRUE(reader.party.losses.empty());
}

// Both in this thread: whether they come to be connected.
bool meet(Party& owner, Reader& reader, const Peer& peer) {
  const Deadline deadline = Deadline::after(seconds(30));
  while (!peer.up() && reader.party.losses.empty() && !deadline.expired()) {
    owner.poll();
    reader.party.poll();
  }
  return peer.up();
}

TEST(ShmFaultTest, AFullBacklogIsTriedAgain) {
  Party owner(make_shm_fabric({"the owner", secret, nullptr}));
  const std::string where = owner->address().where;
  while (os::connect_unix(where)) {
  }
  Reader reader;
  const auto peer = reader.party->connect(owner->address(), secret, Deadline::after(seconds(60)));
  for (int i = 0; i < 10; ++i) reader.party.poll();
  EXPECT_TRUE(reader.party.losses.empty()) << reader.party.losses.front().reason.message;
  EXPECT_TRUE(meet(owner, reader, *peer));
}

TEST(ShmFaultTest, ABacklogThatStaysFullIsToldAtTheDeadline) {
  Party owner(make_shm_fabric({"the owner", secret, nullptr}));
  while (os::connect_unix(owner->address().where)) {
  }
  Reader reader;
  reader.party->connect(owner->address(), secret, Deadline::after(milliseconds(50)));
  ASSERT_TRUE(reader.until([&] { return !reader.party.losses.empty(); }));
  EXPECT_EQ(reader.party.losses.front().reason.code, Code::timeout);
}

TEST(ShmFaultTest, ACrowdOfStrangersKeepsNobodyOut) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const Owner owner({});
  const pid_t crowd = os::fork_child([&] {
    ::alarm(100);
    if (::setgid(nobody_special) != 0 || ::setuid(nobody_special) != 0) ::_exit(3);
    while (true) os::connect_unix(owner.descriptor().ways[0].where);
  });
  for (int i = 0; i < 3; ++i) {
    Reader reader;
    const Source source = reader.attach(reader.connect(owner.descriptor()), owner.descriptor());
    EXPECT_TRUE(reader.read(source).ok());
    EXPECT_TRUE(reader.party.losses.empty());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(crowd, &status, WNOHANG), 0) << "the crowd was there to the end";
  ::kill(crowd, SIGKILL);
  ::waitpid(crowd, &status, 0);
}

TEST(ShmFaultTest, WithoutDescriptorsConnectionsWait) {
  Party owner(make_shm_fabric({"the owner", secret, nullptr}));
  Reader reader;
  owner.poll();
  sleep_until(*owner, Deadline::after(milliseconds(1)));
  const auto peer = reader.party->connect(owner->address(), secret, Deadline::after(seconds(60)));
  log::set_level(log::Level::error);
  int polls = 0;
  {
    const os::NoDescriptors none;
    const Deadline a_while = Deadline::after(milliseconds(400));
    for (; !a_while.expired(); ++polls) {
      owner.poll();
      sleep_until(*owner, a_while);
    }
  }
  log::set_level(log::Level::info);
  EXPECT_LT(polls, 50) << "it does not spin";
  EXPECT_TRUE(meet(owner, reader, *peer));
}

}  // namespace
}  // namespace tensorbus::fabric
