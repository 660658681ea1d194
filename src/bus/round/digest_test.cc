#include "bus/round/digest.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "copy/execute.h"

namespace tensorbus::bus {
namespace {

constexpr std::int64_t chunk_bytes = 512;

// Two tensors, rows in float32, of which the reader gets columns: one as it is, one in bfloat16.
class DigestTest : public testing::Test {
 protected:
  static plan::Stream stream_for(Rank reader) {
    const Layout rows(Mesh({1}), {Shard{0}});
    const Layout columns(Mesh({3}, std::vector<Rank>{10, 11, 12}), {Shard{1}});
    const Layout copies(Mesh({3}, std::vector<Rank>{10, 11, 12}), {Replicate{}});
    const std::vector<plan::Plan> plans = {
        plan::make(rows, copies, shape_, {Dtype::float32, Dtype::float32}),
        plan::make(rows, columns, shape_, {Dtype::float32, Dtype::bfloat16})};
    return plan::read_streams(plans, reader, chunk_bytes).at(0);
  }

  DigestTest() { std::iota(sent_.begin(), sent_.end(), 0.5F); }

  std::vector<TensorView> sources() {
    auto* data = reinterpret_cast<std::byte*>(sent_.data());
    const TensorView first{data, Dtype::float32, shape_, strides_};
    TensorView second = first;
    second.data = data + elements * sizeof(float);
    return {first, second};
  }
  std::vector<TensorView> targets() {
    return {
        {reinterpret_cast<std::byte*>(whole_.data()), Dtype::float32, shape_, strides_},
        {reinterpret_cast<std::byte*>(part_.data()), Dtype::bfloat16, part_shape_, part_strides_}};
  }

  void read(const plan::Stream& stream) {
    const plan::Strides from = {strides_, strides_};
    const plan::Strides to = {strides_, part_strides_};
    const plan::Program program = plan::compile(stream, &from, &to);
    const std::vector<const std::byte*> first = {sources()[0].data, sources()[1].data};
    const std::vector<std::byte*> into = {targets()[0].data, targets()[1].data};
    const copy::Sources member(first);
    copy::execute(program, std::span(&member, 1), into);
  }

  static const std::vector<std::uint64_t>& sums(Digest& digest, std::int64_t round) {
    digest.begin(round);
    std::int64_t budget = 0;
    while (!digest.work(budget)) budget = chunk_bytes;
    return digest.sums();
  }

  static constexpr std::size_t elements = 30 * 60;
  static inline const Shape shape_ = {30, 60};
  static inline const Shape strides_ = {60, 1};
  static inline const Shape part_shape_ = {30, 20};
  static inline const Shape part_strides_ = {20, 1};
  std::vector<float> sent_ = std::vector<float>(2 * elements);
  std::vector<float> whole_ = std::vector<float>(elements);
  std::vector<std::uint16_t> part_ = std::vector<std::uint16_t>(elements / 3);
};

TEST_F(DigestTest, BothEndsMakeTheSameAndAChangedTensorIsFound) {
  const plan::Stream stream = stream_for(11);
  Digest source(stream, Digest::End::source, Verify::full, sources(), nullptr, nullptr);
  Digest target(stream, Digest::End::target, Verify::full, targets(), nullptr, nullptr);
  const std::vector<std::uint64_t> offered = sums(source, 1);
  ASSERT_EQ(offered.size(), 2u);
  EXPECT_NE(sums(target, 1), offered);
  read(stream);
  EXPECT_EQ(sums(target, 1), offered);
  part_.back() ^= 1;
  EXPECT_EQ(sums(target, 2)[0], offered[0]);
  EXPECT_NE(sums(target, 3)[1], offered[1]);
}

TEST_F(DigestTest, SamplesLookAtEveryChunkOnceInSixteenRounds) {
  const plan::Stream stream = stream_for(10);
  Digest before(stream, Digest::End::source, Verify::sample, sources(), nullptr, nullptr);
  std::vector<std::vector<std::uint64_t>> offered;
  for (std::int64_t round = 0; round < 16; ++round) offered.push_back(sums(before, round));
  for (std::size_t element = 0; element < elements; element += 100) {
    const float was = std::exchange(sent_[element], -1.0F);
    int noticed = 0;
    for (std::int64_t round = 0; round < 16; ++round) {
      noticed += sums(before, round) != offered[static_cast<std::size_t>(round)] ? 1 : 0;
    }
    EXPECT_EQ(noticed, 1) << element;
    sent_[element] = was;
  }
}

TEST_F(DigestTest, ReadersOfTheSameShareOne) {
  const plan::Stream stream = stream_for(10);
  Digest digest(stream, Digest::End::source, Verify::full, sources(), nullptr, nullptr);
  plan::Stream copy = stream;
  copy.reader = 99;
  EXPECT_TRUE(digest.serves(copy, Verify::full));
  EXPECT_FALSE(digest.serves(copy, Verify::sample));
  EXPECT_FALSE(digest.serves(stream_for(11), Verify::full)) << "other columns";
}

}  // namespace
}  // namespace tensorbus::bus
