#include "program/look/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tensorbus::program {
namespace {

using nlohmann::json;
using testing::ElementsAre;

constexpr std::int64_t second = 1'000'000'000;
constexpr std::int64_t start = 1000 * second;

class BoardTest : public testing::Test {
 protected:
  void see(std::int64_t now = start) { board.see(agents, now); }
  json shown() const { return json::parse(board.to_json()); }
  std::vector<std::string> log() const {
    std::vector<std::string> texts;
    const json all = shown();
    for (const json& entry : all["log"]) texts.push_back(entry["text"]);
    return texts;
  }
  // Two trainers that have published, an engine that has read from them.
  static std::vector<bus::AgentStatus> job() {
    std::vector<bus::AgentStatus> agents;
    for (const Rank rank : {0, 1, 2}) {
      bus::BatchStatus batch{"shelf of trainer/policy", rank < 2 ? "trainer" : "engine",
                             rank < 2 ? "publish" : "pull", 8, start - second};
      agents.push_back({rank, "node0", 100 + rank, true, 0, {batch}, 0, ""});
    }
    return agents;
  }

  std::vector<bus::AgentStatus> agents = job();
  Board board{"space", "tensorbus://store"};
};

// proves: O4.2
TEST_F(BoardTest, WhoeverGoesStaysInSightUntilItIsBackOrForgotten) {
  see();
  EXPECT_THAT(log(), ElementsAre("rank 0 is there (pid 100)", "rank 1 is there (pid 101)",
                                 "rank 2 is there (pid 102)"));
  const auto lost = agents[1];
  agents.erase(agents.begin() + 1);
  see(start + 5 * second);
  EXPECT_EQ(log().back(), "rank 1 is gone (pid 101)");
  ASSERT_EQ(shown()["rows"].size(), 3U);
  see(start + 12 * second);
  const json gone = shown()["rows"][2];
  EXPECT_EQ(gone["rank"], 1);
  EXPECT_EQ(gone["state"], "gone");
  EXPECT_EQ(gone["doing"], "gone for 7 s");
  see(start + 700 * second);
  EXPECT_EQ(shown()["rows"].size(), 2U) << "ten minutes are over";
  agents.push_back(lost);
  agents.back().pid = 200;
  see(start + 701 * second);
  EXPECT_EQ(log().back(), "rank 1 is there (pid 200)");
  EXPECT_EQ(shown()["rows"].size(), 3U);
}

TEST_F(BoardTest, WhoeverTookItsPlaceIsNotGone) {
  see();
  agents[1].pid = 200;
  see(start + second);
  EXPECT_EQ(log().back(), "rank 1 was replaced (pid 200)");
  EXPECT_EQ(shown()["rows"][2]["state"], "idle");
}

TEST_F(BoardTest, ASideThatIsGoneLeavesNobody) {
  see();
  agents.resize(2);
  see(start + second);
  EXPECT_EQ(log().back(), "rank 2 is gone (pid 102)");
  EXPECT_EQ(shown()["rows"].size(), 2U);
}

// proves: O4.2
TEST_F(BoardTest, VersionsSayWhichRankGotThemWhen) {
  see();
  agents[0].batches[0].version = 9;
  agents[0].batches[0].moved_at = start + second;
  see(start + 3 * second);
  const json versions = shown()["versions"];
  ASSERT_EQ(versions.size(), 3U);
  const json& eight = versions[1];
  EXPECT_EQ(eight["batch"], "shelf of trainer/policy");
  EXPECT_EQ(eight["side"], "trainer");
  EXPECT_EQ(eight["version"], 8);
  EXPECT_EQ(eight["ranks"], 2);
  EXPECT_EQ(eight["at"], json::parse("[[0,999000],[1,999000]]"));
  EXPECT_EQ(versions[2]["version"], 9);
  EXPECT_EQ(versions[2]["at"], json::parse("[[0,1001000]]"));
}

TEST_F(BoardTest, VersionsOfBatchesWithOneShownNameAreApart) {
  for (auto& agent : agents) {
    auto other = agent.batches.front();
    other.batch = "shelf of critic/policy";
    other.moved_at -= 60 * second;
    agent.batches.push_back(other);
  }
  see();
  const json versions = shown()["versions"];
  ASSERT_EQ(versions.size(), 4U);
  for (const json& version : versions) EXPECT_EQ(version["first"], version["last"]) << version;
}

TEST_F(BoardTest, AProblemIsLoggedOnceAndThatItIsOver) {
  agents[2].batches[0].awaited = {1};
  agents[2].batches[0].since = start - 20 * second;
  see();
  const std::string problem = "rank 1 is waited for: rank 2 has waited 20 s for it";
  EXPECT_EQ(log().back(), problem);
  see(start + second);
  EXPECT_EQ(log().back(), problem) << "only its seconds have changed";
  EXPECT_EQ(shown()["problems"][0]["text"], "rank 1 is waited for: rank 2 has waited 21 s for it");
  agents[2].batches[0].since = 0;
  see(start + 2 * second);
  EXPECT_EQ(log().back(), "nothing is wrong any more");
  EXPECT_EQ(shown()["problems"].size(), 0U);
}

TEST_F(BoardTest, AStoreThatIsAwayLeavesWhatWasSeen) {
  see();
  board.lose("it is gone", start + second);
  board.lose("it is still gone", start + 2 * second);
  EXPECT_EQ(log().back(), "the store does not answer: it is gone");
  EXPECT_EQ(shown()["error"], "it is still gone");
  EXPECT_EQ(shown()["rows"].size(), 3U);
  see(start + 3 * second);
  EXPECT_EQ(log().back(), "the store answers again");
  EXPECT_EQ(shown()["error"], "");
}

TEST_F(BoardTest, ItForgetsWhatIsLongAgo) {
  for (std::int64_t version = 1; version <= 500; ++version) {
    agents[0].batches[0].version = version;
    agents[0].pid = version;
    see(start + version * second);
  }
  EXPECT_EQ(shown()["versions"].size(), 400U);
  EXPECT_EQ(shown()["log"].size(), 200U);
  EXPECT_EQ(log().back(), "rank 0 was replaced (pid 500)");
}

}  // namespace
}  // namespace tensorbus::program
