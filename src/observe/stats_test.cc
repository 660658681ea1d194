#include "tensorbus/stats.h"

#include <gtest/gtest.h>

#include "observe/recorder.h"

namespace tensorbus {
namespace {

// proves: O2.2
TEST(Stats, AreThoseOfThePageByTheirLabels) {
  observe::Recorder one({{"namespace", "stats"}, {"rank", "1"}});
  const observe::Recorder other({{"namespace", "stats"}, {"rank", "2"}});
  one.add_bytes("mapped", 512);
  observe::Span span;
  span.work = observe::Work::pull;
  span.end = 2'000'000'000;
  one.finish(span);

  const Stats all = stats();
  EXPECT_EQ(all.at("tensorbus_version").size(), 2U);
  const Stats of_one = stats({{"namespace", "stats"}, {"rank", "1"}});
  ASSERT_EQ(of_one.at("tensorbus_read_bytes").size(), 1U);
  const Series& bytes = of_one.at("tensorbus_read_bytes").front();
  EXPECT_EQ(bytes.labels, (std::map<std::string, std::string>{{"path", "mapped"}}));
  EXPECT_EQ(bytes.value, 512);
  EXPECT_FALSE(bytes.count);
  const Series& seconds = of_one.at("tensorbus_operation_seconds").front();
  EXPECT_EQ(seconds.count, 1U);
  EXPECT_DOUBLE_EQ(seconds.value, 2.0);
  EXPECT_FALSE(stats({{"rank", "2"}}).contains("tensorbus_read_bytes"));
}

}  // namespace
}  // namespace tensorbus
