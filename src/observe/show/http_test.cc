#include "observe/show/http.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "observe/recorder.h"
#include "observe/show/metrics_page.h"
#include "os/io/fd.h"
#include "tensorbus/status.h"

namespace tensorbus::observe {
namespace {

os::Fd dial(std::uint16_t port) {
  os::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    os::throw_errno("connect");
  }
  return fd;
}

std::string get(std::uint16_t port, const std::string& path, const std::string& headers = "") {
  const os::Fd fd = dial(port);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n";
  EXPECT_EQ(::write(fd.get(), request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(fd.get(), buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  return answer;
}

TEST(Http, AddressesAreHostAndPort) {
  EXPECT_EQ(parse_page_address("127.0.0.1:9400").port, 9400);
  EXPECT_EQ(parse_page_address("[::1]:0").host, "::1");
  for (const char* wrong : {"", "9400", ":9400", "host:", "host:x", "host:70000", "host:1 "}) {
    EXPECT_THROW(parse_page_address(wrong), Error) << wrong;
  }
}

// proves: O2.1
TEST(Http, MetricsAreServedInBothFormats) {
  Recorder recorder({{"rank", "3"}});
  recorder.add_bytes("mapped", 4096);
  const auto page = open_metrics("127.0.0.1:0");
  const std::string plain = get(page->port(), "/metrics");
  EXPECT_NE(plain.find("200 OK"), std::string::npos);
  EXPECT_NE(plain.find("text/plain; version=0.0.4"), std::string::npos);
  EXPECT_NE(plain.find("tensorbus_read_bytes_total{rank=\"3\",path=\"mapped\"} 4096\n"),
            std::string::npos);
  const std::string open =
      get(page->port(), "/metrics", "Accept: application/openmetrics-text\r\n");
  EXPECT_NE(open.find("application/openmetrics-text"), std::string::npos);
  EXPECT_TRUE(open.ends_with("# EOF\n"));
  EXPECT_NE(get(page->port(), "/other").find("404"), std::string::npos);
}

TEST(Http, AnAddressThatIsTakenIsAnError) {
  const auto page = open_metrics("127.0.0.1:0");
  const std::string taken = "127.0.0.1:" + std::to_string(page->port());
  EXPECT_THROW(open_metrics(taken), Error);
}

// proves: O5.1
TEST(Http, WhoNeverReadsDelaysNobodyThatRecords) {
  Recorder recorder({});
  const auto page = open_metrics("127.0.0.1:0");
  std::vector<os::Fd> silent;
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  for (int i = 0; i < 16; ++i) {
    silent.push_back(dial(page->port()));
    if (i % 2 == 0) {
      EXPECT_GT(::write(silent.back().get(), request.data(), request.size()), 0);
    }
  }
  Duration longest{};
  for (int i = 0; i < 10'000; ++i) {
    const TimePoint before = now();
    recorder.finish({});
    longest = std::max(longest, now() - before);
  }
  // Far below what the page waits for its clients.
  EXPECT_LT(longest, std::chrono::milliseconds(500));
}

}  // namespace
}  // namespace tensorbus::observe
