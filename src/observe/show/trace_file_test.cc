#include "observe/show/trace_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace tensorbus::observe {
namespace {

class TraceFileTest : public testing::Test {
 protected:
  ~TraceFileTest() override { std::filesystem::remove_all(folder_); }

  static std::string content(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  static Span named(std::string_view name) {
    Span span;
    span.name = ShortText<56>(name);
    return span;
  }

  const std::string folder_ = testing::TempDir() + "tensorbus_trace_file_test";
};

// proves: O3.1
TEST_F(TraceFileTest, IsWholeAfterEachFlush) {
  TraceFile file(folder_);
  Recorder recorder({});
  for (const char* name : {"one", "two"}) {
    recorder.finish(named(name));
    file.flush();
    const std::string text = content(file.path());
    EXPECT_TRUE(text.starts_with("[\n{")) << text;
    EXPECT_TRUE(text.ends_with("}}\n]\n")) << text;
    EXPECT_NE(text.find(name), std::string::npos) << text;
  }
}

TEST_F(TraceFileTest, HasTheSpansOfARecorderThatIsGone) {
  TraceFile file(folder_);
  {
    Recorder recorder({});
    recorder.finish(named("short lived"));
  }
  file.flush();
  EXPECT_NE(content(file.path()).find("short lived"), std::string::npos);
}

TEST_F(TraceFileTest, OneFolderHasOneFileOfAProcess) {
  const auto first = open_trace(folder_);
  EXPECT_EQ(open_trace(folder_), first);
  EXPECT_EQ(open_trace(std::nullopt), nullptr);
}

TEST_F(TraceFileTest, AFolderThatCannotBeMadeIsAnError) {
  EXPECT_THROW(TraceFile("/proc/no such folder"), Error);
}

}  // namespace
}  // namespace tensorbus::observe
