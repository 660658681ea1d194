// A command is accepted once, whenever its agent dies: after each write of the journal, and in the
// middle of one.
#include "bus/files/queue_journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <random>

#include "bus/channel/command_fields.h"
#include "bus/files/dump.h"
#include "bus/simulation/scripted_agent.h"
#include "os/testing/quiet_fork.h"

namespace tensorbus::bus {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t small_file = 1 << 20;

Command command(std::uint64_t number, std::size_t name_bytes = 1) {
  return CloseBatch{std::string(name_bytes, 'b'), number};
}

void accept(QueueJournal& journal, CommandId id, std::size_t name_bytes = 1) {
  const Command accepted = command(id.sequence, name_bytes);
  journal.accept(id, accepted, encode(accepted));
}

using Numbers = std::map<std::uint64_t, std::uint64_t>;  // last accepted, by session

Numbers numbers_in(const QueueJournal& journal) {
  Numbers numbers;
  for (const auto& [session, known] : journal.sessions()) {
    numbers[session] = known.last_accepted;
  }
  return numbers;
}

class QueueJournalTest : public testing::Test {
 protected:
  // What the next agents find if this one is killed now; the second of them after the first was.
  std::vector<Numbers> found_after_a_kill() const {
    fs::copy_file(path_, copy_, fs::copy_options::overwrite_existing);
    std::vector<Numbers> found;
    for (int agents = 0; agents < 2; ++agents) {
      found.push_back(numbers_in(QueueJournal(copy_, small_file)));
    }
    return found;
  }
  std::string dump() const { return dump_agent_file(path_); }

  Folder folder_;
  const std::string path_ = folder_.file("queue");
  const std::string copy_ = folder_.file("copy");
};

// proves: B5.18
TEST_F(QueueJournalTest, AKillAfterAnyWriteLeavesEverySessionsLastNumber) {
  std::minstd_rand dice(20);
  QueueJournal journal(path_, small_file);
  Numbers expected;
  std::vector<CommandId> running;
  const auto pick = [&](std::size_t count) { return static_cast<std::size_t>(dice() % count); };
  for (int step = 0; step < 200; ++step) {
    const std::uint64_t session = 1 + pick(3);
    const std::size_t what = pick(12);
    if (!expected.contains(session)) {
      journal.add_session(session, {0, ::getpid(), 1});
      expected[session] = 0;
    } else if (what < 5) {
      expected[session] += 1 + pick(2);  // a number may be passed over: it was refused
      accept(journal, {session, expected[session]});
      running.push_back({session, expected[session]});
    } else if (what < 9 && !running.empty()) {
      const auto at = running.begin() + static_cast<std::ptrdiff_t>(pick(running.size()));
      journal.finish(*at);
      running.erase(at);
    } else if (what < 11) {
      journal.flush();
    } else {
      journal.remove_session(session);
      std::erase_if(running, [&](CommandId id) { return id.session == session; });
      journal.flush();
      expected.erase(session);
    }
    for (const Numbers& found : found_after_a_kill()) ASSERT_EQ(found, expected) << step;
    for (const auto& [each, number] : expected) ASSERT_EQ(last_accepted(path_, each), number);
  }
}

// proves: B5.18
TEST_F(QueueJournalTest, AKillInTheMiddleOfAnythingForgetsNothingThatWasAccepted) {
  struct Progress {
    std::atomic<std::uint64_t> begun{0};
    std::atomic<std::uint64_t> accepted{0};
  };
  void* const shared =
      ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& progress = *new (shared) Progress;
  for (unsigned kills = 0; kills < 20; ++kills) {
    const pid_t child = os::fork_child([&] {
      QueueJournal journal(path_, small_file);
      if (journal.sessions().empty()) journal.add_session(7, {0, ::getpid(), 1});
      while (true) {
        const std::uint64_t next = ++progress.begun;
        accept(journal, {7, next});
        progress.accepted = next;
        journal.finish({7, next});
        if (next % 3 == 0) journal.flush();
      }
    });
    const std::uint64_t enough = progress.accepted + 1 + kills;
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (progress.accepted < enough && !deadline.expired()) ::usleep(100);
    EXPECT_FALSE(deadline.expired());
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto last = last_accepted(path_, 7);
    ASSERT_TRUE(last.has_value());
    EXPECT_GE(*last, progress.accepted);
    EXPECT_LE(*last, progress.begun);
    EXPECT_EQ(numbers_in(QueueJournal(path_, small_file)), (Numbers{{7, *last}}));
    progress.begun = *last;
    progress.accepted = *last;
  }
  ::munmap(shared, sizeof(Progress));
}

TEST_F(QueueJournalTest, ACommandIsOneEntryAndItsSessionIsWrittenWhenItGoes) {
  QueueJournal journal(path_, small_file);
  for (const std::uint64_t session : {7, 8}) journal.add_session(session, {0, 4711, 1});
  const auto record = [&](const char* session) {
    const LmdbContent content = read_lmdb_file(path_);
    const auto found =
        std::ranges::find(content.entries, session, &std::pair<std::string, std::string>::first);
    return found == content.entries.end() ? "" : found->second;
  };
  const auto commands = [&] {
    std::size_t count = 0;
    for (const auto& [key, value] : read_lmdb_file(path_).entries) {
      count += command_of_key(key).has_value();
    }
    return count;
  };
  const std::string seventh = record("session/0000000000000007");
  const std::string eighth = record("session/0000000000000008");
  for (std::uint64_t number = 1; number <= 5; ++number) {
    accept(journal, {7, number});
    accept(journal, {8, number});
    journal.finish({7, number});
    journal.finish({8, number});
  }
  EXPECT_EQ(commands(), 2U);  // the last of each: those before went with the next
  EXPECT_EQ(record("session/0000000000000007"), seventh);
  EXPECT_EQ(record("session/0000000000000008"), eighth);
  EXPECT_NE(dump().find("last_accepted: 5\n  pid: 4711\n"), std::string::npos) << dump();
  EXPECT_FALSE(journal.flushed());
  journal.flush();
  EXPECT_TRUE(journal.flushed());
  EXPECT_EQ(commands(), 0U);
  EXPECT_NE(record("session/0000000000000007"), seventh);
  EXPECT_NE(dump().find("last_accepted: 5\n  pid: 4711\n"), std::string::npos) << dump();
}

// The records of sessions are written where there is no room for commands.
TEST_F(QueueJournalTest, AFullFileIsEmptiedByItsAgentAndByTheNext) {
  constexpr std::size_t tiny = 1 << 18;
  std::uint64_t number = 0;
  const auto fill = [&](QueueJournal& journal) {
    while (true) {
      try {
        accept(journal, {7, number + 1}, 4000);
        ++number;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::queue_full) << error.what();
        return;
      }
    }
  };
  {
    QueueJournal journal(path_, tiny);
    journal.add_session(7, {0, ::getpid(), 1});
    fill(journal);
    for (std::uint64_t each = 1; each <= number; ++each) journal.finish({7, each});
    journal.flush();
    EXPECT_TRUE(journal.flushed());
    accept(journal, {7, ++number});
    fill(journal);
    EXPECT_GT(number, 20U);
  }
  EXPECT_EQ(numbers_in(QueueJournal(path_, tiny)), (Numbers{{7, number}}));
  EXPECT_EQ(numbers_in(QueueJournal(path_, tiny)), (Numbers{{7, number}}));
}

}  // namespace
}  // namespace tensorbus::bus
