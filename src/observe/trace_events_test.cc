#include "observe/trace_events.h"

#include <gtest/gtest.h>

#include "observe/text.h"

namespace tensorbus::observe {
namespace {

// proves: O3.1
TEST(TraceEvents, ASpanHasItsPhasesInside) {
  Span span;
  span.work = Work::pull;
  span.rank = 3;
  span.slowest = 1;
  span.begin = 1'000'500;
  span.end = 4'000'500;
  span.in(Phase::wait) = 1'000'000;
  span.in(Phase::read) = 1'500'000;
  span.version = 8;
  span.bytes = 4096;
  span.name = ShortText<56>("policy");
  span.side = ShortText<24>("rollout");
  span.add_peer(0);
  span.add_peer(1);
  EXPECT_EQ(
      to_events(span, 77),
      R"({"ph":"X","cat":"pull","name":"pull policy v8","pid":77,"tid":3,"ts":1000.500,)"
      R"("dur":3000.000,"args":{"work":"pull","what":"policy","version":8,"bytes":4096,)"
      R"("outcome":"ok","rank":3,"side":"rollout","peers":[0,1],"peer_count":2,"slowest":1}},)"
      "\n"
      R"({"ph":"X","cat":"phase","name":"wait","pid":77,"tid":3,"ts":1000.500,"dur":1000.000,)"
      R"("args":{"of":"pull"}},)"
      "\n"
      R"({"ph":"X","cat":"phase","name":"read","pid":77,"tid":3,"ts":2000.500,"dur":1500.000,)"
      R"("args":{"of":"pull"}})");
}

TEST(TraceEvents, PhasesEndWithTheirSpan) {
  Span span;
  span.end = 1000;
  span.in(Phase::read) = 5000;
  EXPECT_NE(to_events(span, 1).find(R"("name":"read","pid":1,"tid":0,"ts":0.000,"dur":1.000)"),
            std::string::npos);
}

TEST(TraceEvents, JobsWithOneFolderAreToldApart) {
  EXPECT_NE(to_events(Span{}, 1, "a \"b\"").find(R"("args":{"namespace":"a \"b\"","work":)"),
            std::string::npos);
}

TEST(TraceEvents, NamesAreEscaped) {
  EXPECT_EQ(to_json_string("a\"b\\c\nd"), "\"a\\\"b\\\\c\\u000ad\"");
}

TEST(TraceEvents, MorePeersThanFitAreCounted) {
  Span span;
  for (int peer = 0; peer < 40; ++peer) span.add_peer(peer);
  EXPECT_EQ(span.named_peers().size(), Span::most_peers);
  EXPECT_NE(to_events(span, 1).find("\"peer_count\":40"), std::string::npos);
}

TEST(TraceEvents, AFileSaysWhatItsClockIs) {
  const std::string lines = to_events(TraceOrigin{5, "node", "b00", 10, 20});
  EXPECT_NE(lines.find(R"("args":{"host":"node","boot":"b00","steady_ns":10,"wall_ns":20})"),
            std::string::npos);
}

}  // namespace
}  // namespace tensorbus::observe
