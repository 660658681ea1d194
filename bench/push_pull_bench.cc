// Echo round trips of push-pull in C++ against the floor, on one host and between two network
// namespaces, with one worker and with four; with four also against a TCP echo in Python.
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copy_ping_pong.h"
#include "fabric/conformance/two_hosts.h"
#include "fabric/ucx/ucx.h"
#include "python_echo.h"
#include "rows.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::bench {
namespace {

using namespace push_pull;

struct Size {
  std::string name;
  std::size_t bytes;
  int round_trips;
};
const std::vector<Size> sizes{{"64 B", 64, 2'000},
                              {"14 KiB", 14 * 1024, 1'000},
                              {"229 KiB", 229 * 1024, 200},
                              {"1.75 MiB", 1792 * 1024, 50}};
constexpr int rounds = 15;
constexpr std::size_t largest_prepared = 14 * 1024;  // larger ones go the same way as others

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

// What the worker is told each time: the tensors, or the request that it has prepared.
enum class Told { tensors, prepared };

// One tensor there, one back, in memory of one's own as users have it.
class Trip {
 public:
  Trip(Worker& worker, std::size_t bytes, Told told = Told::tensors)
      : worker_(worker),
        shape_{static_cast<std::int64_t>(bytes)},
        push_(bytes, std::byte{1}),
        pull_(bytes) {
    pushes_ = {1, {push_.data(), Dtype::uint8, shape_, strides_}};
    pulls_ = {2, {pull_.data(), Dtype::uint8, shape_, strides_}};
    if (told == Told::prepared) prepared_ = worker.prepare({&pushes_, 1}, {&pulls_, 1});
  }
  Trip(const Trip&) = delete;
  Trip& operator=(const Trip&) = delete;

  void operator()() { worker_.wait(push_pull(), until_); }

 private:
  Handler push_pull() {
    if (prepared_) return worker_.push_pull(*prepared_, until_);
    return worker_.push_pull({&pushes_, 1}, {&pulls_, 1}, until_);
  }

  Worker& worker_;
  // Of all its round trips: a job that has lost a process ends with an error.
  const Deadline until_ = Deadline::after(std::chrono::minutes(10));
  std::optional<PreparedRequest> prepared_;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_{1};
  std::vector<std::byte> push_;
  std::vector<std::byte> pull_;
  Item pushes_;
  Item pulls_;
};

// A job in processes of its own, but for the worker that measures.
class Echo {
 public:
  Echo(int workers, const fabric::TwoHosts* hosts) : hosts_(hosts) {
    options_.job.workers = workers;
    if (hosts != nullptr) options_.job.host = fabric::TwoHosts::address(0);
    start(0, [this] { schedule(); });
    options_.job.port = static_cast<std::uint16_t>(std::stoi(port_.get()));
    start(1, [this] { serve(); });
    for (int rank = 1; rank < workers; ++rank) {
      start(0, [=, this] { keep_asking(rank); });
    }
  }

  // In the calling thread, on the first host.
  std::unique_ptr<Worker> worker() const {
    if (hosts_ != nullptr) hosts_->enter(0);
    return std::make_unique<Worker>(fresh());
  }
  // Seconds that the others have used.
  double cpu() const {
    double used = 0;
    for (const auto& child : children_) used += cpu_seconds(child->pid());
    return used;
  }

 private:
  NodeOptions fresh() const {
    NodeOptions options = options_;
    options.deadline = soon();
    return options;
  }
  void start(int host, const std::function<void()>& body) {
    children_.push_back(std::make_unique<fabric::Child>([=, this] {
      if (hosts_ != nullptr) hosts_->enter(host);
      try {
        body();
      } catch (const Error& error) {
        if (error.code() != Code::peer_lost) throw;  // the worker that measures is done
      }
    }));
  }
  void schedule() const {
    Scheduler scheduler(fresh());
    port_.put(std::to_string(scheduler.port()));
    scheduler.wait_for_all(soon());
    scheduler.stop(Deadline::never());
  }
  void serve() const {
    Server server(fresh());
    std::vector<Request> batch;
    for (;;) {
      server.get_batch(batch, {}, Deadline::never());
      for (const Request& request : batch) {
        server.respond(request.handler, {&request.tensors[0].tensor, 1});
      }
    }
  }
  // The others of a batch, always of 64 bytes.
  void keep_asking(int rank) const {
    NodeOptions options = fresh();
    options.rank = rank;
    Worker worker(options);
    Trip trip(worker, 64);
    for (;;) trip();
  }

  NodeOptions options_;
  const fabric::TwoHosts* hosts_;
  fabric::Pipe port_;
  std::vector<std::unique_ptr<fabric::Child>> children_;
};

// Of single round trips, in microseconds.
struct Times {
  std::vector<double> all;

  double quantile(double q) const { return bench::quantile(all, q); }
};

template <typename Once>
Times time_each(int round_trips, Once once) {
  Times times;
  times.all.reserve(static_cast<std::size_t>(round_trips));
  for (int i = 0; i < round_trips; ++i) {
    const TimePoint start = now();
    once();
    times.all.push_back(seconds_since(start) * 1e6);
  }
  return times;
}

// p50 of every round against the floor's, then p99 of all rounds together.
void measure_size(const Size& size, const std::string& job, Worker& worker, Told told,
                  std::vector<Row>& rows) {
  CopyPingPong floor(size.bytes);
  Trip trip(worker, size.bytes, told);
  const int round_trips = job.starts_with("1x1") ? size.round_trips : size.round_trips / 4;
  Times ours;
  Times theirs;
  const auto median = [&](Times& all, const auto& once) {
    const Times times = time_each(round_trips, once);
    all.all.insert(all.all.end(), times.all.begin(), times.all.end());
    return times.quantile(0.5);
  };
  Row row{fmt::format("C++ echo {}, {}, p50", size.name, job), "copy ping-pong", "us"};
  if (told == Told::prepared && size.bytes == 64) row.at_most = 3;
  row = measure(
      row, rounds, [&] { return median(theirs, [&] { floor.round_trip(); }); },
      [&] { return median(ours, [&] { trip(); }); });
  rows.push_back(row);
  Row tail{fmt::format("C++ echo {}, {}, p99", size.name, job), "copy ping-pong", "us"};
  tail.floor_value = theirs.quantile(0.99);
  tail.value = ours.quantile(0.99);
  tail.ratios = {tail.value / tail.floor_value};
  rows.push_back(tail);
}

// Four workers wait for each other, four clients of the TCP echo do not.
void measure_four(const Size& size, const std::string& job, Worker& worker, PythonEcho& tcp,
                  std::vector<Row>& rows) {
  Trip trip(worker, size.bytes);
  const std::vector<std::byte> push(size.bytes);
  std::vector<std::byte> pull(size.bytes);
  const int round_trips = size.round_trips / 4;
  const auto theirs = [&] {
    const Times times = time_each(round_trips, [&] { tcp.round_trip(push, pull); });
    tcp.rest();
    return times.quantile(0.5);
  };
  Row row{fmt::format("C++ echo {}, {}, p50", size.name, job), "Python TCP echo of 4", "us"};
  row.at_most = 1;
  rows.push_back(measure(row, rounds, theirs,
                         [&] { return time_each(round_trips, [&] { trip(); }).quantile(0.5); }));
}

void measure_job(const std::string& name, int workers, const fabric::TwoHosts* hosts,
                 std::vector<Row>& rows) {
  const Echo echo(workers, hosts);
  const auto worker = echo.worker();
  std::optional<PythonEcho> tcp;
  if (workers > 1) tcp.emplace(workers, hosts);
  for (const Size& size : sizes) {
    const std::string job = fmt::format("{}x1 {}", workers, name);
    if (tcp && size.bytes <= largest_prepared) measure_four(size, job, *worker, *tcp, rows);
    measure_size(size, job, *worker, Told::tensors, rows);
    if (workers == 1 && hosts == nullptr && size.bytes <= largest_prepared) {
      measure_size(size, job + ", prepared", *worker, Told::prepared, rows);
    }
  }
}

// Both sides wait for a request that does not come.
Row idle() {
  constexpr double seconds = 3;
  const Echo echo(2, nullptr);  // the second asks, and waits for us
  const auto worker = echo.worker();
  Trip trip(*worker, 64);
  for (int i = 0; i < 100; ++i) trip();
  ::usleep(500'000);
  const double before = cpu_seconds(::getpid()) + echo.cpu();
  ::usleep(static_cast<useconds_t>(seconds * 1e6));
  const double used = cpu_seconds(::getpid()) + echo.cpu() - before;
  Row row{"idle CPU of 2 workers, a server, a scheduler", "one core", "%"};
  row.floor_value = 100;
  row.value = used / seconds * 100;
  row.ratios = {row.value / 100};
  row.at_most = 0.04;  // 1 % each
  return row;
}

int run(int argc, char** argv) {
  std::vector<Row> rows{idle()};
  for (const int workers : {1, 4}) measure_job("shm", workers, nullptr, rows);
  if (fabric::has_ucx() && fabric::TwoHosts::unavailable().empty()) {
    for (const int workers : {1, 4}) {
      const fabric::TwoHosts hosts;
      measure_job("ucx", workers, &hosts, rows);
    }
  }
  return report(rows, argc, argv);
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) { return tensorbus::bench::run(argc, argv); }
