#include "observe/recorder.h"

#include <gtest/gtest.h>

#include "observe/openmetrics.h"
#include "observe/registry.h"

namespace tensorbus::observe {
namespace {

Span pull_of(std::int64_t nanoseconds, Code code) {
  Span span;
  span.work = Work::pull;
  span.code = code;
  span.end = nanoseconds;
  span.in(Phase::read) = nanoseconds / 2;
  span.bytes = 1000;
  span.version = 7;
  return span;
}

// proves: O1.1
TEST(Recorder, CountsByOutcomeAndPhase) {
  Recorder recorder(Labels{{"rank", "2"}});
  recorder.finish(pull_of(2'000'000, Code::ok));
  recorder.finish(pull_of(4'000'000, Code::ok));
  recorder.finish(pull_of(1'000'000'000, Code::timeout));
  recorder.add_bytes("network", 512);
  recorder.add_bytes("by pigeon", 1);
  recorder.lose_peer(Code::peer_lost);
  Families families;
  recorder.collect(families);
  const std::string text = to_text(families, TextFormat::prometheus);
  for (const char* line : {
           "tensorbus_operations_total{rank=\"2\",operation=\"pull\",outcome=\"ok\"} 2\n",
           "tensorbus_operations_total{rank=\"2\",operation=\"pull\",outcome=\"timeout\"} 1\n",
           "tensorbus_operation_bytes_total{rank=\"2\",operation=\"pull\"} 2000\n",
           "tensorbus_operation_seconds_bucket{rank=\"2\",operation=\"pull\",le=\"0.005\"} 2\n",
           "tensorbus_operation_seconds_count{rank=\"2\",operation=\"pull\"} 3\n",
           "tensorbus_phase_seconds_total{rank=\"2\",operation=\"pull\",phase=\"read\"} 0.503\n",
           "tensorbus_read_bytes_total{rank=\"2\",path=\"network\"} 512\n",
           "tensorbus_read_bytes_total{rank=\"2\",path=\"other\"} 1\n",
           "tensorbus_peers_lost_total{rank=\"2\",cause=\"peer lost\"} 1\n",
           "tensorbus_version{rank=\"2\"} 7\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_EQ(text.find("operation=\"publish\""), std::string::npos);
}

// A rate sees no growth of a series that begins with 1.
// proves: O1.1
TEST(Recorder, ShowsOutcomesThatHaveNotHappenedOnceTheWorkHasBegun) {
  Recorder recorder({});
  const auto shown = [&] {
    Families families;
    recorder.collect(families);
    return to_text(families, TextFormat::prometheus);
  };
  EXPECT_NE(shown().find("tensorbus_peers_lost_total{cause=\"peer lost\"} 0\n"), std::string::npos);
  EXPECT_EQ(shown().find("tensorbus_operations_total{"), std::string::npos);
  recorder.begin(Work::pull);
  const auto timeouts = [](int count) {
    return "tensorbus_operations_total{operation=\"pull\",outcome=\"timeout\"} " +
           std::to_string(count) + "\n";
  };
  EXPECT_NE(shown().find(timeouts(0)), std::string::npos) << shown();
  recorder.finish(pull_of(1000, Code::timeout));
  EXPECT_NE(shown().find(timeouts(1)), std::string::npos) << shown();
  EXPECT_EQ(shown().find("operation=\"recv\""), std::string::npos);
}

TEST(Recorder, IsInTheRegistryWhileItLives) {
  const auto shown = [] { return to_text(registry().collect(), TextFormat::prometheus); };
  const auto more = registry().add([](Families& families) {
    families.add(MetricKind::gauge, "tensorbus_more", "More.", {}, 1);
  });
  {
    const Recorder recorder(Labels{{"rank", "4711"}});
    EXPECT_NE(shown().find("4711"), std::string::npos);
  }
  EXPECT_EQ(shown().find("4711"), std::string::npos);
  EXPECT_NE(shown().find("tensorbus_more 1\n"), std::string::npos);
}

}  // namespace
}  // namespace tensorbus::observe
