#include "os/process/process.h"
#include "base/clock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "os/io/poll.h"
#include "os/net/tcp.h"
#include "os/net/unix_socket.h"
#include "os/process/fork.h"
#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

// A child that waits to be killed; ended whatever the test does.
class Sleeper {
 public:
  Sleeper() : pid_(::fork()) {
    if (pid_ == 0) {
      while (true) ::pause();
    }
  }
  ~Sleeper() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(ProcessTest, HasAHostAndAStartTime) {
  EXPECT_EQ(host_key(), host_key());
  EXPECT_EQ(process_start_time(::getpid()), own_start_time());
  const Sleeper child;
  EXPECT_GE(process_start_time(child.pid()), process_start_time(::getpid()));
}

TEST(ProcessTest, APidfdTellsTheEnd) {
  Sleeper child;
  const pid_t pid = child.pid();
  const Fd pidfd = open_pidfd(pid);
  EXPECT_FALSE(has_ended(pidfd));
  child.kill();
  EXPECT_TRUE(has_ended(pidfd));
  EXPECT_THROW(open_pidfd(pid), Error);
  EXPECT_THROW(process_start_time(pid), Error);
}

TEST(ProcessTest, MemoryOfAnotherProcessIsReadInAnyPieces) {
  std::vector<char> source(100'000);
  std::mt19937 random(1);
  for (char& each : source) each = static_cast<char>(random());
  const Sleeper child;  // has a copy of it
  for (int round = 0; round < 50; ++round) {
    std::vector<char> target(source.size());
    std::vector<char> expected;
    std::vector<iovec> remote;
    std::vector<iovec> local;
    for (std::size_t i = 0; i < 1 + random() % 300; ++i) {
      const std::size_t at = random() % source.size();
      const std::size_t size = random() % std::min<std::size_t>(300, source.size() - at + 1);
      remote.push_back({source.data() + at, size});
      expected.insert(expected.end(), source.data() + at, source.data() + at + size);
    }
    for (std::size_t at = 0; at < expected.size();) {
      const std::size_t size = std::min<std::size_t>(expected.size() - at, random() % 500);
      local.push_back({target.data() + at, size});
      at += size;
    }
    ASSERT_EQ(read_process_memory(child.pid(), local, remote), 0);
    ASSERT_EQ(std::memcmp(target.data(), expected.data(), expected.size()), 0);
  }
  char byte = 0;
  const iovec here{&byte, 1};
  const iovec nowhere{nullptr, 1};
  EXPECT_EQ(read_process_memory(child.pid(), {&here, 1}, {&nowhere, 1}), EFAULT);
}

TEST(ProcessTest, MemoryOfAnotherProcessIsWritten) {
  std::vector<char> bytes(10'000, 'a');
  const Sleeper child;  // has a copy of it
  std::vector<char> written(3'000, 'b');
  const iovec local{written.data(), written.size()};
  const iovec remote[] = {{bytes.data(), 1'000}, {bytes.data() + 5'000, 2'000}};
  ASSERT_EQ(write_process_memory(child.pid(), {&local, 1}, remote), 0);
  std::vector<char> found(bytes.size());
  const iovec into{found.data(), found.size()};
  const iovec all{bytes.data(), bytes.size()};
  ASSERT_EQ(read_process_memory(child.pid(), {&into, 1}, {&all, 1}), 0);
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i], i < 1'000 || (i >= 5'000 && i < 7'000) ? 'b' : 'a') << i;
  }
  EXPECT_EQ(bytes[0], 'a') << "our own copy";
}

TEST(ProcessTest, APidfdKnowsItsPidWhileTheProcessLives) {
  Fd pidfd;
  {
    const Sleeper child;
    pidfd = open_pidfd(child.pid());
    EXPECT_EQ(pid_of(pidfd), child.pid());
  }
  EXPECT_EQ(pid_of(pidfd), 0);
}

Fd accept_one(const Fd& listener) {
  Shortage shortage("test");
  return accept_unix(listener, shortage, now());
}

TEST(UnixSocketTest, CarriesPacketsDescriptorsAndCredentials) {
  const std::string name = "tensorbus test " + std::to_string(::getpid());
  const Fd listener = listen_unix(name);
  EXPECT_FALSE(accept_one(listener));
  const Fd client = connect_unix(name);
  const Fd server = accept_one(listener);
  ASSERT_TRUE(server);
  EXPECT_EQ(peer_credentials(server).pid, ::getpid());
  EXPECT_EQ(peer_credentials(client).uid, ::getuid());
  EXPECT_NE(overflow_uid(), 0u);

  Packet packet;
  EXPECT_EQ(receive_packet(server, packet), PacketResult::would_block);
  EventFd event;
  EXPECT_EQ(send_packet(client, "one", {event.get(), event.get()}), PacketResult::done);
  EXPECT_EQ(send_packet(client, std::string(most_packet_bytes, 'x')), PacketResult::done);
  EXPECT_EQ(receive_packet(server, packet), PacketResult::done);
  EXPECT_EQ(packet.bytes, "one");
  ASSERT_EQ(packet.fds.size(), 2u);
  const std::uint64_t count = 1;
  ASSERT_EQ(::write(packet.fds[1].get(), &count, sizeof count), 8);
  pollfd ready{event.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 1);
  EXPECT_EQ(receive_packet(server, packet), PacketResult::done);
  EXPECT_EQ(packet.bytes.size(), most_packet_bytes);
  EXPECT_TRUE(packet.fds.empty());
}

TEST(UnixSocketTest, SaysWhenTheOtherEndIsGoneOrWasNeverThere) {
  EXPECT_THROW(connect_unix("tensorbus nobody " + std::to_string(::getpid())), Error);
  EXPECT_THROW(listen_unix(std::string(200, 'x')), Error);
  const std::string name = "tensorbus gone " + std::to_string(::getpid());
  const Fd listener = listen_unix(name);
  Fd client = connect_unix(name);
  const Fd server = accept_one(listener);
  client.reset();
  Packet packet;
  EXPECT_EQ(receive_packet(server, packet), PacketResult::closed);
  EXPECT_EQ(send_packet(server, "x"), PacketResult::closed);
}

TEST(ForkTest, RegisteredDescriptorsAreClosedInChildren) {
  const std::string name = "tensorbus fork " + std::to_string(::getpid());
  const Fd listener = listen_unix(name);
  Fd client = connect_unix(name);
  const Fd server = accept_one(listener);
  close_in_children(client.get());
  const Sleeper child;
  forget_in_children(client.get());
  client.reset();
  pollfd hung_up{server.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&hung_up, 1, 5000), 1);
  Packet packet;
  EXPECT_EQ(receive_packet(server, packet), PacketResult::closed);
}

TEST(ForkTest, SocketsThatASetWatchesAreClosedInChildren) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  Fd client = connect_tcp("127.0.0.1", local_port(listener), Deadline::never());
  const Fd server(::accept(listener.get(), nullptr, nullptr));
  const Fd inner(::epoll_create1(0));
  const Fd outer(::epoll_create1(0));
  const EventFd event;
  const auto watch = [](const Fd& set, int fd) {
    epoll_event interest{};
    ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &interest), 0);
  };
  watch(inner, client.get());
  watch(outer, event.get());
  watch(outer, inner.get());
  ASSERT_EQ(::fcntl(client.get(), F_SETFD, 0), 0);
  close_watched_on_exec(outer.get());
  EXPECT_EQ(::fcntl(client.get(), F_GETFD), FD_CLOEXEC);
  close_watched_in_children(outer.get());
  const Sleeper child;
  forget_in_children(outer.get());
  client.reset();
  pollfd hung_up{server.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&hung_up, 1, 5000), 1);
  char byte = 0;
  EXPECT_EQ(::recv(server.get(), &byte, 1, 0), 0);
}

TEST(SignalTest, AThreadOfOursLeavesSignalsToTheOthers) {
  const auto blocked = [] {
    sigset_t now{};
    ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return ::sigismember(&now, SIGINT) == 1 && ::sigismember(&now, SIGPIPE) == 1;
  };
  bool in_thread = false;
  std::thread([&] {
    block_signals_in_this_thread();
    in_thread = blocked();
  }).join();
  EXPECT_TRUE(in_thread);
  EXPECT_FALSE(blocked()) << "another thread's business";
}

}  // namespace
}  // namespace tensorbus::os
