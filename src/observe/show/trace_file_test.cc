#include "observe/show/trace_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
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

// proves: O3.1
TEST_F(TraceFileTest, AFullFileIsWholeAndGrowsNoMore) {
  constexpr std::int64_t largest = 4096;
  TraceFile file(folder_, largest);
  Recorder recorder({});
  std::uintmax_t size = 0;
  bool full = false;
  for (int written = 0; written < 100; ++written) {
    recorder.finish(named("span " + std::to_string(written)));
    file.flush();
    const std::uintmax_t now = std::filesystem::file_size(file.path());
    EXPECT_LE(now, largest);
    if (full) {
      EXPECT_EQ(now, size);
    }
    full = now == size;
    size = now;
  }
  EXPECT_TRUE(full);
  EXPECT_GT(size, largest / 2);
  const nlohmann::json events = nlohmann::json::parse(content(file.path()));
  ASSERT_TRUE(events.is_array());
  EXPECT_NE(content(file.path()).find("span 0"), std::string::npos);
  EXPECT_EQ(content(file.path()).find("span 99"), std::string::npos);
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
