// The bus as C++ programs see it.
#include "tensorbus/bus.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "base/testing/calls.h"
#include "os/io/fd.h"
#include "tensorbus/log.h"
#include "tensorbus/pool.h"

namespace tensorbus {
namespace {

constexpr std::int64_t float_number = 1000;
constexpr std::size_t float_bytes = float_number * sizeof(float);

BusOptions options_of(Rank rank, std::shared_ptr<fabric::Pool> pool) {
  BusOptions options;
  options.rank = rank;
  options.pool = std::move(pool);
  return options;
}

BusTensor tensor_at(std::byte* memory) {
  return {memory, Dtype::float32, {float_number}, {}, "pair"};
}

// What is logged while it is there.
class Heard {
 public:
  Heard() {
    log::set_sink([this](log::Level, std::string_view message) {
      const std::lock_guard lock(mutex_);
      text_.append(message).append("\n");
    });
  }
  ~Heard() { log::set_sink({}); }
  // The text between the two; empty if it is not there.
  std::string between(const std::string& before, const std::string& after) const {
    const std::lock_guard lock(mutex_);
    const std::size_t at = text_.find(before);
    if (at == std::string::npos) return "";
    const std::size_t begin = at + before.size();
    return text_.substr(begin, text_.find(after, begin) - begin);
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

std::string page_at(std::uint16_t port) {
  const os::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  constexpr std::string_view request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(::write(fd.get(), request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(fd.get(), buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  return answer;
}

// proves: O2.1
TEST(BusTest, HasAPageOfMetricsWhereItsOptionsSay) {
  const Heard heard;
  BusOptions options = options_of(7, nullptr);
  options.metrics = "127.0.0.1:0";
  const Bus bus("memory://bus_metrics_test", options);
  const std::string port = heard.between("metrics of this process at http://127.0.0.1:", "/");
  ASSERT_NE(port, "");
  ASSERT_NE(port, "0");
  const std::string page = page_at(static_cast<std::uint16_t>(std::stoi(port)));
  EXPECT_NE(page.find("tensorbus_commands{namespace=\"default\",rank=\"7\"} 0"), std::string::npos)
      << page;
  options.metrics = "9400";
  EXPECT_THROW(Bus("memory://bus_metrics_test", options), Error);
}

TEST(BusTest, UsesThePoolThatItIsGiven) {
  const auto keeps_it = connect(StoreUrl::parse("memory://bus_pool_test"));
  const auto pool = make_pool();
  const auto own = allocate(*pool, float_bytes);
  std::memset(own.get(), 7, float_bytes);
  const std::size_t before = use_of(*pool).lent_bytes;
  std::vector<std::byte> got(float_bytes);
  Bus sender("memory://bus_pool_test", options_of(0, pool));
  const auto of_the_bus = sender.allocate(float_bytes);
  EXPECT_GE(use_of(*pool).lent_bytes, before + float_bytes)
      << "what it allocates comes from elsewhere";
  std::thread receives([&] {
    Bus receiver("memory://bus_pool_test", options_of(1, nullptr));
    receiver.init_pair({"pair", "b", "a"}, soon());
    const BusTensor tensor = tensor_at(got.data());
    receiver.register_tensors("batch", std::span(&tensor, 1), soon()).recv(soon());
  });
  sender.init_pair({"pair", "a", "b"}, soon());
  const BusTensor tensor = tensor_at(own.get());
  sender.register_tensors("batch", std::span(&tensor, 1), soon()).send(soon());
  receives.join();
  EXPECT_EQ(std::memcmp(got.data(), own.get(), float_bytes), 0);
}

TEST(BusTest, APoolOutlivesTheBusesThatUseIt) {
  const auto keeps_it = connect(StoreUrl::parse("memory://bus_pool_life_test"));
  const auto pool = make_pool();
  std::shared_ptr<std::byte> memory;
  for (const Rank rank : {0, 1}) {
    Bus bus("memory://bus_pool_life_test", options_of(rank, pool));
    memory = bus.allocate(float_bytes);
  }
  std::memset(memory.get(), 1, float_bytes);
  EXPECT_GE(use_of(*pool).lent_bytes, float_bytes);
  memory.reset();
  trim(*pool);
  EXPECT_EQ(use_of(*pool).lent_bytes, 0u);
}

}  // namespace
}  // namespace tensorbus
