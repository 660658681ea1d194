#include "store/server/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace tensorbus::store {
namespace {

using testing::ElementsAre;

class JournalTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "journal-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder = pattern;
    path = folder / "journal";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  // The bodies of its records.
  std::vector<std::string> replayed() {
    std::vector<std::string> bodies;
    Journal(path, [&](const JournalRecord& record) { bodies.emplace_back(record.body); });
    return bodies;
  }
  std::string bytes() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(std::string_view content) const { std::ofstream(path, std::ios::binary) << content; }

  std::filesystem::path folder;
  std::filesystem::path path;
};

void ignore(const JournalRecord&) {}

TEST_F(JournalTest, WhatWasFlushedIsReplayedInOrder) {
  {
    Journal journal(path, ignore);
    journal.append({Op::set, "session", 7, 3, "first"});
    journal.append({Op::add, {}, 0, 0, std::string("sec\0nd", 6)});
    journal.flush();
    journal.append({Op::add, {}, 0, 0, "never flushed"});
  }
  std::vector<JournalRecord> records;
  std::vector<std::string> sessions;
  Journal journal(path, [&](const JournalRecord& record) {
    records.push_back(record);
    sessions.emplace_back(record.session);
  });
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].op, Op::set);
  EXPECT_EQ(records[0].id, 7U);
  EXPECT_EQ(records[0].settled, 3U);
  EXPECT_THAT(sessions, ElementsAre("session", ""));
}

TEST_F(JournalTest, CutAnywhereItHoldsTheWholeRecordsBefore) {
  std::vector<std::size_t> ends;
  {
    Journal journal(path, ignore);
    for (const char* body : {"one", "two", "three"}) {
      journal.append({Op::set, {}, 0, 0, body});
      journal.flush();
      ends.push_back(journal.size());
    }
  }
  const std::string whole = bytes();
  const std::size_t head = ends[0] - (ends[1] - ends[0]);
  for (std::size_t size = head; size <= whole.size(); ++size) {
    write(whole.substr(0, size));
    const auto complete =
        std::count_if(ends.begin(), ends.end(), [&](std::size_t end) { return end <= size; });
    EXPECT_EQ(replayed().size(), static_cast<std::size_t>(complete)) << size;
    // The rest is gone from the file, too.
    EXPECT_EQ(replayed().size(), static_cast<std::size_t>(complete)) << size;
  }
}

TEST_F(JournalTest, EveryFlippedBitIsNoticed) {
  {
    Journal journal(path, ignore);
    journal.append({Op::set, "session", 1, 1, "body"});
    journal.append({Op::set, "session", 2, 2, "body"});
    journal.flush();
  }
  const std::string whole = bytes();
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    write(damaged);
    EXPECT_THROW(replayed(), Error) << "bit " << bit;
  }
  write(whole);
  EXPECT_THAT(replayed(), ElementsAre("body", "body"));
}

TEST_F(JournalTest, CompactionLeavesOnlyWhatIsWrittenThen) {
  {
    Journal journal(path, ignore);
    journal.append({Op::set, {}, 0, 0, "old"});
    journal.compact([&] { journal.append({Op::restore_revision, {}, 0, 0, "state"}); });
    journal.append({Op::set, {}, 0, 0, "new"});
    journal.flush();
  }
  EXPECT_THAT(replayed(), ElementsAre("state", "new"));
}

TEST_F(JournalTest, WithoutRoomForAnotherFileItGoesOnAsItIs) {
  const std::filesystem::path in_the_way = path.string() + ".new";
  std::filesystem::create_directory(in_the_way);
  {
    Journal journal(path, ignore);
    journal.append({Op::set, {}, 0, 0, "old"});
    journal.compact([&] { journal.append({Op::restore_revision, {}, 0, 0, "state"}); });
    journal.append({Op::set, {}, 0, 0, "new"});
    journal.flush();
    EXPECT_EQ(journal.size(), bytes().size());
  }
  EXPECT_THAT(replayed(), ElementsAre("old", "new"));
}

TEST_F(JournalTest, WhatAKilledCompactionLeftIsRemoved) {
  const std::filesystem::path left = path.string() + ".new";
  std::ofstream(left) << "half a journal";
  const Journal journal(path, ignore);
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST_F(JournalTest, AReplayedJournalIsComparedWithWhatIsLive) {
  const std::string body(1 << 20, 'x');
  const JournalRecord record{Op::set, "session", 1, 1, body};
  {
    Journal journal(path, ignore);
    for (int i = 0; i < 20; ++i) journal.append(record);
    journal.flush();
  }
  EXPECT_NEAR(static_cast<double>(bytes().size()),
              20.0 * static_cast<double>(Journal::size_of(record)), 100);
  Journal journal(path, ignore);
  EXPECT_FALSE(journal.wants_compaction());
  journal.set_live_size(Journal::size_of(record));
  EXPECT_TRUE(journal.wants_compaction());
}

TEST_F(JournalTest, ARecordThatCannotBeAppliedIsAnError) {
  {
    Journal journal(path, ignore);
    journal.append({Op::set, {}, 0, 0, "body"});
    journal.flush();
  }
  EXPECT_THROW(
      Journal(path, [](const JournalRecord&) { throw Error(Code::failed, "makes no sense"); }),
      Error);
}

}  // namespace
}  // namespace tensorbus::store
