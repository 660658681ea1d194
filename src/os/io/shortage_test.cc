#include "os/io/shortage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "os/net/unix_socket.h"
#include "os/testing/no_descriptors.h"

namespace tensorbus::os {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ShortageTest : public testing::Test {
 protected:
  ShortageTest() {
    log::set_sink([this](log::Level, std::string_view line) { lines_.emplace_back(line); });
  }
  ~ShortageTest() override {
    log::set_sink([](log::Level, std::string_view) {});
  }
  std::vector<std::string> lines_;
};

TEST_F(ShortageTest, PausesAgainAndAgainAndSaysSoTwice) {
  Shortage shortage("the test");
  TimePoint time = now();
  EXPECT_FALSE(shortage.pause_is_over(time)) << "there is none";
  for (int i = 0; i < 10; ++i) {
    shortage.begin(EMFILE, time);
    EXPECT_GT(shortage.until(), time);
    EXPECT_FALSE(shortage.pause_is_over(time));
    time = shortage.until();
    EXPECT_TRUE(shortage.pause_is_over(time));
    EXPECT_FALSE(shortage.pause_is_over(time)) << "once";
  }
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("the test: no connection can be accepted: Too many")));
  shortage.end();
  shortage.end();
  EXPECT_EQ(shortage.until(), TimePoint::max());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("no connection"), HasSubstr("accepted again")));
}

TEST_F(ShortageTest, WhoeverWaitsIsAcceptedWhenItIsOver) {
  const std::string name = "tensorbus shortage " + std::to_string(::getpid());
  const Fd listener = listen_unix(name);
  const Fd client = connect_unix(name);
  Shortage shortage("the test");
  log::set_level(log::Level::error);
  Fd accepted;
  {
    const NoDescriptors none;
    accepted = accept_unix(listener, shortage, now());
  }
  log::set_level(log::Level::info);
  EXPECT_FALSE(accepted);
  EXPECT_NE(shortage.until(), TimePoint::max());
  EXPECT_TRUE(accept_unix(listener, shortage, now()));
  EXPECT_FALSE(accept_unix(listener, shortage, now())) << "nobody waits";
}

TEST_F(ShortageTest, IsALackOfDescriptorsOrMemoryAndNothingElse) {
  for (const int error : {EMFILE, ENFILE, ENOMEM, ENOBUFS}) EXPECT_TRUE(is_shortage(error));
  for (const int error : {EAGAIN, EINTR, ECONNABORTED, EBADF}) EXPECT_FALSE(is_shortage(error));
}

TEST(UnixSocketTest, AFullBacklogIsNoErrorButNothing) {
  const std::string name = "tensorbus backlog " + std::to_string(::getpid());
  const Fd listener = listen_unix(name);
  while (connect_unix(name)) {
  }
  Shortage shortage("the test");
  EXPECT_TRUE(accept_unix(listener, shortage, now()));
  EXPECT_TRUE(connect_unix(name)) << "there is room again";
}

}  // namespace
}  // namespace tensorbus::os
