// What recording costs: a small round of two ranks whose agents record, against two whose agents do
// not, in turns; a push-pull request while somebody looks, against one while nobody does. All in
// one process, so that nothing but the recording is different.
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bus/client/client.h"
#include "bus/host/embedded.h"
#include "observe/recorder.h"
#include "observe/registry.h"
#include "rows.h"
#include "tensorbus/store.h"
#include "trips.h"

namespace tensorbus::bench {
namespace {

constexpr int small_tensors = 64;
constexpr std::int64_t small_bytes = 4096;

Deadline in_time() { return Deadline::after(std::chrono::seconds(60)); }

// One rank: an agent on a thread, and its worker.
class Member {
 public:
  Member(const std::shared_ptr<Store>& store, const std::string& space, Rank rank, bool observed)
      : sends_(rank == 0),
        agent_(store, options(space, rank, observed), in_time()),
        client_(agent_.connect(), agent_.pool(), agent_.crew()),
        memory_(agent_.pool()->allocate(small_tensors * small_bytes)) {}

  void join() {
    client_.init_pair({"p", sends_ ? "from" : "to", sends_ ? "to" : "from", 1, std::nullopt, false},
                      true, in_time());
    std::vector<bus::BatchTensor> tensors;
    for (int each = 0; each < small_tensors; ++each) {
      tensors.push_back({{memory_.get() + each * small_bytes, Dtype::uint8, shape_, strides_},
                         "p",
                         "",
                         std::nullopt});
    }
    client_.register_tensors("b", tensors, {}, in_time());
  }
  void run(int rounds) {
    const auto direction = sends_ ? bus::Direction::send : bus::Direction::recv;
    for (int round = 0; round < rounds; ++round) {
      client_.transfer("b", direction, {}, {}, true, in_time())->wait(in_time());
    }
  }

 private:
  static bus::EmbeddedOptions options(const std::string& space, Rank rank, bool observed) {
    bus::EmbeddedOptions options;
    options.rank = rank;
    options.space = space;
    options.copy_threads = 1;
    options.observed = observed;
    return options;
  }

  const bool sends_;
  const Shape shape_{small_bytes};
  const Shape strides_{1};
  bus::Embedded agent_;
  bus::Client client_;
  std::shared_ptr<std::byte> memory_;
};

class Two {
 public:
  Two(const std::shared_ptr<Store>& store, bool observed)
      : sender_(store, observed ? "on" : "off", 0, observed),
        reader_(store, observed ? "on" : "off", 1, observed) {
    std::thread joining([this] { reader_.join(); });
    sender_.join();
    joining.join();
  }
  double microseconds_of_a_round() {
    const TimePoint start = now();
    run();
    return seconds_since(start) / rounds * 1e6;
  }
  // Of all threads of both ranks: what waits on the way from one to the other is not in it.
  double processor_microseconds_of_a_round() {
    const double start = processor_seconds();
    run();
    return (processor_seconds() - start) / rounds * 1e6;
  }

 private:
  static constexpr int rounds = 40;

  static double processor_seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }
  void run() {
    std::thread reading([this] { reader_.run(rounds); });
    sender_.run(rounds);
    reading.join();
  }

  Member sender_;
  Member reader_;
};

std::vector<Row> small_rounds() {
  StoreServerOptions options;
  options.port = 0;
  const StoreServer server(options);
  const std::shared_ptr<Store> store = connect(StoreUrl::parse(server.url()));
  Two on(store, true);
  Two off(store, false);
  Row row{"a round of 64 x 4 KiB, recorded", "the same, not recorded", "us"};
  row.at_most = 1.01;
  Row processor{"its processor time, recorded", "the same, not recorded", "us"};
  processor.at_most = 1.01;
  return {measure(
              row, 1501, [&] { return off.microseconds_of_a_round(); },
              [&] { return on.microseconds_of_a_round(); }),
          measure(
              processor, 1501, [&] { return off.processor_microseconds_of_a_round(); },
              [&] { return on.processor_microseconds_of_a_round(); })};
}

// The recording alone, which a ratio of rounds hides in its noise.
Row one_span() {
  observe::Recorder recorder({});
  constexpr int spans = 100'000;
  Row row{"a span that is counted and kept", "1 us", "us"};
  row.at_most = 1;
  return measure(
      row, 15, [] { return 1.0; },
      [&] {
        observe::Span span;
        span.work = observe::Work::pull;
        span.phase_ns.fill(1000);
        span.bytes = 4096;
        const TimePoint start = now();
        for (int each = 0; each < spans; ++each) {
          span.begin = each;
          span.end = each + 60'000;
          recorder.finish(span);
        }
        return seconds_since(start) / spans * 1e6;
      });
}

Row small_request() {
  Trips trips(false);
  constexpr int count = 2000;
  const auto microseconds_of_a_trip = [&] {
    const TimePoint start = now();
    trips.round_trips(count);
    return seconds_since(start) / count * 1e6;
  };
  Row row{"push-pull of 64 B, looked at", "the same, nobody looks", "us"};
  return measure(row, 41, microseconds_of_a_trip, [&] {
    const std::shared_ptr<void> watching = observe::registry().watch();
    return microseconds_of_a_trip();
  });
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) {
  using namespace tensorbus::bench;
  std::vector<Row> rows = small_rounds();
  rows.insert(rows.begin(), one_span());
  rows.push_back(small_request());
  return report(rows, argc, argv);
}
