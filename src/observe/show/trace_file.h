// The spans of this process in a file, while it runs: a thread adds what is new a few times a
// second, so what is in the file is whole whatever becomes of the process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "observe/recorder.h"
#include "os/io/fd.h"
#include "os/process/fork.h"

namespace tensorbus::observe {

class TraceFile {
 public:
  static constexpr std::int64_t usual_size = std::int64_t{256} << 20;

  // A new file in the folder, which is made if it is not there. Error(failed) if that cannot be.
  // What would make it larger than that many bytes is dropped, and all that comes later.
  explicit TraceFile(const std::string& folder, std::int64_t largest = usual_size);
  // Writes what is left.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  void flush();

 private:
  void take(const Recorder& recorder) REQUIRES(mutex_);
  void append() REQUIRES(mutex_);
  void run();

  const std::int64_t largest_;
  std::string path_;
  const unsigned made_in_ = os::fork_generation();
  Mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  os::Fd file_ GUARDED_BY(mutex_);
  std::string pending_ GUARDED_BY(mutex_);    // lines that are not in the file yet
  std::int64_t size_ GUARDED_BY(mutex_) = 0;  // up to the end of the last event
  bool full_ GUARDED_BY(mutex_) = false;
  std::map<const Recorder*, std::uint64_t> seen_ GUARDED_BY(mutex_);
  std::shared_ptr<void> last_looks_;
  std::shared_ptr<void> watching_;
  std::thread thread_;
};

// That of this process for the folder, or for TENSORBUS_TRACE; null if neither is there. Whoever
// has got it keeps it open. A folder of the environment that cannot be used is only warned of.
std::shared_ptr<TraceFile> open_trace(const std::optional<std::string>& folder);

}  // namespace tensorbus::observe
