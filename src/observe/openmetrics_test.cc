#include "observe/openmetrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tensorbus::observe {
namespace {

Families three_kinds() {
  Families families;
  families.add(MetricKind::counter, "tensorbus_read_bytes", "Bytes read.",
               {{"rank", "3"}, {"path", "mapped"}}, 4096);
  families.add(MetricKind::gauge, "tensorbus_queue_commands", "Commands that wait.", {}, 2);
  families.add("tensorbus_operation_seconds", "How long.", {{"operation", "pull"}},
               {{{0.001, 1}, {0.1, 3}}, 4, 7.5});
  return families;
}

// proves: O2.1
TEST(OpenMetrics, EachKindHasItsLines) {
  EXPECT_EQ(to_text(three_kinds(), TextFormat::openmetrics),
            "# HELP tensorbus_operation_seconds How long.\n"
            "# TYPE tensorbus_operation_seconds histogram\n"
            "tensorbus_operation_seconds_bucket{operation=\"pull\",le=\"0.001\"} 1\n"
            "tensorbus_operation_seconds_bucket{operation=\"pull\",le=\"0.1\"} 3\n"
            "tensorbus_operation_seconds_bucket{operation=\"pull\",le=\"+Inf\"} 4\n"
            "tensorbus_operation_seconds_sum{operation=\"pull\"} 7.5\n"
            "tensorbus_operation_seconds_count{operation=\"pull\"} 4\n"
            "# HELP tensorbus_queue_commands Commands that wait.\n"
            "# TYPE tensorbus_queue_commands gauge\n"
            "tensorbus_queue_commands 2\n"
            "# HELP tensorbus_read_bytes Bytes read.\n"
            "# TYPE tensorbus_read_bytes counter\n"
            "tensorbus_read_bytes_total{rank=\"3\",path=\"mapped\"} 4096\n"
            "# EOF\n");
}

TEST(OpenMetrics, TheOlderFormatNamesCountersWithTheirSuffix) {
  const std::string text = to_text(three_kinds(), TextFormat::prometheus);
  EXPECT_NE(text.find("# TYPE tensorbus_read_bytes_total counter\n"), std::string::npos);
  EXPECT_EQ(text.find("# EOF"), std::string::npos);
}

TEST(OpenMetrics, LabelsAreEscaped) {
  Families families;
  families.add(MetricKind::gauge, "a", "one\ntwo", {{"x", "q\"b\\s\nn"}}, NAN);
  EXPECT_EQ(to_text(families, TextFormat::prometheus),
            "# HELP a one\\ntwo\n# TYPE a gauge\na{x=\"q\\\"b\\\\s\\nn\"} NaN\n");
}

TEST(OpenMetrics, AClientGetsWhatItAccepts) {
  EXPECT_EQ(format_for("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"),
            TextFormat::openmetrics);
  EXPECT_EQ(format_for("*/*"), TextFormat::prometheus);
  EXPECT_EQ(format_for(""), TextFormat::prometheus);
}

}  // namespace
}  // namespace tensorbus::observe
