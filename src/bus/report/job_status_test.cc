#include "bus/report/job_status.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tensorbus::bus {
namespace {

constexpr std::int64_t second = 1'000'000'000;
constexpr std::int64_t now_ns = 1000 * second;

AgentStatus agent(Rank rank, BatchStatus batch) {
  return {rank, "node0", 100 + rank, true, 0, {std::move(batch)}, 0, ""};
}

// Two trainers at version 8, engine 2 reads, engine 3 waits for engine 4, which says nothing.
std::vector<AgentStatus> job() {
  std::vector<AgentStatus> agents;
  for (const Rank rank : {0, 1}) {
    agents.push_back(agent(rank, {"shelf of trainer/policy", "trainer", "publish", 8,
                                  now_ns - 3 * second, 2 * second, second}));
  }
  BatchStatus reads{"shelf of trainer/policy", "rollout", "pull", 7, now_ns - 20 * second};
  reads.since = now_ns - second;
  reads.bytes_done = 62;
  reads.bytes_total = 100;
  reads.reads = 8;
  reads.from = {0, 1};
  agents.push_back(agent(2, reads));
  BatchStatus waits{"shelf of trainer/policy", "rollout", "pull", 6, now_ns - 20 * second};
  waits.since = now_ns - 14 * second;
  waits.awaited = {4};
  agents.push_back(agent(3, waits));
  return agents;
}

// proves: O4.1
TEST(JobStatus, SaysWhoWaitsForWhom) {
  const auto agents = job();
  const JobStatus status = status_of(agents, now_ns);
  ASSERT_EQ(status.rows.size(), 4U);
  EXPECT_EQ(status.rows[0].side, "rollout");
  EXPECT_EQ(status.rows[0].state, RankState::moves);
  EXPECT_EQ(status.rows[0].doing, "reads version 8 from 0, 1: 62 %");
  EXPECT_EQ(status.rows[0].version, 7);  // that it has
  EXPECT_EQ(status.rows[1].state, RankState::blocked);
  EXPECT_EQ(status.rows[1].doing, "pull waits 14 s for rank 4");
  EXPECT_EQ(status.rows[2].doing, "idle");
  EXPECT_DOUBLE_EQ(status.rows[2].gigabytes_per_second, 2.0);
  ASSERT_EQ(status.problems.size(), 2U);
  EXPECT_EQ(status.problems[0].text, "rank 4 is gone or stopped: rank 3 has waited 14 s for it");
  EXPECT_EQ(status.problems[1].text, "rank 3 has version 6 of \"policy\", the newest is 8");
}

TEST(JobStatus, AShortWaitIsNoProblem) {
  auto agents = job();
  agents[3].batches[0].since = now_ns - 9 * second;
  agents[3].batches[0].version = 7;
  const JobStatus status = status_of(agents, now_ns);
  EXPECT_EQ(status.rows[1].state, RankState::waits);
  EXPECT_TRUE(status.problems.empty());
}

// proves: O4.1
TEST(JobStatus, WhoReadsSaysOnlyWhatIsKnownOfIt) {
  auto agents = job();
  BatchStatus& batch = agents[2].batches[0];
  const auto doing = [&] { return status_of(agents, now_ns).rows[0].doing; };
  batch.bytes_total = 0;  // it has just begun
  EXPECT_EQ(doing(), "reads version 8 from 0, 1");
  EXPECT_EQ(status_of(agents, now_ns).rows[0].state, RankState::moves);
  batch.bytes_total = 100;
  batch.reads = 0;
  EXPECT_EQ(doing(), "reads from 0, 1: 62 %");
  batch.reads = 8;
  batch.from = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(doing(), "reads version 8 from 0, 1, 2, 3, 4, 5 and 2 more: 62 %");
  batch.reads.reset();
  batch.bytes_total = 1'200'000'000;
  batch.bytes_done = 744'000'000;
  batch.work = "send";
  EXPECT_EQ(doing(), "send: 62 % of 1.20 GB");
}

// A step of training may take long.
TEST(JobStatus, WhoeverWaitsForTheNextVersionIsNotBlocked) {
  auto agents = job();
  agents[2].batches[0].bytes_total = 0;
  agents[2].batches[0].reads.reset();
  agents[2].batches[0].since = now_ns - 60 * second;
  agents[2].batches[0].waits = "a version above 8";
  agents[3].batches[0].since = now_ns - 60 * second;
  agents[3].batches[0].awaited = {2};
  for (const std::size_t rank : {2, 3}) agents[rank].batches[0].version = 8;
  const JobStatus status = status_of(agents, now_ns);
  EXPECT_TRUE(status.problems.empty());
  for (const std::size_t row : {0, 1}) {
    EXPECT_EQ(status.rows[row].state, RankState::waits);
    EXPECT_EQ(status.rows[row].doing, "pull, 60 s: waits for a version above 8");
  }
}

// Rank 3 waits for rank 2, which waits for rank 1.
TEST(JobStatus, WhoStandsAtTheEndOfAChainIsToBlame) {
  auto agents = job();
  for (const std::size_t waiter : {2, 3}) {
    agents[waiter].batches[0].since = now_ns - 20 * second;
    agents[waiter].batches[0].awaited = {static_cast<Rank>(waiter) - 1};
    agents[waiter].batches[0].reads.reset();
    agents[waiter].batches[0].version = 8;
  }
  const auto problems = status_of(agents, now_ns).problems;
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].text, "rank 1 is waited for: rank 2 has waited 20 s for it");
  agents[2].batches[0].awaited = {3};  // a circle
  EXPECT_EQ(status_of(agents, now_ns).problems.size(), 2U);
}

// proves: O4.1
TEST(JobStatus, LeasesThatAreAboutToLapseAreNamed) {
  auto agents = job();
  agents.resize(2);
  agents[0].lease_left = 0.66;
  agents[1].lease_left = 0.3;
  const auto problems = status_of(agents, now_ns).problems;
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].text,
            "rank 1 (pid 101 on node0) does not renew its lease, 30 % of it are left: it is "
            "stopped, very slow, or cut off from the store");
  EXPECT_EQ(problems[0].ranks, std::vector<Rank>{1});
}

// Versions that come fast are told of now and then only.
TEST(JobStatus, WhoHasJustGotAVersionIsNotBehind) {
  auto agents = job();
  for (const std::size_t rank : {2, 3}) agents[rank].batches[0].awaited.clear();
  agents[3].batches[0].moved_at = now_ns - 7 * second;
  EXPECT_TRUE(status_of(agents, now_ns).problems.empty());
  agents[3].batches[0].moved_at = now_ns - 9 * second;
  EXPECT_EQ(status_of(agents, now_ns).problems.size(), 1U);
}

TEST(JobStatus, TheTableIsReadableIn80Columns) {
  auto agents = job();
  agents[0].host = "a-very-long-name-of-a-host.example";
  agents[0].batches[0].side = "a very long name of a side";
  const std::string table = to_table(status_of(agents, now_ns));
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = table.find('\n', begin)) != std::string::npos; begin = end + 1) {
    if (table[begin] != '!') {
      EXPECT_LE(end - begin, 80U) << table;
    }
  }
  EXPECT_NE(table.find("62 %"), std::string::npos) << table;
  EXPECT_NE(table.find("reads version 8 from 0, 1: 62 %\n"), std::string::npos) << table;
}

TEST(JobStatus, AnAgentWithoutBatchesIsThere) {
  const std::vector<AgentStatus> agents{{5, "h", 1, false, 0, {}, 0, ""}};
  const JobStatus status = status_of(agents, now_ns);
  ASSERT_EQ(status.rows.size(), 1U);
  EXPECT_EQ(status.rows[0].rank, 5);
  EXPECT_NE(to_table({}).find("no agent"), std::string::npos);
}

TEST(JobStatus, JsonHasRowsAndProblems) {
  const auto agents = job();
  const std::string json = to_json(status_of(agents, now_ns), "\"namespace\":\"n\",");
  EXPECT_TRUE(json.starts_with(R"({"namespace":"n","rows":[{"rank":2,)")) << json;
  EXPECT_NE(json.find(R"("awaited":[4])"), std::string::npos);
  EXPECT_NE(json.find(R"("version":7,"reads":8,)"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("version":6,"reads":null,)"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("problems":[{"text":"rank 4 is gone)"), std::string::npos);
}

TEST(JobStatus, NamesOfRecordsDoNotReachTheTerminalAsTheyAre) {
  auto agents = job();
  agents[0].host = "\x1b[2Jnode";
  agents[0].batches[0].side = "tr\x1b]0;title\x07";
  agents[3].batches[0].batch = "b/\xff\nname";
  const std::string table = to_table(status_of(agents, now_ns), 200);
  EXPECT_EQ(table.find('\x1b'), std::string::npos);
  EXPECT_EQ(table.find('\x07'), std::string::npos);
  EXPECT_EQ(static_cast<int>(std::ranges::count(table, '\n')),
            5 + static_cast<int>(status_of(agents, now_ns).problems.size()));
}

TEST(JobStatus, WhoWaitsForOthersToComeIsSaid) {
  BatchStatus batch{"pair", "trainer", "init_pair"};
  batch.since = now_ns - 40 * second;
  batch.waits = "side \"engine\" has 2 of 3 ranks";
  const std::vector<AgentStatus> agents{agent(0, batch)};
  const JobStatus status = status_of(agents, now_ns);
  EXPECT_EQ(status.rows[0].state, RankState::blocked);
  ASSERT_EQ(status.problems.size(), 1U);
  EXPECT_EQ(status.problems[0].text,
            "rank 0: init_pair, 40 s: waits for side \"engine\" has 2 of 3 ranks (batch \"pair\")");
}

// Two policies of one name: one trainer's is far ahead, and read by more ranks.
TEST(JobStatus, BatchesWithOneShownNameAreApart) {
  std::vector<AgentStatus> agents;
  for (const Rank rank : {0, 1, 2}) {
    BatchStatus other{"shelf of actor/policy", "engine", "pull", 100, now_ns - second};
    other.world_size = 3;
    agents.push_back(agent(rank, other));
    if (rank == 2) continue;
    BatchStatus batch{"shelf of critic/policy", "engine", "pull", 8, now_ns - 60 * second};
    batch.world_size = 2;
    agents.back().batches.push_back(batch);
  }
  const JobStatus status = status_of(agents, now_ns);
  EXPECT_TRUE(status.problems.empty()) << status.problems.front().text;
  ASSERT_EQ(status.rows.size(), 5U);
  EXPECT_EQ(status.rows[0].what, "actor/policy");
  EXPECT_EQ(status.rows[3].what, "critic/policy");
  agents[0].batches[1].batch = "actor/policy";
  EXPECT_EQ(status_of(agents, now_ns).rows[0].what, "actor/policy");
  EXPECT_EQ(status_of(agents, now_ns).rows[1].what, "shelf of actor/policy");
}

TEST(JobStatus, WhoWaitsInTwoBatchesSaysItOfEach) {
  std::vector<AgentStatus> agents{agent(0, {"a", "trainer", "init_pair"})};
  agents[0].batches.push_back({"b", "trainer", "init_pair"});
  for (BatchStatus& batch : agents[0].batches) {
    batch.since = now_ns - 40 * second;
    batch.waits = "ranks";
  }
  const auto problems = status_of(agents, now_ns).problems;
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_NE(problems[0].text, problems[1].text);
}

// proves: O4.1
TEST(JobStatus, TwoJobsWithTheSameNamesAreSeen) {
  std::vector<AgentStatus> agents;
  for (const Rank rank : {0, 1, 2}) {
    agents.push_back(agent(rank, {"pair/policy", "trainer", "publish", 8, now_ns}));
    agents.back().batches.front().world_size = 2;
  }
  const JobStatus status = status_of(agents, now_ns);
  ASSERT_EQ(status.problems.size(), 1U);
  EXPECT_NE(status.problems[0].text.find("has 3 ranks, which were told of 2"), std::string::npos);
}

TEST(JobStatus, AgesAreThoseOfTheHostsOwnClock) {
  // Written a second ago by a clock that is an hour ahead, and moved three seconds before that.
  const std::int64_t hour = 3600 * second;
  auto agents =
      std::vector{agent(0, {"p/policy", "trainer", "publish", 8, now_ns + hour - 4 * second})};
  agents[0].written_at = now_ns + hour - second;
  HostClocks clocks;
  clocks.see(agents, now_ns);
  const JobStatus status = status_of(agents, now_ns, clocks);
  EXPECT_NEAR(status.rows[0].age, 3, 0.1);
  ASSERT_EQ(status.problems.size(), 1U);
  EXPECT_NE(status.problems[0].text.find("node0 is 60 min ahead of"), std::string::npos);
}

TEST(HostClocks, AClockThatIsBehindShowsWhenARecordChanges) {
  auto agents = std::vector{agent(0, {"p/policy", "trainer", "publish", 8, 0})};
  HostClocks clocks;
  agents[0].written_at = now_ns - 60 * second;  // as old as that, or written by a late clock
  clocks.see(agents, now_ns);
  EXPECT_TRUE(clocks.ahead().empty());
  agents[0].written_at = now_ns - 59 * second;
  clocks.see(agents, now_ns + second);
  ASSERT_EQ(clocks.ahead().size(), 1U);
  EXPECT_NEAR(static_cast<double>(clocks.ahead().at("node0")) / 1e9, -59, 1.1);
  agents[0].written_at = now_ns + 2 * second;  // it was set right
  clocks.see(agents, now_ns + 2 * second);
  EXPECT_TRUE(clocks.ahead().empty());
}

TEST(JobStatus, FiveHundredRanksAreOneJob) {
  std::vector<AgentStatus> agents;
  for (Rank rank = 0; rank < 512; ++rank) {
    BatchStatus batch{"shelf of trainer/policy", "rollout", "pull", 3, now_ns};
    batch.since = now_ns - 60 * second;
    batch.awaited = {0};
    agents.push_back(agent(rank, batch));
  }
  const JobStatus status = status_of(agents, now_ns);
  ASSERT_EQ(status.problems.size(), 1U);
  EXPECT_EQ(status.problems[0].text,
            "rank 0 is waited for: ranks 0, 1, 2, 3, 4, 5 and 506 more have waited 60 s for it");
}

}  // namespace
}  // namespace tensorbus::bus
