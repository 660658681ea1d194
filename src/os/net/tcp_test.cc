#include "os/net/tcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <thread>

#include "base/clock.h"
#include "base/interrupt.h"
#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(Code::ok, "");
}

TEST(Tcp, ConnectsToWhatListens) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  EXPECT_TRUE(connect_tcp("127.0.0.1", local_port(listener), Deadline::after_seconds(5)));
}

TEST(Tcp, APortInUseIsNamedWithAHint) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  const std::uint16_t port = local_port(listener);
  const Error error = error_of([&] { listen_tcp("127.0.0.1", port); });
  EXPECT_THAT(error.what(), testing::HasSubstr("127.0.0.1:" + std::to_string(port)));
  EXPECT_THAT(error.what(), testing::HasSubstr("another port"));
}

TEST(Tcp, NobodyListeningIsUnreachable) {
  Fd listener = listen_tcp("127.0.0.1", 0);
  const std::uint16_t port = local_port(listener);
  listener.reset();
  const Error error = error_of([&] { connect_tcp("127.0.0.1", port, Deadline::after_seconds(5)); });
  EXPECT_EQ(error.code(), Code::unreachable);
  EXPECT_THAT(error.what(), testing::HasSubstr("refused"));
}

TEST(Tcp, AnUnknownHostIsUnreachableAndNamed) {
  const Error error = error_of([] { connect_tcp("no such host", 1, Deadline::after_seconds(5)); });
  EXPECT_EQ(error.code(), Code::unreachable);
  EXPECT_THAT(error.what(), testing::HasSubstr("no such host"));
}

TEST(Tcp, AProcessKnowsWhereItListens) {
  Fd listener = listen_tcp("127.0.0.1", 0);
  const std::string address = host_port("127.0.0.1", local_port(listener));
  const auto listens = [&] {
    const std::vector<std::string> all = listening_addresses();
    return std::find(all.begin(), all.end(), address) != all.end();
  };
  EXPECT_TRUE(listens());
  listener.reset();
  EXPECT_FALSE(listens());
}

TEST(Tcp, Ipv6StandsInBrackets) {
  EXPECT_EQ(host_port("::1", 80), "[::1]:80");
  EXPECT_EQ(host_port("localhost", 80), "localhost:80");
}

// proves: K8
TEST(Poll, NeverReturnsBeforeTheDeadline) {
  EventFd quiet;
  for (int i = 0; i < 20; ++i) {
    pollfd descriptor{quiet.get(), POLLIN, 0};
    const TimePoint start = now();
    EXPECT_FALSE(wait_ready({&descriptor, 1}, Deadline::after(std::chrono::milliseconds(3))));
    EXPECT_GE(now() - start, std::chrono::milliseconds(3));
  }
}

TEST(Poll, AnEventWakesAWaitFromAnotherThread) {
  EventFd event;
  std::thread other([&] { event.signal(); });
  pollfd descriptor{event.get(), POLLIN, 0};
  EXPECT_TRUE(wait_ready({&descriptor, 1}, Deadline::after_seconds(30)));
  other.join();
  event.drain();
  EXPECT_FALSE(wait_ready({&descriptor, 1}, Deadline::after_seconds(0)));
}

std::atomic<bool> interrupt_now{false};

TEST(Poll, AnInterruptEndsTheWait) {
  set_interrupt_check([] { return interrupt_now.load(); });
  EventFd quiet;
  pollfd descriptor{quiet.get(), POLLIN, 0};
  std::thread other([] { interrupt_now = true; });
  const Error error = error_of([&] { wait_ready({&descriptor, 1}, Deadline::after_seconds(30)); });
  other.join();
  set_interrupt_check(nullptr);
  EXPECT_EQ(error.code(), Code::interrupted);
}

}  // namespace
}  // namespace tensorbus::os
