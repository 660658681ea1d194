#include "copy/thread_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <string>

#include "copy/crew.h"
#include "os/process/cores.h"
#include "tensorbus/status.h"

namespace tensorbus::copy {
namespace {

class ThreadCountTest : public testing::Test {
 protected:
  ~ThreadCountTest() override { ::unsetenv("TENSORBUS_COPY_THREADS"); }

  static std::string refusal(std::optional<std::int64_t> argument) {
    try {
      threads_asked_for(argument);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      return error.what();
    }
  }
};

TEST_F(ThreadCountTest, TheArgumentWinsOverTheEnvironment) {
  EXPECT_EQ(threads_asked_for({}), std::nullopt);
  ::setenv("TENSORBUS_COPY_THREADS", "3", 1);
  EXPECT_EQ(threads_asked_for({}), 3u);
  EXPECT_EQ(threads_asked_for(2), 2u);
}

TEST_F(ThreadCountTest, ARefusalNamesTheSettingAndWhatItMayBe) {
  for (const std::int64_t count : {0, -1, 9, 99}) {
    EXPECT_THAT(refusal(count),
                testing::AllOf(testing::HasSubstr("copy_threads is " + std::to_string(count)),
                               testing::HasSubstr("1 to 8")));
  }
  for (const char* text : {"0", "-1", "99", "x", "2x", "2.5", " 2", "99999999999999999999"}) {
    ::setenv("TENSORBUS_COPY_THREADS", text, 1);
    EXPECT_THAT(refusal({}), testing::AllOf(testing::HasSubstr("TENSORBUS_COPY_THREADS is \"" +
                                                               std::string(text) + "\""),
                                            testing::HasSubstr("1 to 8")));
  }
}

TEST_F(ThreadCountTest, AgentsShareTheCores) {
  const std::size_t cores = os::usable_cores();
  EXPECT_EQ(threads_beside(1), std::min(cores, most_threads));
  EXPECT_EQ(threads_beside(cores), 1u);
  EXPECT_EQ(threads_beside(100 * cores), 1u);
  EXPECT_EQ(threads_beside(0), threads_beside(1));
}

}  // namespace
}  // namespace tensorbus::copy
