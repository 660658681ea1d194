#include "bus/round/fold.h"

#include <gtest/gtest.h>

#include "bus/round/digest.h"
#include "copy/execute.h"
#include "fabric/core/region.h"

namespace tensorbus::bus {
namespace {

constexpr std::int64_t fold_chunk = 512;
constexpr std::int64_t rows = 30;
constexpr std::int64_t columns = 36;

// Rows over two halves of four ranks, each half to be reduced over its two; the reader gets
// columns of both halves, in another type and with room between its rows.
class FoldTest : public testing::TestWithParam<Placement> {
 protected:
  FoldTest() {
    const Layout from(Mesh({2, 2}), {Shard{0}, GetParam()});
    const Layout to(Mesh({3}, std::vector<Rank>{10, 11, 12}), {Shard{1}});
    const std::vector<plan::Plan> plans = {
        plan::make(from, to, {rows, columns}, {Dtype::float32, Dtype::bfloat16})};
    streams_ = plan::read_streams(plans, 11, fold_chunk);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      for (std::size_t i = 0; i < held_[rank].size(); ++i) {
        held_[rank][i] = static_cast<float>(i % 97) * 0.37F + static_cast<float>(rank);
      }
    }
  }

  TensorView source(Rank rank) {
    return {reinterpret_cast<std::byte*>(held_.at(static_cast<std::size_t>(rank)).data()),
            Dtype::float32, source_shape_, source_strides_};
  }
  static TensorView target(std::vector<std::uint16_t>& memory) {
    return {reinterpret_cast<std::byte*>(memory.data()), Dtype::bfloat16, target_shape_,
            target_strides_};
  }
  static void run(const plan::Stream& stream, const std::vector<TensorView>& from,
                  const TensorView& to) {
    const plan::Strides source = {source_strides_};
    const plan::Strides target = fabric::strides_of(std::span(&to, 1));
    std::vector<const std::byte*> first;
    for (const TensorView& view : from) first.push_back(view.data);
    std::vector<copy::Sources> members;
    for (const std::byte* const& each : first) members.emplace_back(&each, 1);
    const plan::Program program = plan::compile(stream, &source, &target);
    copy::execute(program, members, std::span(&to.data, 1));
  }

  static inline const Shape source_shape_ = {rows / 2, columns};
  static inline const Shape source_strides_ = {columns, 1};
  static inline const Shape target_shape_ = {rows, columns / 3};
  static inline const Shape target_strides_ = {20, 1};
  std::vector<plan::Stream> streams_;
  std::vector<std::vector<float>> held_ =
      std::vector<std::vector<float>>(4, std::vector<float>(rows / 2 * columns));
};

TEST_P(FoldTest, GivesBitForBitWhatTheReductionGives) {
  ASSERT_EQ(streams_.size(), 2u);
  std::vector<std::uint16_t> expected(rows * 20, 7);
  std::vector<std::uint16_t> folded(rows * 20, 7);
  const TensorView into = target(folded);
  for (const plan::Stream& stream : streams_) {
    std::vector<TensorView> members;
    for (const Rank rank : stream.source.ranks) members.push_back(source(rank));
    run(stream, members, target(expected));

    GroupFold fold(stream, std::span(&into, 1), nullptr, nullptr);
    for (std::size_t at = 0; at < members.size(); ++at) {
      run(*fold.stream(at), {members[at]}, fold.scratch(at).front());
    }
    for (int round = 0; round < 2; ++round) {
      fold.begin();
      std::int64_t budget = 0;
      int times = 0;
      while (!fold.work(budget)) {
        budget = 1;
        ++times;
      }
      EXPECT_EQ(times, stream.chunk_count());
    }
  }
  EXPECT_EQ(folded, expected);
}

TEST_P(FoldTest, AMembersChecksumsAreItsSourcesAndScratchIsSmall) {
  for (const plan::Stream& stream : streams_) {
    std::vector<std::uint16_t> unused(rows * 20);
    const TensorView into = target(unused);
    GroupFold fold(stream, std::span(&into, 1), nullptr, nullptr);
    for (std::size_t at = 0; at < stream.source.ranks.size(); ++at) {
      const TensorView from = source(stream.source.ranks[at]);
      const TensorView to = fold.scratch(at).front();
      EXPECT_EQ(to.shape[0], rows / 2);
      Digest offered(*fold.stream(at), Digest::End::source, Verify::full, std::span(&from, 1),
                     nullptr);
      Digest got(*fold.stream(at), Digest::End::target, Verify::full, std::span(&to, 1), nullptr);
      run(*fold.stream(at), {from}, to);
      for (Digest* digest : {&offered, &got}) {
        std::int64_t budget = Digest::at_once;
        digest->begin(1);
        ASSERT_TRUE(digest->work(budget));
      }
      EXPECT_EQ(offered.sums(), got.sums());
      to.data[0] ^= std::byte{1};
      std::int64_t budget = Digest::at_once;
      got.begin(1);
      ASSERT_TRUE(got.work(budget));
      EXPECT_NE(offered.sums(), got.sums());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, FoldTest,
                         testing::Values(Partial{ReduceOp::sum}, Partial{ReduceOp::avg},
                                         Partial{ReduceOp::max}, Partial{ReduceOp::product}));

}  // namespace
}  // namespace tensorbus::bus
