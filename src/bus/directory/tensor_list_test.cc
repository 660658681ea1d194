// Lists of tensors that records share: there, waited for, or refused.
#include "bus/directory/tensor_list.h"

#include <gtest/gtest.h>

#include "bus/directory/catalog.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

std::vector<TensorRecord> named(std::size_t count, const std::string& begin = "w") {
  std::vector<TensorRecord> tensors;
  for (std::size_t at = 0; at < count; ++at) {
    tensors.push_back({0, begin + std::to_string(at), Dtype::float32, {4, 6}, std::nullopt});
  }
  return tensors;
}

BatchMember member(std::vector<TensorRecord> tensors) {
  BatchMember member;
  member.registration = 1;
  member.ends = {{"p", "train"}};
  member.remotes = {"infer"};
  member.tensors = std::move(tensors);
  return member;
}

class ListTest : public testing::Test {
 protected:
  static BatchKey key(Rank rank) { return {"b", "train", rank}; }
  void show(Rank rank, const BatchMember& member) {
    catalog.apply({to_text(key(rank)), encode(member)});
  }
  void store(const WrittenList& list, std::uint32_t part, const std::string& bytes) {
    catalog.apply({to_text(ListKey{list.id.hash, part}), bytes});
  }
  void store(const WrittenList& list, std::uint32_t part) { store(list, part, list.parts[part]); }
  void lose(const WrittenList& list, std::uint32_t part) {
    catalog.apply({to_text(ListKey{list.id.hash, part}), std::nullopt});
  }
  bool knows(Rank rank) const { return catalog.registration(key(rank))->tensors.known(); }

  Catalog catalog;
};

TEST_F(ListTest, EqualTensorsAreOneListAndOthersAreAnother) {
  EXPECT_EQ(SharedTensors(named(3)).id, SharedTensors(named(3)).id);
  EXPECT_NE(SharedTensors(named(3)).id, SharedTensors(named(3, "v")).id);
  EXPECT_NE(SharedTensors(named(3)).id, SharedTensors(named(2)).id);
  EXPECT_TRUE(SharedTensors(named(0)).known());
  EXPECT_EQ(SharedTensors(named(0)).id.parts, 0u);
}

// proves: L4.1
TEST_F(ListTest, ARecordHasTheSameSizeHoweverManyTensorsItRefersTo) {
  EXPECT_EQ(encode(member(named(1))).size(), encode(member(named(10'000))).size());
  EXPECT_LT(encode(member(named(10'000))).size(), 200u);
}

TEST_F(ListTest, ARegistrationWaitsForItsList) {
  const WrittenList list = write_list(named(3));
  show(0, member(named(3)));
  EXPECT_FALSE(knows(0));
  EXPECT_FALSE(catalog.is_stored(list.id));
  const auto before = catalog.revision("b", {"p", "train"});
  store(list, 0);
  EXPECT_NE(catalog.revision("b", {"p", "train"}), before);
  EXPECT_TRUE(knows(0));
  EXPECT_TRUE(catalog.is_stored(list.id));
  EXPECT_EQ(catalog.registration(key(0))->tensors.all(), named(3));
}

TEST_F(ListTest, WhatIsKnownStaysKnownWhileARecordHasIt) {
  const WrittenList list = write_list(named(3));
  store(list, 0);
  show(0, member(named(3)));
  EXPECT_TRUE(knows(0));
  lose(list, 0);
  EXPECT_FALSE(catalog.is_stored(list.id));
  EXPECT_TRUE(knows(0));
  show(1, member(named(3)));
  EXPECT_TRUE(knows(1)) << "rank 0 has the same";
  catalog.apply({to_text(key(0)), std::nullopt});
  EXPECT_TRUE(catalog.refers_to(list.id.hash));
  catalog.apply({to_text(key(1)), std::nullopt});
  EXPECT_FALSE(catalog.refers_to(list.id.hash));
  show(2, member(named(3)));
  EXPECT_FALSE(knows(2)) << "nobody has it any more";
}

TEST_F(ListTest, BytesOfAnotherHashAreRefusedAndMayBeReplaced) {
  const WrittenList list = write_list(named(3));
  EXPECT_THROW(read_list(list.id.hash, write_list(named(2)).parts[0]), Error);
  show(0, member(named(3)));
  store(list, 0, write_list(named(2)).parts[0]);
  EXPECT_FALSE(knows(0));
  EXPECT_FALSE(catalog.is_stored(list.id));
  store(list, 0, "nonsense");
  EXPECT_FALSE(knows(0));
  store(list, 0);
  EXPECT_TRUE(knows(0));
  EXPECT_TRUE(catalog.is_stored(list.id));
}

TEST_F(ListTest, ALongListIsSplitAndWaitedForWhole) {
  const std::vector<TensorRecord> tensors = named(3'000, std::string(900, 'n'));
  const WrittenList list = write_list(tensors);
  ASSERT_GE(list.id.parts, 3u);
  for (const std::string& part : list.parts) EXPECT_LE(part.size(), 1'000'000u);
  show(0, member(tensors));
  for (std::uint32_t part = list.id.parts; part-- > 0;) {
    EXPECT_FALSE(knows(0));
    store(list, part);
  }
  EXPECT_TRUE(knows(0));
  EXPECT_EQ(catalog.registration(key(0))->tensors.all(), tensors);
  lose(list, 1);
  EXPECT_FALSE(catalog.is_stored(list.id));
  store(list, 1, list.parts[0]);
  EXPECT_FALSE(catalog.is_stored(list.id));
  store(list, 1);
  EXPECT_TRUE(catalog.is_stored(list.id));
}

// As a stranger may have written it, or an agent that had other parts.
TEST_F(ListTest, APartTooManyHarmsNobody) {
  const WrittenList list = write_list(named(3));
  show(0, member(named(3)));
  store(list, 9, "nonsense");
  store(list, 0);
  EXPECT_TRUE(catalog.is_stored(list.id));
  EXPECT_TRUE(knows(0));
  EXPECT_FALSE(catalog.is_stored({list.id.hash, 2})) << "by another number of parts";
  EXPECT_TRUE(catalog.is_stored(list.id));
}

TEST_F(ListTest, AListThatNoRecordRefersToChangesNothing) {
  show(0, member(named(3)));
  const auto before = catalog.revision("b", {"p", "train"});
  store(write_list(named(2)), 0);
  EXPECT_EQ(catalog.revision("b", {"p", "train"}), before);
}

TEST_F(ListTest, AListThatDoesNotFitItsRecordIsNotTaken) {
  std::vector<TensorRecord> of_another_end = named(1);
  of_another_end[0].end = 1;
  std::vector<TensorRecord> with_layout = named(1);
  with_layout[0].layout = 0;
  std::vector<TensorRecord> of_no_end = named(1);
  of_no_end[0].end = SIZE_MAX;
  std::vector<TensorRecord> of_no_layout = named(1);
  of_no_layout[0].layout = SIZE_MAX;
  for (const auto& tensors : {of_another_end, with_layout, of_no_end, of_no_layout}) {
    store(write_list(tensors), 0);
    show(0, member(tensors));
    EXPECT_FALSE(knows(0));
  }
  BatchMember fits = member(with_layout);
  fits.layouts = {{{2}, {Shard{0}}, Shape{1}, 0}};
  show(0, fits);
  EXPECT_TRUE(knows(0));
}

}  // namespace
}  // namespace tensorbus::bus
