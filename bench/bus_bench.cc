// The tensor bus against memcpy: ranks are processes with agents of their own, the store a server.
// The floor is one memcpy per reader at once, of the same bytes between the same kinds of memory;
// all pages are touched beforehand and bytes are counted once.
#include <fmt/core.h>

#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "bus_crew.h"
#include "os/io/memory.h"
#include "rows.h"
#include "tensorbus/bus.h"

namespace tensorbus::bench {
namespace {

constexpr std::int64_t columns = 8192;
constexpr std::int64_t rows_per_gibibyte = (std::int64_t{1} << 30) / columns / 4;
constexpr Rank first_reader = 10;
constexpr int most_ranks = 4;  // of a side

struct Scenario {
  std::string name;
  int sources = 2;
  int targets = 2;
  Placement from = Shard{0};
  Placement to = Shard{0};
  std::int64_t rows = rows_per_gibibyte / 4;
  bool pooled = true;
  Dtype target = Dtype::float32;
  double aim = 0.7;
  int rounds = 9;

  Shape shape() const { return {rows, columns}; }
  std::size_t bytes() const { return static_cast<std::size_t>(rows * columns) * sizeof(float); }
};

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  for (const bool large : {false, true}) {
    for (const bool pooled : {true, false}) {
      for (const bool reshard : {false, true}) {
        Scenario each;
        each.name = fmt::format("Shard(0) -> Shard({}), {}, {}", reshard ? 1 : 0,
                                large ? "1 GiB" : "256 MiB", pooled ? "pooled" : "private");
        if (reshard) each.to = Shard{1};
        each.rows = large ? rows_per_gibibyte : rows_per_gibibyte / 4;
        each.pooled = pooled;
        each.aim = reshard ? 0.7 : 0.8;
        each.rounds = large ? 5 : 9;
        all.push_back(each);
      }
    }
  }
  all.push_back({.name = "Shard(0) -> Shard(1), to bfloat16, 256 MiB",
                 .to = Shard{1},
                 .target = Dtype::bfloat16});
  all.push_back({.name = "Replicate -> Shard(0), 256 MiB", .from = Replicate{}, .aim = 0.8});
  all.push_back({.name = "Shard(0) -> Shard(0), 4 -> 2, 256 MiB", .sources = 4, .aim = 0.8});
  all.push_back({.name = "Shard(0) -> Shard(0), 2 -> 4, 256 MiB", .targets = 4, .aim = 0.8});
  return all;
}

std::shared_ptr<std::byte> touched(std::size_t bytes) {
  std::shared_ptr<std::byte> memory(new std::byte[bytes], std::default_delete<std::byte[]>());
  std::memset(memory.get(), 0x3F, bytes);
  return memory;
}

// A rank that does what its parent says, and says when it is done.
void take_part(Bus& bus, Rank rank, std::size_t number, const fabric::Pipe& orders,
               const fabric::Pipe& answers) {
  const Scenario scenario = scenarios()[number];
  const bool sends = rank < first_reader;
  const int world = sends ? scenario.sources : scenario.targets;
  const Rank first = sends ? 0 : first_reader;
  if (rank >= first + world) return;
  const std::string pair = std::to_string(number);
  bus.init_pair({pair,
                 sends ? "from" : "to",
                 sends ? "to" : "from",
                 world,
                 {world},
                 {sends ? scenario.from : scenario.to}},
                soon());
  std::vector<Rank> ranks;
  for (int each = 0; each < world; ++each) ranks.push_back(first + each);
  const Layout layout(Mesh({world}, ranks), {sends ? scenario.from : scenario.to});
  BusTensor tensor;
  tensor.pair = pair;
  tensor.dtype = sends ? Dtype::float32 : scenario.target;
  tensor.shape = layout.local_shape(scenario.shape(), rank);
  const auto bytes = static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1]) *
                     (tensor.dtype == Dtype::float32 ? 4 : 2);
  const auto memory = sends && scenario.pooled ? bus.allocate(bytes) : touched(bytes);
  std::memset(memory.get(), 0x3F, bytes);
  tensor.data = memory.get();
  BusBatch batch = bus.register_tensors("batch" + pair, std::span(&tensor, 1), soon());
  answers.put("ready");
  while (hear(orders) == "go") {
    sends ? batch.send(soon()) : batch.recv(soon());
    answers.put("done");
  }
  batch.close(soon());
  answers.put("left");
}

// Those of a crew who are in a scenario, as their parent sees them.
class Team {
 public:
  Team(const Crew& crew, const Scenario& scenario) {
    for (const auto& member : crew.members()) {
      const bool sends = member->rank < first_reader;
      const Rank place = sends ? member->rank : member->rank - first_reader;
      if (place < (sends ? scenario.sources : scenario.targets)) here_.push_back(member.get());
    }
  }
  void await() const {
    for (const Crew::Member* member : here_) hear(member->answers);
  }
  double round() const {
    const TimePoint start = now();
    for (const Crew::Member* member : here_) member->orders.put("go");
    await();
    return seconds_since(start);
  }
  void leave() const {
    for (const Crew::Member* member : here_) member->orders.put("leave");
    await();
  }

 private:
  std::vector<const Crew::Member*> here_;
};

// One memcpy per reader, at the same time.
class Copies {
 public:
  explicit Copies(const Scenario& scenario)
      : readers_(scenario.targets), bytes_(scenario.bytes()), target_(touched(bytes_)) {
    if (scenario.pooled) {
      mapping_ = os::map(os::sealed_memfd("bench", bytes_), bytes_, true, true);
      std::memset(mapping_->data(), 0x3F, bytes_);
      source_ = mapping_->data();
    } else {
      private_ = touched(bytes_);
      source_ = private_.get();
    }
  }
  double seconds() const {
    const TimePoint start = now();
    {
      std::vector<std::jthread> threads;
      const std::size_t part = bytes_ / static_cast<std::size_t>(readers_);
      for (int reader = 0; reader < readers_; ++reader) {
        threads.emplace_back([this, part, at = part * static_cast<std::size_t>(reader)] {
          std::memcpy(target_.get() + at, source_ + at, part);
        });
      }
    }
    return seconds_since(start);
  }

 private:
  int readers_;
  std::size_t bytes_;
  std::shared_ptr<std::byte> target_;
  std::optional<os::Mapping> mapping_;
  std::shared_ptr<std::byte> private_;
  std::byte* source_ = nullptr;
};

void be_a_rank(const Crew::Member& self) {
  BusOptions options;
  options.rank = self.rank;
  Bus bus(hear(self.orders), options);
  for (;;) {
    take_part(bus, self.rank, std::stoull(hear(self.orders)), self.orders, self.answers);
  }
}

std::vector<Row> transfers(const Crew& crew) {
  std::vector<Row> rows;
  const auto all = scenarios();
  for (std::size_t number = 0; number < all.size(); ++number) {
    const Scenario& scenario = all[number];
    crew.tell(std::to_string(number));
    const Team team(crew, scenario);
    team.await();
    const Copies copies(scenario);
    const auto speed = [&](double seconds) {
      return static_cast<double>(scenario.bytes()) / seconds / 1e9;
    };
    Row row{scenario.name, fmt::format("memcpy x {}", scenario.targets), "GB/s"};
    if (scenario.pooled) row.at_least = scenario.aim;  // private memory is read by the kernel
    rows.push_back(measure(
        row, scenario.rounds, [&] { return speed(copies.seconds()); },
        [&] { return speed(team.round()); }));
    team.leave();
  }
  return rows;
}

std::vector<Row> run() {
  // All processes before the first thread.
  Crew crew;
  for (int each = 0; each < most_ranks; ++each) {
    crew.add(each, be_a_rank);
    crew.add(first_reader + each, be_a_rank);
  }
  StoreServerOptions options;
  options.port = 0;
  const StoreServer server(options);
  crew.tell(server.url());
  return transfers(crew);
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) {
  return tensorbus::bench::report(tensorbus::bench::run(), argc, argv);
}
