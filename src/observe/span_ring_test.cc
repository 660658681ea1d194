#include "observe/span_ring.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace tensorbus::observe {
namespace {

Span numbered(std::int64_t number) {
  Span span;
  span.version = number;
  span.begin = -number;
  span.name = ShortText<56>("batch " + std::to_string(number));
  return span;
}

// proves: O1.2
TEST(SpanRing, GivesWhatIsNewOnce) {
  SpanRing ring;
  std::uint64_t seen = 0;
  EXPECT_TRUE(ring.after(seen).empty());
  for (int i = 1; i <= 3; ++i) ring.push(numbered(i));
  const auto spans = ring.after(seen);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[1].version, 2);
  EXPECT_EQ(spans[1].name.view(), "batch 2");
  EXPECT_TRUE(ring.after(seen).empty());
}

TEST(SpanRing, KeepsTheLastOnes) {
  SpanRing ring;
  const auto pushed = static_cast<std::int64_t>(SpanRing::capacity) + 10;
  for (std::int64_t i = 1; i <= pushed; ++i) ring.push(numbered(i));
  std::uint64_t seen = 0;
  const auto spans = ring.after(seen);
  ASSERT_EQ(spans.size(), SpanRing::capacity);
  EXPECT_EQ(spans.front().version, 11);
  EXPECT_EQ(spans.back().version, pushed);
}

TEST(SpanRing, NamesThatAreTooLongAreCut) {
  EXPECT_EQ(ShortText<8>("a longer one").view(), "a longe");
}

TEST(SpanRing, WhoReadsMeanwhileSeesWholeSpansInOrder) {
  SpanRing ring;
  constexpr std::int64_t last = 200'000;
  std::thread writer([&] {
    for (std::int64_t i = 1; i <= last; ++i) ring.push(numbered(i));
  });
  std::uint64_t seen = 0;
  std::int64_t before = 0;
  while (before < last) {
    for (const Span& span : ring.after(seen)) {
      ASSERT_GT(span.version, before);
      ASSERT_EQ(span.begin, -span.version);
      ASSERT_EQ(span.name.view(), "batch " + std::to_string(span.version));
      before = span.version;
    }
  }
  writer.join();
}

}  // namespace
}  // namespace tensorbus::observe
