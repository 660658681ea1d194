#include "fabric/ucx/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tensorbus/status.h"

namespace tensorbus::fabric::ucx {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Status refusal_of(const std::vector<std::string>& files) {
  try {
    load(files);
    return {};
  } catch (const Error& error) {
    return error.status();
  }
}

TEST(UcxLibrary, IsLoadedOnceAndSaysFromWhere) {
  EXPECT_THAT(library().file, HasSubstr("libucp"));
  EXPECT_EQ(&library(), &library());
  EXPECT_EQ(load(std::vector{library().file}).ucp_worker_progress, library().ucp_worker_progress);
}

TEST(UcxLibrary, WhereNoneIsTheErrorSaysWhatWasTriedAndWhatToInstall) {
  const Status refusal = refusal_of({"/nowhere/libucp.so.0", "libnothing.so.7"});
  EXPECT_EQ(refusal.code, Code::unsupported);
  EXPECT_THAT(refusal.message, AllOf(HasSubstr("/nowhere/libucp.so.0: "), HasSubstr("libnothing"),
                                     HasSubstr("libucx0"), HasSubstr("TENSORBUS_UCX")));
}

TEST(UcxLibrary, ALibraryThatIsNotUcxIsPassedOver) {
  EXPECT_THAT(refusal_of({"libc.so.6"}).message, HasSubstr("it has no ucp_am_send_nbx"));
  EXPECT_EQ(load(std::vector<std::string>{"libc.so.6", library().file}).file, library().file);
}

// Trees of files that are named as UCX's are.
class UcxCandidates : public testing::Test {
 protected:
  UcxCandidates() {
    std::string name = fs::temp_directory_path() / "tensorbus-ucx-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    library();  // that of the environment as it was
    ::unsetenv("TENSORBUS_UCX");
    ::unsetenv("UCX_ROOT");
  }
  ~UcxCandidates() override {
    ::unsetenv("TENSORBUS_UCX");
    ::unsetenv("UCX_ROOT");
    fs::remove_all(folder_);
  }

  std::string add(const std::string& name) {
    const fs::path file = folder_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "no library";
    return file;
  }

  fs::path folder_;
};

TEST_F(UcxCandidates, AreOfAPrefixAllThatItsFoldersForLibrariesHold) {
  ::setenv("UCX_ROOT", folder_.c_str(), 1);
  EXPECT_THAT(candidates("/none/a"), ElementsAre(folder_ / "lib/libucp.so.0"));  // for the error
  const std::string itself = add("libucp.so.0");
  EXPECT_THAT(candidates("/none/a"), ElementsAre(itself));
  const std::string debian = add("lib/x86_64-linux-gnu/libucp.so.0");
  EXPECT_THAT(candidates("/none/a"), ElementsAre(debian, itself));
  const std::string red_hat = add("lib64/libucp.so.0");
  const std::string made = add("lib/libucp.so.0");
  EXPECT_THAT(candidates("/none/a"), ElementsAre(made, red_hat, debian, itself));
}

TEST_F(UcxCandidates, AreWhatOurVariableNamesBeforeThatOfUcxAndNothingElse) {
  const std::string root = add("root/lib/libucp.so.0");
  const std::string ours = add("ours/lib64/libucp.so.0");
  add("site-packages/libucx/lib/libucp.so.0");
  const fs::path own = folder_ / "site-packages/tensorbus/_core.so";
  ::setenv("UCX_ROOT", (folder_ / "root").c_str(), 1);
  EXPECT_THAT(candidates(own), ElementsAre(root));
  ::setenv("TENSORBUS_UCX", (folder_ / "ours").c_str(), 1);
  EXPECT_THAT(candidates(own), ElementsAre(ours));
  ::setenv("TENSORBUS_UCX", "/a/file/libucp.so.0.0.0", 1);
  EXPECT_THAT(candidates(own), ElementsAre("/a/file/libucp.so.0.0.0"));
}

TEST_F(UcxCandidates, AreTheSystemsAndThenThoseOfPythonPackages) {
  EXPECT_THAT(candidates("/none/a"), ElementsAre("libucp.so.0"));
  const std::string site = "lib/python3.11/site-packages/";
  const std::string nixl = add(site + "nixl_cu12.libs/libucp-1a2b3c4d.so.0.0.0");
  const std::string libucx = add(site + "libucx/lib/libucp.so.0");
  add(site + "other.libs/libucp.so.0");
  for (const fs::path own : {site + "tensorbus/_core.so", std::string("bin/tensorbus")}) {
    EXPECT_THAT(candidates(folder_ / own), ElementsAre("libucp.so.0", libucx, nixl)) << own;
  }
}

TEST_F(UcxCandidates, ThatAreNoLibrariesArePassedOver) {
  add("lib/libucp.so.0");
  fs::create_directories(folder_ / "lib64");
  fs::create_symlink(fs::canonical(library().file), folder_ / "lib64/libucp.so.0");
  ::setenv("UCX_ROOT", folder_.c_str(), 1);
  const std::vector<std::string> files = candidates("/none/a");
  ASSERT_EQ(files.size(), 2);
  EXPECT_EQ(load(files).ucp_worker_progress, library().ucp_worker_progress);
}

}  // namespace
}  // namespace tensorbus::fabric::ucx
