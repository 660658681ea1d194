#include "bus/files/lmdb_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "bus/files/dump.h"
#include "bus/files/heartbeat.h"
#include "bus/files/lmdb_state.h"
#include "bus/files/queue_journal.h"
#include "os/io/semaphore.h"
#include "os/testing/quiet_fork.h"
#include "tensorbus/status.h"
#include "wire/message.h"

namespace tensorbus::bus {
namespace {

namespace fs = std::filesystem;

class LmdbFileTest : public testing::Test {
 protected:
  LmdbFileTest() {
    std::string name = fs::temp_directory_path() / "tensorbus-lmdb-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ / "agent_state.lmdb";
  }
  ~LmdbFileTest() override { fs::remove_all(folder_); }

  // The message of the error that opening gives; empty if it works.
  std::string error(const std::string& kind = "state") {
    try {
      LmdbFile file(path_, kind);
    } catch (const Error& failure) {
      return failure.what();
    }
    return {};
  }
  bool refused(const std::string& part) {
    const std::string message = error();
    EXPECT_NE(message.find(path_), std::string::npos) << message;
    return message.find(part) != std::string::npos || (ADD_FAILURE() << message, false);
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(LmdbFileTest, WhatIsWrittenIsThereAfterwardsInOrder) {
  const std::string longer(3000, 'k');
  {
    LmdbFile file(path_, "state");
    file.write({{"b", "2"}, {"a", "1"}, {"gone", "x"}, {longer + "1", "long"}, {longer, ""}});
    file.write({{"gone", std::nullopt}, {"never", std::nullopt}});
    EXPECT_EQ(file.get("b"), "2");
    EXPECT_EQ(file.get(longer), "");
    EXPECT_EQ(file.get("gone"), std::nullopt);
  }
  LmdbFile file(path_, "state");
  const std::vector<std::pair<std::string, std::string>> all{
      {"a", "1"}, {"b", "2"}, {longer, ""}, {longer + "1", "long"}};
  EXPECT_EQ(file.scan(""), all);
  EXPECT_EQ(file.scan("b").size(), 1U);
  EXPECT_EQ(file.scan("kkk").size(), 2U);
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(LmdbFileTest, WhatWasCommittedSurvivesAKill) {
  const pid_t child = os::fork_child([&] {
    LmdbFile file(path_, "state");
    for (int i = 0; i < 100; ++i) file.write({{"key" + std::to_string(i), "value"}});
    ::raise(SIGKILL);
  });
  ::waitpid(child, nullptr, 0);
  LmdbFile file(path_, "state");
  EXPECT_EQ(file.scan("key").size(), 100U);
}

// proves: B5.16
TEST_F(LmdbFileTest, WhatIsNotOursIsRefusedAndLeftAlone) {
  fs::create_symlink("/etc/hostname", path_);
  EXPECT_TRUE(refused("symbolic link"));
  fs::remove(path_);
  fs::create_directory(path_);
  EXPECT_NE(error(), "");
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_TRUE(refused("not a regular file"));
  fs::remove(path_);
  fs::create_directory(path_);
  EXPECT_TRUE(refused("not a regular file"));
  fs::remove(path_);
  std::ofstream(folder_ / "other").put('x');
  fs::create_hard_link(folder_ / "other", path_);
  EXPECT_TRUE(refused("hard links"));
  EXPECT_EQ(fs::file_size(folder_ / "other"), 1U);
  fs::remove(path_);
  if (::geteuid() == 0) {
    std::ofstream(path_).put('x');
    ASSERT_EQ(::chown(path_.c_str(), 12345, 12345), 0);
    EXPECT_TRUE(refused("belongs to user 12345"));
    fs::remove(path_);
  }
  // LMDB itself would follow this one.
  fs::create_symlink(folder_ / "victim", path_ + "-lock");
  EXPECT_EQ(error(), "");
  EXPECT_FALSE(fs::exists(folder_ / "victim"));
}

TEST_F(LmdbFileTest, DamagedAndForeignFilesAreClearErrors) {
  std::ofstream(path_) << "not a database, but long enough to hold one's header; "
                       << std::string(8192, 'x');
  fs::permissions(path_, fs::perms(0640));
  EXPECT_TRUE(refused("no LMDB file"));
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms(0640));
  fs::remove(path_);
  { LmdbFile file(path_, "state"); }
  EXPECT_NE(error("command queue").find("holds the state of an agent"), std::string::npos);
  EXPECT_FALSE(fs::exists(path_ + "-lock"));
  fs::resize_file(path_, 12'000);
  EXPECT_TRUE(refused("cut short"));
  fs::resize_file(path_, 100);
  EXPECT_TRUE(refused("no LMDB file"));
  fs::remove(path_);
  { LmdbFile file(path_, "state"); }
  {
    // Everything after the two pages of meta data.
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(2 * 4096);
    file << std::string(64 * 1024, '\xff');
  }
  EXPECT_NE(error(), "");
}

TEST_F(LmdbFileTest, AnLmdbFileOfAnotherProgramIsRefused) {
  MDB_env* environment = nullptr;
  ASSERT_EQ(mdb_env_create(&environment), 0);
  ASSERT_EQ(mdb_env_set_mapsize(environment, 1 << 20), 0);
  ASSERT_EQ(mdb_env_open(environment, path_.c_str(), MDB_NOSUBDIR | MDB_NOLOCK, 0600), 0);
  MDB_txn* transaction = nullptr;
  MDB_dbi table = 0;
  ASSERT_EQ(mdb_txn_begin(environment, nullptr, 0, &transaction), 0);
  ASSERT_EQ(mdb_dbi_open(transaction, nullptr, 0, &table), 0);
  MDB_val one{1, const_cast<char*>("1")};
  ASSERT_EQ(mdb_put(transaction, table, &one, &one, 0), 0);
  ASSERT_EQ(mdb_txn_commit(transaction), 0);
  mdb_env_close(environment);
  EXPECT_TRUE(refused("another program"));
  fs::resize_file(path_, 1 << 20);
  EXPECT_TRUE(refused("another program"));
}

TEST_F(LmdbFileTest, AFileThatWasNeverFinishedOrIsEmptyIsMadeAnew) {
  std::ofstream(path_).close();
  EXPECT_EQ(error(), "");
  fs::remove(path_);
  MDB_env* environment = nullptr;
  ASSERT_EQ(mdb_env_create(&environment), 0);
  ASSERT_EQ(mdb_env_open(environment, path_.c_str(), MDB_NOSUBDIR | MDB_NOLOCK, 0600), 0);
  mdb_env_close(environment);
  EXPECT_EQ(error(), "");
}

TEST_F(LmdbFileTest, AFileFromBeforeTheLastBootStartsEmpty) {
  {
    LmdbFile file(path_, "state");
    const LmdbHeader other{"state", LmdbHeader::current, "another boot"};
    file.write({{"old", "1"}, {"tensorbus", wire::write(other)}});
  }
  LmdbFile file(path_, "state");
  EXPECT_EQ(file.get("old"), std::nullopt);
  EXPECT_TRUE(file.scan("").empty());
}

TEST_F(LmdbFileTest, AFileOfAnotherReleaseStartsEmptyUnlessItIsOfAnotherKind) {
  const auto left_by = [&](const std::string& header) {
    LmdbFile file(path_, "state");
    file.write({{"old", "1"}, {"tensorbus", header}});
  };
  left_by(wire::write(LmdbHeader{"command queue", LmdbHeader::current + 1, ""}) + "more");
  EXPECT_TRUE(refused("holds the command queue of an agent"));
  fs::remove(path_);
  for (const std::string& header :
       {wire::write(LmdbHeader{"state", LmdbHeader::current + 1, ""}) + "more",
        std::string("\x93\xa5state\x01\xa4"
                    "boot")}) {
    left_by(header);
    EXPECT_THROW(read_lmdb_file(path_), Error);
    EXPECT_EQ(LmdbFile(path_, "state").get("old"), std::nullopt);
  }
}

TEST_F(LmdbFileTest, ASecondAgentIsRefused) {
  LmdbFile file(path_, "state");
  EXPECT_TRUE(refused("in use by another agent"));
  file.write({{"still", "here"}});
  EXPECT_EQ(file.get("still"), "here");
}

TEST_F(LmdbFileTest, ASilentAgentsHeartbeatCanBeLookedAt) {
  EXPECT_NE(describe_heartbeat(path_).find("no heartbeat"), std::string::npos);
  LmdbState state(path_);
  EXPECT_NE(describe_heartbeat(path_).find("no heartbeat"), std::string::npos);
  state.put("heartbeat", encode(Heartbeat{1, "job", "send of batch \"w\""}));
  EXPECT_NE(describe_heartbeat(path_).find("s old, in send of batch \"w\""), std::string::npos);
  EXPECT_EQ(look_into_lmdb_file(path_, "command queue", "heartbeat"), std::nullopt);
}

TEST_F(LmdbFileTest, AStateIsKeptUnderPrefixes) {
  LmdbState state(path_);
  state.put("pair/a", "1");
  state.put("pair/b", "2");
  state.put("batch/a", "3");
  state.erase("pair/b");
  const std::map<std::string, std::string> pairs{{"pair/a", "1"}};
  EXPECT_EQ(state.scan("pair/"), pairs);
  EXPECT_EQ(state.scan("").size(), 2U);
  EXPECT_EQ(state.get("batch/a"), "3");
}

TEST_F(LmdbFileTest, WhatItHoldsIsPrintedAlsoWhileItsAgentRuns) {
  {
    LmdbState state(path_);
    state.put("heartbeat", encode(Heartbeat{1, "job", "send of batch \"w\""}));
    state.put("session/5/pair/p/a/0", encode(Command(InitPair{"p", "a", "b", 2, std::nullopt})));
    state.put("session/6/pair/p/a/0", "nonsense");
    const std::string text = dump_agent_file(path_);
    for (const char* part :
         {"kind: \"state\"\n", "heartbeat:\n  wall_clock_ns: 1\n", "command: \"send of batch \\\"w",
          "session/5/pair/p/a/0:\n  kind: init_pair\n    pair: \"p\"\n    local: \"a\"\n",
          "session/6/pair/p/a/0:\n  cannot be read: \"this is not a command"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
    }
  }
  fs::remove(path_);
  QueueJournal journal(path_);
  journal.add_session(7, {0, 4711, 1});
  journal.accept({7, 1}, CloseBatch{"b", 1}, encode(Command(CloseBatch{"b", 1})));
  journal.guard_semaphore(7, "/command_of_a_dump");
  const std::string text = dump_agent_file(path_);
  for (const char* part : {"kind: \"command queue\"\n", "last_accepted: 1\n  pid: 4711\n",
                           "  kind: close_batch\n    batch: \"b\"\n    registration: 1\n",
                           "semaphore/command_of_a_dump:\n  session: 7\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  EXPECT_THROW(dump_agent_file(folder_ / "nothing"), Error);
}

// proves: B5.13
TEST_F(LmdbFileTest, ARestartEndsCommandsAndRemovesSemaphores) {
  const std::string name = "/command_transfer_journal_test_" + std::to_string(::getpid());
  const std::string other = name + "b";
  {
    QueueJournal journal(path_);
    journal.add_session(7, {0, ::getpid(), 1});
    journal.accept({7, 1}, CloseBatch{"b", 1}, encode(Command(CloseBatch{"b", 1})));
    journal.accept({7, 2}, CloseBatch{"c", 2}, encode(Command(CloseBatch{"c", 2})));
    journal.finish({7, 1});
    EXPECT_EQ(journal.state().size, 1U);
    EXPECT_EQ(journal.state().first_context, "c");
    for (const std::string& each : {name, other}) {
      journal.guard_semaphore(7, each);
      const os::NamedSemaphore made(each);
    }
    os::unlink_semaphore(other);
    journal.release_semaphore(7, other);
    EXPECT_THROW(journal.guard_semaphore(7, "/somebody_elses"), Error);
  }
  QueueJournal journal(path_);
  EXPECT_EQ(journal.state().size, 0U);
  ASSERT_EQ(journal.sessions().size(), 1U);
  EXPECT_EQ(journal.sessions().at(7).last_accepted, 2U);
  EXPECT_FALSE(os::unlink_semaphore(name));
  journal.guard_semaphore(7, name);
  const os::NamedSemaphore made(name);
  journal.remove_session(7);
  EXPECT_FALSE(os::unlink_semaphore(name));
  EXPECT_TRUE(journal.sessions().empty());
}

}  // namespace
}  // namespace tensorbus::bus
