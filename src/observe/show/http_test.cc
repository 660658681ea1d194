#include "observe/show/http.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "base/clock.h"
#include "observe/recorder.h"
#include "observe/registry.h"
#include "observe/show/metrics_page.h"
#include "os/io/fd.h"
#include "tensorbus/status.h"

namespace tensorbus::observe {
namespace {

os::Fd dial(std::uint16_t port, int receive_buffer = 0) {
  os::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (receive_buffer > 0) {
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    os::throw_errno("connect");
  }
  return fd;
}

std::string answer_at(const os::Fd& fd) {
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(fd.get(), buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  return answer;
}

std::string get(std::uint16_t port, const std::string& path, const std::string& headers = "",
                const std::string& host = "127.0.0.1") {
  const os::Fd fd = dial(port);
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + headers + "\r\n";
  EXPECT_EQ(::write(fd.get(), request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  return answer_at(fd);
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
  Recorder recorder(Labels{{"rank", "3"}});
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

TEST(Http, APageOfThisMachineIsAskedForByItsName) {
  const auto page = open_metrics("127.0.0.1:0");
  const std::string port = ":" + std::to_string(page->port());
  for (const char* host : {"localhost", "127.0.0.1", "127.1.2.3", "[::1]"}) {
    EXPECT_NE(get(page->port(), "/metrics", "", host + port).find("200 OK"), std::string::npos)
        << host;
  }
  for (const char* host : {"evil.example", "127.evil.example", "localhost.evil.example"}) {
    const std::string answer = get(page->port(), "/metrics", "", host + port);
    EXPECT_NE(answer.find(" 403 "), std::string::npos) << host;
    EXPECT_EQ(answer.find("tensorbus_"), std::string::npos) << host;
  }
}

// proves: O5.1
TEST(Http, WhoTricklesIsCutOffAndDelaysNoEnd) {
  auto page = open_metrics("127.0.0.1:0");
  std::vector<os::Fd> trickling;
  const TimePoint begin = now();
  for (int i = 0; i < 36; ++i) {
    trickling.push_back(dial(page->port()));
    EXPECT_EQ(::write(trickling.back().get(), "G", 1), 1);
  }
  // One more byte every tenth of a second, for as long as the page listens to it.
  while (::send(trickling.front().get(), "x", 1, MSG_NOSIGNAL) == 1) {
    ASSERT_LT(now() - begin, std::chrono::seconds(30));
    pollfd closed{trickling.front().get(), POLLRDHUP, 0};
    if (::poll(&closed, 1, 100) > 0) break;
  }
  EXPECT_GE(now() - begin, std::chrono::seconds(1));
  const TimePoint ending = now();
  page.reset();
  // Not the two seconds of each that waits for one of the four threads.
  EXPECT_LT(now() - ending, std::chrono::seconds(5));
}

// More than any socket holds, and made for longer than a visit may wait.
TEST(Http, AnAnswerThatTookLongToMakeIsTakenWhole) {
  const std::string body(std::size_t{16} << 20, 'x');
  const HttpServer server({"127.0.0.1", 0},
                          {{"/slow", [&](const PageRequest&) {
                              std::this_thread::sleep_for(std::chrono::milliseconds(2200));
                              return PageAnswer{body};
                            }}});
  const std::string answer = get(server.port(), "/slow");
  EXPECT_TRUE(answer.ends_with(body)) << answer.size();
}

TEST(Http, ARequestWithoutAnEndIsRefused) {
  const auto page = open_metrics("127.0.0.1:0");
  const os::Fd fd = dial(page->port());
  std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n";
  while (request.size() < 200'000) request += "X-More: and more\r\n";
  std::size_t sent = 0;
  while (sent < request.size()) {
    const auto count = ::send(fd.get(), request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) break;
    sent += static_cast<std::size_t>(count);
  }
  EXPECT_EQ(answer_at(fd).find("200 OK"), std::string::npos);
}

// The answer fits neither socket: threads of the page do hang on those who take nothing of it.
// proves: O5.1
TEST(Http, WhoNeverReadsDelaysNobodyThatRecords) {
  Recorder recorder({});
  const auto many = registry().add([](Families& families) {
    const std::string long_text(200, 'x');
    for (int i = 0; i < 30'000; ++i) {
      families.add(MetricKind::gauge, "tensorbus_many", "Many.",
                   {{"number", std::to_string(i)}, {"text", long_text}}, 1);
    }
  });
  const auto page = open_metrics("127.0.0.1:0");
  std::vector<os::Fd> silent;
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (int i = 0; i < 8; ++i) {
    silent.push_back(dial(page->port(), 1));
    EXPECT_GT(::write(silent.back().get(), request.data(), request.size()), 0);
  }
  // Its answer has begun.
  pollfd begun{silent.front().get(), POLLIN, 0};
  ASSERT_EQ(::poll(&begun, 1, 60'000), 1);
  Duration longest{};
  for (int i = 0; i < 10'000; ++i) {
    const TimePoint before = now();
    recorder.finish({});
    longest = std::max(longest, now() - before);
  }
  // Far below what the page waits for its clients.
  EXPECT_LT(longest, std::chrono::milliseconds(500));
  // Nobody waits for them for ever: who reads is served, whole.
  const std::string answer = get(page->port(), "/metrics");
  EXPECT_GT(answer.size(), std::size_t{6'000'000});
  EXPECT_NE(answer.find("number=\"29999\""), std::string::npos);
}

}  // namespace
}  // namespace tensorbus::observe
