#include "bus/simulation/halt.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "os/testing/quiet_fork.h"

namespace tensorbus::bus {
namespace {

TEST(Halt, AProcessStopsAtTheStepThatIsNamedAndOnlyOnce) {
  const std::string path = testing::TempDir() + "/halt_" + std::to_string(::getpid());
  std::ofstream(path) << "reading\n";
  const pid_t child = os::quiet_fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto reached = halt_where_told(path);
    reached(Step::offered);
    reached(Step::reading);
    reached(Step::reading);
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  EXPECT_FALSE(std::filesystem::exists(path));
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace tensorbus::bus
