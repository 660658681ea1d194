// What a round and a registration cost apart from the bytes: 64 small tensors through daemons,
// against the wake-ups and transactions that they need, and 10,000 tensors registered.
#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "bus/client/client.h"
#include "bus/files/lmdb_state.h"
#include "bus/host/daemon.h"
#include "bus/socket/connection.h"
#include "bus_crew.h"
#include "rows.h"
#include "tensorbus/bus.h"

namespace tensorbus::bench {
namespace {

using fabric::Pipe;

constexpr int small_tensors = 64;
constexpr std::int64_t small_bytes = 4096;
constexpr int many_tensors = 10'000;

class Folder {
 public:
  Folder() {
    std::string name = "/tmp/bus_bench_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) os::throw_errno("mkdtemp");
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string queue(Rank rank) const { return path_ / fmt::format("{}.queue", rank); }
  std::string state(Rank rank) const { return path_ / fmt::format("{}.state", rank); }
  std::string floor() const { return path_ / "floor.state"; }

 private:
  std::filesystem::path path_;
};

void be_a_daemon(const Crew::Member& self, const Folder& paths) {
  bus::Daemon daemon(connect(StoreUrl::parse(hear(self.orders))),
                     {self.rank, "daemons", paths.queue(self.rank), paths.state(self.rank), {}, {}},
                     soon());
  self.answers.put("ready");
  daemon.run();
}

void be_a_client(const Crew::Member& self, const Folder& paths) {
  hear(self.orders);  // the store's address: its agent knows it
  const auto pool = std::make_shared<fabric::Pool>();
  bus::SocketConnectionOptions options{
      paths.queue(self.rank), paths.state(self.rank), "daemons", self.rank, {}};
  options.offer = [pool](const bus::Loan& loan) { return bus::offer(loan, *pool, *pool); };
  bus::Client client(bus::connect_to_agent(options, soon()), pool);
  const bool sends = self.rank == 0;
  client.init_pair({"p", sends ? "from" : "to", sends ? "to" : "from", 1, std::nullopt}, true,
                   soon());
  const auto memory = pool->allocate(small_tensors * small_bytes);
  const Shape shape{small_bytes};
  const Shape strides{1};
  std::vector<bus::BatchTensor> tensors;
  for (int each = 0; each < small_tensors; ++each) {
    tensors.push_back(
        {{memory.get() + each * small_bytes, Dtype::uint8, shape, strides}, "p", "", std::nullopt});
  }
  client.register_tensors("b", tensors, {}, soon());
  self.answers.put("ready");
  const auto direction = sends ? bus::Direction::send : bus::Direction::recv;
  for (;;) {
    // Many rounds for one order: what is measured is the bus, not the order.
    const int rounds = std::stoi(hear(self.orders));
    for (int round = 0; round < rounds; ++round) {
      client.transfer("b", direction, {}, {}, true, soon())->wait(soon());
    }
    self.answers.put("done");
  }
}

// Four wake-ups of sleeping processes and two transactions.
double floor_of_a_round(const Pipe& there, const Pipe& back, bus::LmdbState& state, int rounds) {
  const auto go = [&] {
    for (int round = 0; round < rounds; ++round) {
      for (int trip = 0; trip < 2; ++trip) {
        there.put("x");
        back.get();
        state.put("key", "value");
      }
    }
  };
  // Rounds before have kept the cores awake, and a virtual machine wakes slowly at first.
  go();
  const TimePoint start = now();
  go();
  return seconds_since(start) / rounds;
}

Row small_round(const Crew& daemons, const Crew& clients, const std::string& store,
                const Folder& paths, const Pipe& there, const Pipe& back) {
  daemons.tell(store);
  daemons.await();
  clients.tell(store);
  clients.await();
  bus::LmdbState state(paths.floor());
  constexpr int rounds = 200;
  Row row{"a round of 64 x 4 KiB through daemons", "4 wake-ups, 2 transactions", "us"};
  row.at_most = 3;
  return measure(
      row, 15, [&] { return floor_of_a_round(there, back, state, rounds) * 1e6; },
      [&] {
        const TimePoint start = now();
        clients.tell(std::to_string(rounds));
        clients.await();
        return seconds_since(start) / rounds * 1e6;
      });
}

Row registration(const Crew& crew) {
  Row row{"registration of 10,000 tensors", "1 s", "s"};
  row.at_most = 1;
  return measure(
      row, 3, [] { return 1.0; },
      [&] {
        const TimePoint start = now();
        crew.tell("register");
        crew.await();
        return seconds_since(start);
      });
}

void register_many(const Crew::Member& self) {
  BusOptions options;
  options.rank = self.rank;
  options.space = "many";
  Bus bus(hear(self.orders), options);
  const bool sends = self.rank == 0;
  bus.init_pair({"p", sends ? "from" : "to", sends ? "to" : "from", 1, {1}, {Replicate{}}}, soon());
  std::vector<float> memory(static_cast<std::size_t>(many_tensors) * 16);
  std::vector<BusTensor> tensors;
  for (std::size_t each = 0; each < many_tensors; ++each) {
    tensors.push_back(
        {&memory[each * 16], Dtype::float32, {16}, {}, "p", fmt::format("w{}", each)});
  }
  self.answers.put("ready");
  for (;;) {
    hear(self.orders);
    BusBatch batch = bus.register_tensors("b", tensors, soon());
    self.answers.put("done");
    batch.close(soon());
  }
}

std::vector<Row> run() {
  const Folder paths;
  // All processes before the first thread.
  Crew daemons;
  Crew clients;
  Crew registrars;
  for (const Rank rank : {0, 1}) {
    daemons.add(rank, [&](const Crew::Member& self) { be_a_daemon(self, paths); });
    clients.add(rank, [&](const Crew::Member& self) { be_a_client(self, paths); });
    registrars.add(rank, register_many);
  }
  const Pipe there;
  const Pipe back;
  const fabric::Child responder([&] {
    for (;;) back.put(hear(there));
  });
  StoreServerOptions options;
  options.port = 0;
  const StoreServer server(options);
  std::vector<Row> rows;
  rows.push_back(small_round(daemons, clients, server.url(), paths, there, back));
  registrars.tell(server.url());
  registrars.await();
  rows.push_back(registration(registrars));
  return rows;
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) {
  return tensorbus::bench::report(tensorbus::bench::run(), argc, argv);
}
