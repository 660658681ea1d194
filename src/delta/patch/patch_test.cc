#include "delta/patch/patch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <utility>

#include "delta/testing/both_ends.h"
#include "delta/testing/patch_liar.h"

namespace tensorbus::delta {
namespace {

using Outcome = LiedToReader::Outcome;

constexpr PatchId patch_from_3_to_5{.generation = 7, .base = 3, .version = 5, .stream = 1};
static_assert(may_apply(HeldContent{7, 3}, patch_from_3_to_5));
static_assert(may_apply(HeldContent{7, 4}, patch_from_3_to_5));
static_assert(may_apply(HeldContent{7, 5}, patch_from_3_to_5));
static_assert(!may_apply(HeldContent{7, 2}, patch_from_3_to_5), "changes would be missing");
static_assert(!may_apply(HeldContent{7, 6}, patch_from_3_to_5), "it would go back");
static_assert(!may_apply(HeldContent{6, 4}, patch_from_3_to_5), "another generation");
static_assert(!may_apply(std::nullopt, patch_from_3_to_5));

// One bfloat16 tensor as it lies, and changes somewhere in it.
struct Weights {
  Weights(std::int64_t elements, double share, unsigned seed = 1)
      : tensor(Dtype::bfloat16, {elements}) {
    const Layout one(Mesh({1}), {Replicate{}});
    const plan::Plan batch[] = {
        plan::make(one, one, tensor.shape, {Dtype::bfloat16, Dtype::bfloat16})};
    const plan::Strides strides = {tensor.strides};
    program = plan::compile(plan::read_streams(batch, 0).front(), &strides, &strides);
    changes.emplace_back(elements);
    if (share <= 0) return;
    std::mt19937_64 random(seed);
    std::geometric_distribution<std::int64_t> unchanged(std::min(share, 0.999));
    const auto skipped = [&] { return share < 1 ? unchanged(random) : 0; };
    for (std::int64_t i = skipped(); i < elements; i += 1 + skipped()) changes[0].set(i);
  }

  std::vector<std::byte> patch() const {
    const Packed packed(program, plan::BoundSide::source);
    const PatchWriter writer(packed, changes);
    std::vector<std::byte> bytes(writer.bytes());
    const std::byte* const from[] = {tensor.bytes.data()};
    writer.write(patch_from_3_to_5, from, bytes);
    return bytes;
  }

  TestTensor tensor;
  plan::Program program;
  Changes changes;
};

Codec usual_codec_of(const Weights& weights) {
  const std::vector<std::byte> bytes = weights.patch();
  const CheckedPatch patch(bytes, Packed(weights.program, plan::BoundSide::target).parts());
  std::array<std::pair<int, Codec>, codec_count> codecs = {};
  for (const PatchBlock& block : patch.blocks()) {
    auto& [count, codec] = codecs[static_cast<std::size_t>(block.codec)];
    ++count;
    codec = block.codec;
  }
  return std::ranges::max(codecs).second;
}

TEST(Patch, ABlockIsEncodedInTheSmallestWay) {
  EXPECT_EQ(usual_codec_of({100'000, 0.001}), Codec::positions);
  EXPECT_EQ(usual_codec_of({100'000, 0.02}), Codec::gaps);
  EXPECT_EQ(usual_codec_of({100'000, 0.5}), Codec::bitmap);
  EXPECT_EQ(usual_codec_of({100'000, 1}), Codec::dense);
}

double entropy_bits(double share) {
  return -share * std::log2(share) - (1 - share) * std::log2(1 - share);
}

// proves: E1.5
TEST(Patch, IsHardlyLargerThanAnyEncodingCouldBe) {
  constexpr std::int64_t elements = 1 << 21;
  constexpr std::pair<double, double> shares[] = {{0.001, 1.3}, {0.005, 1.1}, {0.01, 1.1},
                                                  {0.03, 1.1},  {0.05, 1.11}, {0.5, 1.1}};
  for (const auto& [share, most] : shares) {
    const Weights weights(elements, share);
    const double bound = static_cast<double>(elements) * entropy_bits(share) / 8 +
                         2 * static_cast<double>(count(weights.changes));
    EXPECT_LT(static_cast<double>(weights.patch().size()) / bound, most) << share;
  }
}

TEST(Patch, NothingChangedIsAPatchToo) {
  const Weights weights(100'000, 0);
  const std::vector<std::byte> bytes = weights.patch();
  EXPECT_EQ(bytes.size(), sizeof(PatchHeader) + sizeof(PatchPartHeader));
  const CheckedPatch patch(bytes, Packed(weights.program, plan::BoundSide::target).parts());
  EXPECT_EQ(patch.id(), patch_from_3_to_5);
  EXPECT_TRUE(patch.blocks().empty());
}

TEST(Patch, OfAReductionIsRefused) {
  plan::Program program;
  program.source.ranks = {0, 1};
  EXPECT_THROW(Packed(program, plan::BoundSide::source), Error);
}

TEST(Patch, ChangesOfAnotherTensorAreRefused) {
  const Weights weights(1000, 0.1);
  const Packed packed(weights.program, plan::BoundSide::source);
  const Changes few = {Bitmap(999)};
  EXPECT_THROW(PatchWriter(packed, few), Error);
  EXPECT_THROW(PatchWriter(packed, {}), Error);
}

TEST(Patch, ChangesThatAreAddedMeanwhileAreAnErrorAndNotAnOverrun) {
  Weights weights(10'000, 0.01);
  const Packed packed(weights.program, plan::BoundSide::source);
  const std::byte* const from[] = {weights.tensor.bytes.data()};
  for (const bool add : {true, false}) {
    const PatchWriter writer(packed, weights.changes);
    std::vector<std::byte> bytes(writer.bytes());
    if (add) {
      for (std::int64_t i = 0; i < 10'000; i += 3) weights.changes[0].set(i);
    } else {
      weights.changes[0].clear();
    }
    EXPECT_THROW(writer.write({}, from, bytes), Error);
    std::vector<std::byte> small(writer.bytes() - 1);
    EXPECT_THROW(writer.write({}, from, small), Error);
  }
}

TEST(CheckedPatch, AnHonestOneIsApplied) {
  LiedToReader reader;
  std::vector<std::byte> patch = reader.honest_patch();
  EXPECT_EQ(reader.read(patch), Outcome::applied);
  LiedToReader::forge_header(patch);
  EXPECT_EQ(reader.read(patch), Outcome::applied) << "the others below would prove nothing";
}

TEST(CheckedPatch, OneThatIsDamagedOnItsWayIsRefused) {
  LiedToReader reader;
  const std::vector<std::byte> honest = reader.honest_patch();
  for (std::size_t at = 0; at < honest.size(); at += at < 400 ? 1 : 97) {
    for (const unsigned bit : {0, 3, 7}) {
      std::vector<std::byte> patch = honest;
      patch[at] ^= static_cast<std::byte>(1U << bit);
      ASSERT_EQ(reader.read(patch), Outcome::refused) << "bit " << bit << " of byte " << at;
    }
  }
}

TEST(CheckedPatch, OneThatIsCutShortOrHasMoreIsRefused) {
  LiedToReader reader;
  std::vector<std::byte> patch = reader.honest_patch();
  patch.resize(patch.size() + 16);
  LiedToReader::forge_header(patch);
  EXPECT_EQ(reader.read(patch), Outcome::refused);
  const std::vector<std::byte> honest = reader.honest_patch();
  for (std::size_t size = 0; size < honest.size(); size += size < 300 ? 1 : 61) {
    std::vector<std::byte> cut(honest.begin(), honest.begin() + static_cast<std::ptrdiff_t>(size));
    LiedToReader::forge_header(cut);
    ASSERT_EQ(reader.read(cut), Outcome::refused) << size << " bytes";
  }
}

// The checksum fits, so that it is the other checks that hold.
TEST(CheckedPatch, ALiarsPatchIsRefusedOrWritesToElementsAlone) {
  LiedToReader reader;
  const std::vector<std::byte> honest = reader.honest_patch();
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::vector<std::byte> patch = honest;
    for (std::uint64_t lies = 1 + random() % 3; lies > 0; --lies) {
      // Mostly where lengths and counts are.
      const std::size_t within = random() % 3 == 0 ? patch.size() : 400;
      const std::size_t at = sizeof(PatchHeader) + random() % (within - sizeof(PatchHeader));
      constexpr unsigned likely[] = {0, 1, 0x7F, 0x80, 0xFF};
      patch[at] = static_cast<std::byte>(random() % 2 == 0 ? likely[random() % 5]
                                                           : static_cast<unsigned>(random() % 256));
    }
    LiedToReader::forge_header(patch);
    const Outcome outcome = reader.read(patch);
    ASSERT_NE(outcome, Outcome::damaged) << "lie " << i;
    refused += outcome == Outcome::refused ? 1 : 0;
  }
  EXPECT_GT(refused, 700);
}

// One lie each, of those that could do harm.
// proves: E1.5
TEST(CheckedPatch, EveryKindOfLieIsFound) {
  LiedToReader reader;
  const std::vector<std::byte> honest = reader.honest_patch();
  const std::size_t part = sizeof(PatchHeader);
  const auto with = [&](std::size_t at, auto value) {
    std::vector<std::byte> patch = honest;
    std::memcpy(patch.data() + part + at, &value, sizeof value);
    LiedToReader::forge_header(patch);
    return patch;
  };
  PatchPartHeader header;
  std::memcpy(&header, honest.data() + part, sizeof header);
  const PatchPlaces places = places_of(header);
  const auto entry = [](Codec codec, std::uint32_t count) {
    return static_cast<std::uint16_t>((count - 1) << codec_bits | static_cast<unsigned>(codec));
  };
  using Header = PatchPartHeader;
  const std::pair<const char*, std::vector<std::byte>> lies[] = {
      {"elements", with(offsetof(Header, elements), header.elements + 1)},
      {"values", with(offsetof(Header, values), header.values + 1)},
      {"values that overflow", with(offsetof(Header, values), ~std::uint64_t{0})},
      {"indices", with(offsetof(Header, index_bytes), header.index_bytes - 1)},
      {"indices that overflow", with(offsetof(Header, index_bytes), ~std::uint64_t{0} - 8)},
      {"another type", with(offsetof(Header, item_bytes), std::uint32_t{4})},
      {"no bytes", with(offsetof(Header, item_bytes), std::uint32_t{0})},
      {"no blocks", with(offsetof(Header, blocks), std::uint32_t{0})},
      {"many blocks", with(offsetof(Header, blocks), ~std::uint32_t{0})},
      {"a block that is not there", with(places.presence, std::uint64_t{0b111101})},
      {"a block beyond the part", with(places.presence, std::uint64_t{0b1111 | 1ULL << 40})},
      {"an unknown codec", with(places.entries, std::uint16_t{7})},
      {"fewer values", with(places.entries, entry(Codec::positions, 1))},
      {"more values", with(places.entries, entry(Codec::positions, 8192))},
      {"dense with few values", with(places.entries, entry(Codec::dense, 21))},
      {"a position twice", with(places.indices + 2, std::uint16_t{0})},
      {"a position beyond the block", with(places.indices + 40, std::uint16_t{8192})},
      {"a gap", with(places.entries + 2 * header.blocks, std::uint8_t{1})},
  };
  for (const auto& [what, patch] : lies) {
    EXPECT_EQ(reader.read(patch), Outcome::refused) << what;
  }
}

TEST(CheckedPatch, OneForAnotherProgramIsNotApplied) {
  const Weights weights(1000, 0.1);
  const Weights others(1001, 0.1);
  const std::vector<std::byte> bytes = weights.patch();
  const Packed packed(weights.program, plan::BoundSide::target);
  const Packed other(others.program, plan::BoundSide::target);
  EXPECT_THROW(CheckedPatch(bytes, other.parts()), Error);
  const CheckedPatch patch(bytes, packed.parts());
  std::vector<std::byte> memory(2002);
  std::byte* const to[] = {memory.data()};
  EXPECT_THROW(apply_blocks(patch, other, to, 0, 1), Error);
  EXPECT_THAT(memory, ::testing::Each(std::byte{0}));
}

}  // namespace
}  // namespace tensorbus::delta
