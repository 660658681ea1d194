#include "os/net/source_filter.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>

#include "os/net/tcp.h"
#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

IpAddress ip(const std::string& text) { return parse_ip_address(text).value(); }

// Calls from this address; any of 127.0.0.0/8 is ours.
class Caller {
 public:
  Caller(const std::string& from, std::uint16_t port)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_in own{AF_INET, 0, {}, {}};
    sockaddr_in remote{AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {}};
    ::inet_pton(AF_INET, from.c_str(), &own.sin_addr);
    if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&own), sizeof own) != 0 ||
        (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&remote), sizeof remote) != 0 &&
         errno != EINPROGRESS)) {
      throw_errno("calling from " + from);
    }
  }
  bool is_up_within(int milliseconds) const {
    pollfd descriptor{socket_.get(), POLLOUT, 0};
    return ::poll(&descriptor, 1, milliseconds) == 1 && (descriptor.revents & POLLERR) == 0;
  }
  int get() const noexcept { return socket_.get(); }

 private:
  Fd socket_;
};

// Loopback is done with a call before it returns: who is dropped is so already.
constexpr int at_once = 100;
constexpr int patience = 20'000;

class SourceFilter : public testing::Test {
 protected:
  bool admits(const std::string& from) { return Caller(from, port_).is_up_within(at_once); }

  Fd listener_ = listen_tcp("127.0.0.1", 0);
  std::uint16_t port_ = local_port(listener_);
};

TEST_F(SourceFilter, LetsInWhomItNamesAndNobodyElse) {
  EXPECT_TRUE(admits("127.0.0.3"));
  EXPECT_EQ(admit_only(listener_.get(), {ip("127.0.0.2"), ip("10.0.0.1"), ip("::1")}),
            Admitted::exactly);
  EXPECT_TRUE(admits("127.0.0.2"));
  EXPECT_FALSE(admits("127.0.0.3"));
  EXPECT_EQ(admit_only(listener_.get(), {}), Admitted::exactly);
  EXPECT_FALSE(admits("127.0.0.2"));
}

TEST_F(SourceFilter, WhoIsAdmittedLaterGetsThroughByItself) {
  admit_only(listener_.get(), {});
  const Caller early("127.0.0.2", port_);
  EXPECT_FALSE(early.is_up_within(at_once));
  admit_only(listener_.get(), {ip("127.0.0.2")});
  EXPECT_TRUE(early.is_up_within(patience));
}

TEST_F(SourceFilter, ConnectionsThatStandAreNotTouched) {
  admit_only(listener_.get(), {ip("127.0.0.2")});
  const Caller caller("127.0.0.2", port_);
  ASSERT_TRUE(caller.is_up_within(patience));
  const Fd accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted);
  admit_only(listener_.get(), {});
  ASSERT_EQ(::send(caller.get(), "hello", 5, 0), 5);
  pollfd descriptor{accepted.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&descriptor, 1, patience), 1);
}

TEST_F(SourceFilter, FindsEachOfMany) {
  std::set<IpAddress> odd;
  for (int i = 1; i < 800; i += 2) odd.insert(ip(fmt::format("127.1.{}.{}", i / 256, i % 256)));
  ASSERT_EQ(admit_only(listener_.get(), odd), Admitted::exactly);
  for (const int i : {1, 3, 5, 7, 9, 251, 255, 257, 401, 511, 513, 795, 797, 799}) {
    EXPECT_TRUE(admits(fmt::format("127.1.{}.{}", i / 256, i % 256))) << i;
  }
  for (const int i : {2, 254, 400, 798, 801}) {
    EXPECT_FALSE(admits(fmt::format("127.1.{}.{}", i / 256, i % 256))) << i;
  }
}

TEST_F(SourceFilter, OfTooManyTheNetworksAreAdmitted) {
  std::set<IpAddress> many;
  for (int i = 0; i < 5000; ++i) many.insert(ip(fmt::format("127.7.{}.{}", i / 250, i % 250)));
  EXPECT_GT(filter_program(many, {}).size(), std::size_t{BPF_MAXINSNS});
  EXPECT_EQ(admit_only(listener_.get(), many), Admitted::networks);
  EXPECT_TRUE(admits("127.7.19.249"));
  EXPECT_TRUE(admits("127.7.19.251")) << "a neighbour";
  EXPECT_FALSE(admits("127.8.0.1"));
}

TEST(SourceFilterV6, LooksAtTheWholeAddress) {
  Fd listener;
  try {
    listener = listen_tcp("::1", 0);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const auto admits = [&](const std::set<IpAddress>& sources) {
    EXPECT_EQ(admit_only(listener.get(), sources), Admitted::exactly);
    try {
      connect_tcp("::1", local_port(listener), Deadline::after_seconds(0.1));
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  EXPECT_TRUE(admits({ip("::1"), ip("::2"), ip("127.0.0.1")}));
  EXPECT_FALSE(admits({ip("::2"), ip("1::1"), ip("0:0:1::1"), ip("127.0.0.1")}));
  EXPECT_FALSE(admits({}));
}

TEST(IpAddresses, OneHostHasOneValue) {
  EXPECT_EQ(ip("10.1.2.3"), ip("::ffff:10.1.2.3"));
  EXPECT_TRUE(ip("10.1.2.3").is_v4());
  EXPECT_FALSE(ip("fd00::1").is_v4());
  EXPECT_EQ(ip("10.1.2.3").word(3), 0x0A010203U);
  EXPECT_EQ(parse_ip_address("localhost"), std::nullopt);
}

}  // namespace
}  // namespace tensorbus::os
