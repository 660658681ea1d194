// What copies of one rank cost: a reader with several threads against memcpy (L5.1), and publish
// against the bare kernel that it runs (L5.2). All pages are touched beforehand and bytes are
// counted once.
// proves: L5.1, L5.2
#include <fmt/core.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bus/client/client.h"
#include "bus/host/embedded.h"
#include "bus_crew.h"
#include "copy/execute.h"
#include "fabric/core/region.h"
#include "os/io/memory.h"
#include "os/process/cores.h"
#include "rows.h"
#include "tensorbus/bus.h"

namespace tensorbus::bench {
namespace {

constexpr int rounds = 15;
constexpr std::size_t tensors = 1000;
constexpr std::int64_t elements = std::int64_t{1} << 16;  // of each; float32
constexpr std::size_t total = tensors * static_cast<std::size_t>(elements) * sizeof(float);
constexpr Rank source = 0;

double speed(double seconds) { return static_cast<double>(total) / seconds / 1e9; }

std::shared_ptr<std::byte> touched(std::size_t bytes) {
  std::shared_ptr<std::byte> memory(new std::byte[bytes], std::default_delete<std::byte[]>());
  std::memset(memory.get(), 0x3F, bytes);
  return memory;
}

// A rank that reads, or is read, as often as its parent says. Readers of the ranks 1, 2, ... have
// so many threads; the source only offers.
void be_a_rank(const Crew::Member& self) {
  BusOptions options;
  options.rank = self.rank;
  options.copy_threads = self.rank == source ? 1 : self.rank;
  Bus bus(hear(self.orders), options);
  const bool sends = self.rank == source;
  for (std::string pair = hear(self.orders); pair != "end"; pair = hear(self.orders)) {
    if (!sends && pair != std::to_string(self.rank)) continue;
    bus.init_pair({pair, sends ? "from" : "to", sends ? "to" : "from", 1, {1}, {Replicate{}}},
                  soon());
    const auto memory = sends ? bus.allocate(total) : touched(total);
    std::memset(memory.get(), 0x3F, total);
    std::vector<BusTensor> local;
    for (std::size_t at = 0; at < tensors; ++at) {
      BusTensor tensor;
      tensor.data = memory.get() + at * total / tensors;
      tensor.shape = {elements};
      tensor.pair = pair;
      local.push_back(tensor);
    }
    BusBatch batch = bus.register_tensors("batch" + pair, local, soon());
    self.answers.put("ready");
    while (hear(self.orders) == "go") {
      sends ? batch.send(soon()) : batch.recv(soon());
      self.answers.put("done");
    }
    batch.close(soon());
    self.answers.put("left");
  }
}

// memcpy of the same bytes out of memory that another process could map, by so many threads.
class Copies {
 public:
  Copies() : mapping_(os::map(os::sealed_memfd("bench", total), total, true, true)) {
    std::memset(mapping_.data(), 0x3F, total);
  }
  double seconds(std::size_t threads) const {
    const TimePoint start = now();
    {
      std::vector<std::jthread> others;
      for (std::size_t at = 1; at < threads; ++at) {
        others.emplace_back([this, at, threads] { copy(at, threads); });
      }
      copy(0, threads);
    }
    return seconds_since(start);
  }

 private:
  void copy(std::size_t at, std::size_t of) const {
    const std::size_t part = total / of;
    std::memcpy(target_.get() + at * part, mapping_.data() + at * part, part);
  }

  const os::Mapping mapping_;
  const std::shared_ptr<std::byte> target_ = touched(total);
};

double round_of(const Crew::Member& a, const Crew::Member& b, const std::string& order) {
  const TimePoint start = now();
  for (const Crew::Member* member : {&a, &b}) member->orders.put(order);
  for (const Crew::Member* member : {&a, &b}) hear(member->answers);
  return seconds_since(start);
}

// All three in every round.
std::vector<Row> reading(const Crew& crew, const Copies& copies) {
  std::vector<Row> rows;
  const Crew::Member& from = *crew.members().front();
  for (std::size_t threads = 1; threads < crew.members().size(); ++threads) {
    const Crew::Member& reader = *crew.members()[threads];
    const std::string name = std::to_string(threads);
    crew.tell(name);
    for (const Crew::Member* member : {&from, &reader}) hear(member->answers);
    std::vector<double> single;
    std::vector<double> machine;
    const std::string what = fmt::format("read of 1,000 x 256 KiB, {} threads", threads);
    Row row{what, "L5.1: 1.6 x memcpy or x 2", "GB/s"};
    if (threads == 2) row.at_least = 1.0;
    const Row least = measure(
        row, rounds,
        [&] {
          single.push_back(speed(copies.seconds(1)));
          machine.push_back(speed(copies.seconds(2)));
          return std::min(1.6 * single.back(), machine.back());
        },
        [&] { return speed(round_of(from, reader, "go")); });
    const auto against = [&](const std::string& floor, const std::vector<double>& values) {
      Row other{what, floor, "GB/s", quantile(values, 0.5), least.value};
      for (std::size_t at = 0; at < least.ratios.size(); ++at) {
        const double floor_then = std::min(1.6 * single[at + 1], machine[at + 1]);
        other.ratios.push_back(least.ratios[at] * floor_then / values[at + 1]);
      }
      return other;
    };
    rows.push_back(against("memcpy", single));
    rows.push_back(against("memcpy x 2", machine));
    if (threads == 2) rows.push_back(least);
    round_of(from, reader, "leave");
  }
  crew.tell("end");
  return rows;
}

// The kernel that fills a shelf, without a bus.
class Kernel {
 public:
  Kernel(const std::vector<TensorView>& from, Dtype kept) {
    fabric::Forms forms;
    fabric::Forms targets;
    for (const TensorView& tensor : from) {
      forms.push_back(fabric::form_of(tensor));
      targets.push_back({kept, forms.back().shape, forms.back().strides});
      from_.push_back(tensor.data);
      to_.push_back(memory_.get() + (to_.size() * total / tensors));
    }
    const plan::Strides source_strides = fabric::strides_of(forms);
    const plan::Strides target_strides = fabric::strides_of(targets);
    program_ = plan::compile(fabric::whole_stream(forms, std::vector<Dtype>(from.size(), kept)),
                             &source_strides, &target_strides);
  }
  double seconds(copy::Crew& crew) const {
    const copy::Sources member(from_);
    const TimePoint start = now();
    copy::execute(program_, {&member, 1}, to_, crew);
    return seconds_since(start);
  }

 private:
  const std::shared_ptr<std::byte> memory_ = touched(total);
  std::vector<const std::byte*> from_;
  std::vector<std::byte*> to_;
  plan::Program program_;
};

bus::EmbeddedOptions options_for(std::size_t threads) {
  bus::EmbeddedOptions options;
  options.rank = 100;
  options.copy_threads = static_cast<std::int64_t>(threads);
  return options;
}

// A trainer without readers.
class Publisher {
 public:
  Publisher(const std::string& url, std::size_t threads, std::optional<Dtype> dtype,
            const std::vector<TensorView>& from)
      : embedded_(connect(StoreUrl::parse(url), {soon(), std::nullopt}), options_for(threads),
                  soon()),
        client_(embedded_.connect(), embedded_.pool(), embedded_.crew()),
        from_(from) {
    client_.init_pair({"shelf", "trainer", "", 1, bus::SideLayout{{1}, {Replicate{}}, {}}, true},
                      true, soon());
    std::vector<bus::BatchTensor> items;
    for (const TensorView& tensor : from) {
      items.push_back({tensor, "shelf", std::to_string(items.size()), std::nullopt});
    }
    bus::RegisterOptions options;
    options.role = "trainer";
    options.versioned = bus::Versioned{bus::Direction::send, 0, false, 2};
    options.pairs = {"shelf"};
    options.shelf_dtype = dtype;
    client_.register_tensors("policy", items, options, soon());
  }
  double seconds() {
    const TimePoint start = now();
    client_.publish("policy", "trainer", from_, {.patience = std::chrono::seconds(5)}, soon());
    return seconds_since(start);
  }
  copy::Crew& crew() { return *embedded_.crew(); }

 private:
  bus::Embedded embedded_;
  bus::Client client_;
  const std::vector<TensorView>& from_;
};

std::vector<Row> publishing(const std::string& url) {
  const auto memory = touched(total);
  const Shape shape = {elements};
  const Shape strides = {1};
  std::vector<TensorView> from;
  for (std::size_t at = 0; at < tensors; ++at) {
    from.push_back({memory.get() + at * total / tensors, Dtype::float32, shape, strides});
  }
  std::vector<Row> rows;
  for (const std::size_t threads : {std::size_t{1}, std::size_t{2}}) {
    for (const Dtype kept : {Dtype::float32, Dtype::bfloat16}) {
      const bool narrows = kept != Dtype::float32;
      Publisher publisher(url, threads, narrows ? std::optional(kept) : std::nullopt, from);
      publisher.seconds();  // and once more by measure(): a shelf has two slots
      const Kernel kernel(from, kept);
      Row row{fmt::format("publish of 1,000 x 256 KiB{}, {} threads", narrows ? " as bfloat16" : "",
                          threads),
              narrows ? "L5.2: cast kernel" : "L5.2: our own copy", "ms"};
      row.at_most = 1.15;
      rows.push_back(measure(
          row, rounds, [&] { return 1e3 * kernel.seconds(publisher.crew()); },
          [&] { return 1e3 * publisher.seconds(); }));
    }
  }
  return rows;
}

std::vector<Row> run() {
  if (os::usable_cores() < 2) fmt::print("only one core: figures of two threads mean nothing\n");
  // All processes before the first thread.
  Crew crew;
  for (const Rank rank : {source, Rank{1}, Rank{2}}) crew.add(rank, be_a_rank);
  StoreServerOptions options;
  options.port = 0;
  const StoreServer server(options);
  crew.tell(server.url());
  std::vector<Row> rows = reading(crew, Copies());
  for (const Row& row : publishing(server.url())) rows.push_back(row);
  return rows;
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) {
  return tensorbus::bench::report(tensorbus::bench::run(), argc, argv);
}
