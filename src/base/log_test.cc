#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/config.h"
#include "tensorbus/status.h"

namespace tensorbus {
namespace {

class LogTest : public testing::Test {
 protected:
  LogTest() {
    log::set_sink([this](log::Level, std::string_view message) { lines.emplace_back(message); });
  }
  ~LogTest() override {
    log::set_sink([](log::Level, std::string_view) {});
    log::set_level(log::Level::info);
  }

  std::vector<std::string> lines;
};

TEST_F(LogTest, WritesWhatItsLevelAdmits) {
  log::set_level(log::Level::warn);
  log::info("not {}", "this");
  log::warn("but {} of {}", 1, "these");
  EXPECT_THAT(lines, testing::ElementsAre("but 1 of these"));
}

TEST_F(LogTest, WritesLinesThatSayWhenAndWhoseTheyAre) {
  testing::internal::CaptureStderr();
  log::set_sink_to_stderr_as("rank 3");
  log::warn("100 % of {}", "them");
  log::set_sink_to_stderr();
  log::info("plain");
  log::set_sink({});
  log::error("nowhere");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::MatchesRegex("[-0-9]+ [:0-9]+\\.[0-9]+ warning: rank 3: 100 % of them\n"
                                    "[-0-9]+ [:0-9]+\\.[0-9]+ info: plain\n"));
}

TEST_F(LogTest, NamesLevelsAsPeopleWriteThem) {
  EXPECT_EQ(log::parse_level("trace"), log::Level::trace);
  EXPECT_EQ(log::parse_level("error"), log::Level::error);
  EXPECT_THROW(log::parse_level("loud"), Error);
}

TEST(Config, KnowsItsOwnVariablesAndNoOthers) {
  ASSERT_EQ(::setenv("TENSORBUS_MISSPELT", "1", 1), 0);
  ASSERT_EQ(::setenv("TENSORBUS_TOKEN", "", 1), 0);
  EXPECT_THAT(config::unknown_variables(), testing::Contains("TENSORBUS_MISSPELT"));
  EXPECT_THAT(config::unknown_variables(), testing::Not(testing::Contains("TENSORBUS_TOKEN")));
  EXPECT_EQ(config::variable("TENSORBUS_TOKEN"), std::nullopt) << "empty counts as not set";
  EXPECT_EQ(config::variable("TENSORBUS_MISSPELT"), "1");
  ::unsetenv("TENSORBUS_MISSPELT");
  ::unsetenv("TENSORBUS_TOKEN");
}

TEST(Config, HasFewerThanTwentySettings) { EXPECT_LT(config::settings().size(), 20U); }

TEST(SeldomTest, TheFirstIsToldAndThenOneInAWhile) {
  using namespace std::chrono_literals;
  log::Seldom seldom(10s);
  EXPECT_TRUE(seldom.due(TimePoint(1s)));
  EXPECT_FALSE(seldom.due(TimePoint(1s)));
  EXPECT_FALSE(seldom.due(TimePoint(10s)));
  EXPECT_TRUE(seldom.due(TimePoint(11s)));
  EXPECT_FALSE(seldom.due(TimePoint(20s)));
}

}  // namespace
}  // namespace tensorbus
