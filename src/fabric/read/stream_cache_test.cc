#include "fabric/read/stream_cache.h"

#include <gtest/gtest.h>

namespace tensorbus::fabric {
namespace {

struct Made {
  int number = 0;
  int wanted = 0;
  bool fits(const Read&, int asked) const { return asked == wanted; }
};

class StreamCacheTest : public testing::Test {
 protected:
  int get(const std::shared_ptr<const plan::Stream>& stream, int wanted) {
    const Read read{stream, 0, {}, {}};
    const auto make = [&] { return std::make_shared<Made>(Made{++made_, wanted}); };
    return cache_.get(make, read, wanted)->number;
  }

  StreamCache<Made> cache_;
  int made_ = 0;
};

TEST_F(StreamCacheTest, GivesWhatFitsAndMakesWhatDoesNot) {
  const auto one = std::make_shared<plan::Stream>();
  const auto two = std::make_shared<plan::Stream>();
  EXPECT_EQ(get(one, 7), 1);
  EXPECT_EQ(get(one, 7), 1);
  EXPECT_EQ(get(one, 8), 2);
  EXPECT_EQ(get(two, 7), 3);
  EXPECT_EQ(get(one, 8), 2);
}

TEST_F(StreamCacheTest, KeepsAFewPerStream) {
  const auto stream = std::make_shared<plan::Stream>();
  for (int wanted = 0; wanted < 20; ++wanted) get(stream, wanted);
  EXPECT_EQ(get(stream, 19), 20);
  EXPECT_EQ(get(stream, 0), 21) << "it was kept for ever";
}

TEST_F(StreamCacheTest, ForgetsStreamsThatAreGone) {
  for (int i = 0; i < 1000; ++i) get(std::make_shared<plan::Stream>(), 1);
  EXPECT_EQ(made_, 1000);
  EXPECT_LE(cache_.size(), 16u);
}

}  // namespace
}  // namespace tensorbus::fabric
