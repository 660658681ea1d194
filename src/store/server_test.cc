#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "os/poll.h"
#include "os/tcp.h"
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

}  // namespace
}  // namespace tensorbus
