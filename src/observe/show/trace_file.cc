#include "observe/show/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "observe/registry.h"
#include "observe/trace_events.h"
#include "os/process/fork.h"
#include "os/process/process.h"

namespace tensorbus::observe {
namespace {

constexpr Duration flush_every = std::chrono::milliseconds(200);
// Every file is valid JSON after each write: the next one begins where the last event ended.
constexpr std::string_view closing = "\n]\n";

std::string file_name(const std::string& folder) {
  return fmt::format("{}/tensorbus-{}-{}-{}.json", folder, os::host_name(), ::getpid(),
                     wall_clock_ns() / 1'000'000);
}

os::Fd create(const std::string& folder, const std::string& path) {
  std::error_code ignored;  // open() says what is wrong
  std::filesystem::create_directories(folder, ignored);
  os::Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) os::throw_errno("the trace file " + path);
  return file;
}

TraceOrigin origin_here() {
  return {::getpid(), os::host_name(), os::boot_id(), now().time_since_epoch().count(),
          wall_clock_ns()};
}

// False: the disk is full, say.
bool write_at(int file, std::string_view bytes, std::int64_t at) {
  while (!bytes.empty()) {
    const auto written = ::pwrite(file, bytes.data(), bytes.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
    at += written;
  }
  return true;
}

ProcessMutex open_mutex;

}  // namespace

TraceFile::TraceFile(const std::string& folder, std::int64_t largest)
    : largest_(largest), path_(file_name(folder)), file_(create(folder, path_)) {
  {
    const Lock lock(mutex_);
    pending_ = "[\n" + to_events(origin_here());
    append();
  }
  last_looks_ = registry().on_leave([this](const Recorder& recorder) {
    // In a forked child it is nobody's: its thread is not there.
    if (os::fork_generation() != made_in_) return;
    const Lock lock(mutex_);
    take(recorder);
    seen_.erase(&recorder);
  });
  watching_ = registry().watch();
  thread_ = std::thread([this] { run(); });
  log::info("observe: spans of this process go to {}", path_);
}

TraceFile::~TraceFile() {
  if (os::fork_generation() != made_in_) {
    thread_.detach();  // the parent's: here there is none
    return;
  }
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  last_looks_.reset();
  flush();
}

void TraceFile::run() {
  os::block_signals_in_this_thread();
  while (true) {
    {
      Lock lock(mutex_);
      wake_.wait_for(lock, flush_every, [this]() REQUIRES(mutex_) { return stopping_; });
      if (stopping_) return;
    }
    flush();
  }
}

void TraceFile::flush() {
  registry().each([this](const Recorder& recorder) {
    const Lock lock(mutex_);
    take(recorder);
  });
  const Lock lock(mutex_);
  append();
}

void TraceFile::take(const Recorder& recorder) {
  const auto& labels = recorder.labels();
  const auto space = std::ranges::find(labels, "namespace", &Labels::value_type::first);
  for (const Span& span : recorder.spans().after(seen_[&recorder])) {
    pending_ += ",\n" + to_events(span, ::getpid(), space == labels.end() ? "" : space->second);
  }
}

void TraceFile::append() {
  const std::string lines = std::exchange(pending_, {});
  if (lines.empty() || full_) return;
  const auto whole = static_cast<std::int64_t>(lines.size() + closing.size());
  full_ = size_ + whole > largest_ ||
          !write_at(file_.get(), fmt::format("{}{}", lines, closing), size_);
  if (full_) {
    log::warn("observe: {} is full or cannot be written; later spans are dropped", path_);
    return;
  }
  size_ += static_cast<std::int64_t>(lines.size());
}

std::shared_ptr<TraceFile> open_trace(const std::optional<std::string>& folder) {
  static auto& open = *new std::map<std::string, std::weak_ptr<TraceFile>>;
  const auto wanted = folder ? folder : config::variable("TENSORBUS_TRACE");
  if (!wanted) return nullptr;
  const Lock lock(open_mutex);
  // A forked child has no thread for its parent's file, and begins one of its own.
  auto& known = open[fmt::format("{} {}", ::getpid(), *wanted)];
  if (auto there = known.lock()) return there;
  try {
    auto made = std::make_shared<TraceFile>(*wanted);
    known = made;
    return made;
  } catch (const Error& error) {
    if (folder) throw;
    log::warn("observe: TENSORBUS_TRACE is ignored: {}", error.what());
    return nullptr;
  }
}

}  // namespace tensorbus::observe
