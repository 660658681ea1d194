#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "os/io/poll.h"
#include "os/net/tcp.h"
#include "tensorbus/store.h"

namespace tensorbus {
namespace {

using namespace std::chrono_literals;

// Whether the server hangs up, without a word, by the deadline.
bool ends(const os::Fd& client, Deadline deadline) {
  std::array<pollfd, 1> readable{pollfd{client.get(), POLLIN, 0}};
  char byte = 0;
  return os::wait_ready(readable, deadline) && ::recv(client.get(), &byte, 1, 0) == 0;
}

TEST(StoreServerTest, WhoDoesNotIntroduceItselfIsHungUpOn) {
  StoreServerOptions options;
  options.port = 0;
  options.greeting_time = 300ms;
  const StoreServer server(options);
  const auto speaker = connect(StoreUrl::parse(server.url()));

  const TimePoint start = now();
  std::vector<os::Fd> clients;
  // Silence, half of our hello, half of torch's.
  for (const std::string_view said :
       {std::string_view(), std::string_view("TBUS"), std::string_view("\0\xCE", 2)}) {
    clients.push_back(os::connect_tcp("127.0.0.1", server.port(), Deadline::after(5s), nullptr));
    ASSERT_EQ(::send(clients.back().get(), said.data(), said.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(said.size()));
  }
  for (const os::Fd& client : clients) {
    EXPECT_TRUE(ends(client, Deadline::after(10s)));
    EXPECT_GE(now() - start, 300ms);
  }
  // Who has said its name may be silent for as long as it likes.
  EXPECT_FALSE(speaker->exists("key", Deadline::after(5s)));
  EXPECT_EQ(server.stats().connections, 1U);
}

// While it lives nobody in this process gets another descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 3;
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(StoreServerTest, ClientsThatCameWithoutDescriptorsAreAcceptedLater) {
  StoreServerOptions options;
  options.port = 0;
  const StoreServer server(options);
  std::atomic<int> told{0};
  log::set_sink([&](log::Level level, std::string_view message) {
    if (level == log::Level::warn && message.find("accept") != std::string_view::npos) ++told;
  });
  // UBSan's first look at a sink takes a descriptor.
  log::warn("as long as there are some");
  // The kernel takes the connection; the server needs a descriptor for it.
  const os::Fd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  {
    const NoDescriptors lack;
    ASSERT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
    const Deadline patience = Deadline::after(20s);
    while (told == 0 && !patience.expired()) std::this_thread::yield();
    EXPECT_EQ(told, 1);
    EXPECT_EQ(server.stats().accepted, 0U);
    // Longer than several rests: what is told once is not told again.
    std::array<pollfd, 1> readable{pollfd{client.get(), POLLIN, 0}};
    EXPECT_FALSE(os::wait_ready(readable, Deadline::after(500ms)));
    EXPECT_EQ(told, 1);
  }
  // Nobody leaves, nobody else comes: only the clock can tell it to try again.
  const Deadline patience = Deadline::after(20s);
  while (server.stats().accepted == 0 && !patience.expired()) std::this_thread::yield();
  EXPECT_EQ(server.stats().accepted, 1U);
  log::set_sink([](log::Level, std::string_view) {});
}

}  // namespace
}  // namespace tensorbus
