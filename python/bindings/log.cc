// Hands log records to Python's logging.getLogger("tensorbus").
//
// A record may be written while its thread holds locks that another thread, which holds the GIL,
// waits for. So records are queued, and one thread that holds nothing else passes them on.
#include <pthread.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "bindings.h"
#include "gil.h"

namespace tensorbus::python {
namespace {

struct LogRecord {
  log::Level level;
  std::string message;
};

constexpr std::size_t most_records = 10'000;

class LogForwarder {
 public:
  void push(log::Level level, std::string_view message) {
    const Lock lock(mutex_);
    if (closed_) return;
    if (records_.size() == most_records) {
      ++dropped_;
      return;
    }
    records_.push_back({level, std::string(message)});
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    wake_.notify_one();
  }

  // Delivers what is queued, then ends the thread. Called without the GIL.
  void close() {
    {
      const Lock lock(mutex_);
      closed_ = true;
      wake_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    Lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this]() REQUIRES(mutex_) { return closed_ || !records_.empty(); });
      if (records_.empty()) return;
      std::deque<LogRecord> batch;
      batch.swap(records_);
      const std::size_t dropped = std::exchange(dropped_, 0);
      lock.unlock();
      deliver(batch, dropped);
      lock.lock();
    }
  }

  static void deliver(const std::deque<LogRecord>& batch, std::size_t dropped) {
    constexpr std::array python_levels = {5, 10, 20, 30, 40};
    const WithGil gil;
    try {
      const nb::object logger = nb::module_::import_("logging").attr("getLogger")("tensorbus");
      for (const LogRecord& record : batch) {
        logger.attr("log")(python_levels[static_cast<std::size_t>(record.level)], "%s",
                           record.message);
      }
      if (dropped > 0) logger.attr("warning")("%d log records were dropped", dropped);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("tensorbus log");
    }
  }

  Mutex mutex_;
  std::condition_variable wake_;
  std::deque<LogRecord> records_ GUARDED_BY(mutex_);
  std::size_t dropped_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // made under the mutex, never once it is closed
};

// Replaced, not destroyed, in a forked child, where its thread does not exist and its mutex may be
// held for ever.
LogForwarder* forwarder = nullptr;

}  // namespace

void bind_log(nb::module_& module) {
  forwarder = new LogForwarder;
  log::set_sink(
      [](log::Level level, std::string_view message) { forwarder->push(level, message); });
  pthread_atfork(nullptr, nullptr, [] { forwarder = new LogForwarder; });
  module.def(
      "set_log_level", [](const std::string& level) { log::set_level(log::parse_level(level)); },
      nb::arg("level"),
      "Which records reach logging.getLogger(\"tensorbus\"): trace, debug, info, warn or error.");
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    const WithoutGil without_gil;
    forwarder->close();
  }));
}

}  // namespace tensorbus::python
