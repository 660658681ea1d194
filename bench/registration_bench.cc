// What it costs N + N ranks to register a batch of 1,000 tensors, all agents in this process: bytes
// to and from the store and processor time of a rank, and seconds until all have registered (L4.1).
#include <fmt/core.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rows.h"
#include "tensorbus/bus.h"
#include "tensorbus/store.h"

namespace tensorbus::bench {
namespace {

constexpr std::size_t tensors = 1000;
constexpr std::int64_t rows = 512;  // and columns

Deadline soon() { return Deadline::after(std::chrono::seconds(600)); }

struct Figures {
  std::string name;
  std::int64_t ranks = 0;  // of a side
  double seconds = 0;
  double cpu_ms = 0;  // of a rank
  double bytes = 0;   // of a rank
};

// Of all connections of this process to the port.
double bytes_through(std::uint16_t port) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.sin_family != AF_INET || ntohs(peer.sin_port) != port) continue;
    tcp_info info{};
    size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    bytes += info.tcpi_bytes_acked + info.tcpi_bytes_received;
  }
  return static_cast<double>(bytes);
}

// The ranks of both sides, and what each of them registers.
class Cluster {
 public:
  Cluster(std::int64_t ranks, int target_dim)
      : ranks_(ranks), target_dim_(target_dim), memory_(static_cast<std::size_t>(rows * rows)) {
    StoreServerOptions options;
    options.port = 0;
    server_ = std::make_unique<StoreServer>(options);
    for (Rank rank = 0; rank < 2 * ranks; ++rank) {
      BusOptions own;
      own.rank = rank;
      own.copy_threads = 1;
      buses_.push_back(std::make_unique<Bus>(server_->url(), own));
    }
  }

  void meet() {
    on_all([&](Rank rank) {
      PairSide side{"pair",
                    sends(rank) ? "train" : "infer",
                    sends(rank) ? "infer" : "train",
                    ranks_,
                    {ranks_},
                    {Shard{dim(rank)}}};
      bus(rank).init_pair(side, soon());
    });
  }
  void enlist() {
    std::vector<std::unique_ptr<BusBatch>> batches(buses_.size());
    on_all([&](Rank rank) {
      const std::vector<BusTensor> local = tensors_of(rank);
      batches[static_cast<std::size_t>(rank)] =
          std::make_unique<BusBatch>(bus(rank).register_tensors("batch", local, soon()));
    });
    batches_ = std::move(batches);
  }
  void leave() {
    on_all([&](Rank rank) { batches_[static_cast<std::size_t>(rank)]->close(soon()); });
  }
  double bytes() const { return bytes_through(server_->port()); }

 private:
  bool sends(Rank rank) const { return rank < ranks_; }
  std::int64_t dim(Rank rank) const { return sends(rank) ? 0 : target_dim_; }
  Bus& bus(Rank rank) { return *buses_[static_cast<std::size_t>(rank)]; }

  std::vector<BusTensor> tensors_of(Rank rank) {
    BusTensor tensor;
    tensor.data = memory_.data();
    tensor.dtype = Dtype::uint8;
    tensor.shape = dim(rank) == 0 ? Shape{rows / ranks_, rows} : Shape{rows, rows / ranks_};
    tensor.pair = "pair";
    std::vector<BusTensor> local(tensors, tensor);
    for (std::size_t at = 0; at < tensors; ++at) {
      local[at].name = fmt::format("model.layers.{}.mlp.up_proj.weight", at);
    }
    return local;
  }

  // Throws what the first that failed threw.
  template <typename Call>
  void on_all(Call call) {
    std::vector<std::future<void>> calls;
    for (Rank rank = 0; rank < 2 * ranks_; ++rank) {
      calls.push_back(std::async(std::launch::async, [&call, rank] { call(rank); }));
    }
    for (std::future<void>& each : calls) each.wait();
    for (std::future<void>& each : calls) each.get();
  }

  const std::int64_t ranks_;
  const int target_dim_;
  std::vector<std::byte> memory_;
  std::unique_ptr<StoreServer> server_;
  std::vector<std::unique_ptr<Bus>> buses_;
  std::vector<std::unique_ptr<BusBatch>> batches_;
};

Figures measure(std::int64_t ranks, int target_dim) {
  Cluster cluster(ranks, target_dim);
  cluster.meet();
  const double worked = cpu_seconds(::getpid());
  const double sent = cluster.bytes();
  const TimePoint began = now();
  cluster.enlist();
  Figures figures{fmt::format("Shard(0) -> Shard({})", target_dim), ranks, seconds_since(began)};
  const auto all = static_cast<double>(2 * ranks);
  figures.cpu_ms = (cpu_seconds(::getpid()) - worked) / all * 1e3;
  figures.bytes = (cluster.bytes() - sent) / all;
  cluster.leave();
  return figures;
}

void print_line(const Figures& each, const Figures* before) {
  // Of a rank, for each further one on either side.
  const double growth =
      before == nullptr
          ? 0
          : (each.bytes - before->bytes) / static_cast<double>(2 * (each.ranks - before->ranks));
  fmt::print("{:<24}{:>12}{:>10.2f}{:>16.2f}{:>16.0f}{:>22.0f}\n", each.name,
             fmt::format("{0} + {0}", each.ranks), each.seconds, each.cpu_ms, each.bytes, growth);
  std::fflush(stdout);
}

void write(const std::vector<Figures>& all, const std::string& path) {
  std::ofstream file(path);
  file << "[";
  for (const Figures& each : all) {
    file << (&each == all.data() ? "\n" : ",\n")
         << fmt::format(
                R"( {{"name": "registration of {} tensors, {}, {} + {} ranks", )"
                R"("s": {:.4g}, "processor_ms_a_rank": {:.4g}, "store_bytes_a_rank": {:.0f}}})",
                tensors, each.name, each.ranks, each.ranks, each.seconds, each.cpu_ms, each.bytes);
  }
  file << "\n]\n";
}

// Every connection takes some, and all ends of all connections are in this process.
void take_all_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

struct Options {
  std::string json{};
  std::optional<std::int64_t> ranks{};  // only so many a side: for profilers
};

Options options_of(int argc, char** argv) {
  Options options;
  for (int at = 1; at + 1 < argc; at += 2) {
    const std::string_view name = argv[at];
    if (name == "--json") options.json = argv[at + 1];
    if (name == "--ranks") options.ranks = std::stoll(argv[at + 1]);
  }
  const int known = (options.json.empty() ? 0 : 2) + (options.ranks ? 2 : 0);
  if (argc == 1 + known) return options;
  fmt::print(stderr, "usage: {} [--json FILE] [--ranks N]\n", argv[0]);
  std::exit(2);
}

// Where every rank reads from all, both ends of ranks x ranks connections are in this process, and
// each rank has a thousand pieces for every other.
std::vector<std::int64_t> counts_of(int target_dim) {
  if (target_dim == 1) return {2, 8, 32, 64};
  return {2, 8, 32, 64, 128, 256, 512};
}

void measure_curve(int target_dim, const Options& options, std::vector<Figures>& all) {
  const Figures* before = nullptr;
  for (const std::int64_t count : counts_of(target_dim)) {
    if (options.ranks && *options.ranks != count) continue;
    try {
      const Figures now = measure(count, target_dim);
      print_line(now, before);
      all.push_back(now);
      before = &all.back();
    } catch (const Error& error) {
      fmt::print("{} + {} ranks: {}\n", count, count, error.what());
    }
  }
}

int run(int argc, char** argv) {
  const Options options = options_of(argc, argv);
  take_all_descriptors();
  std::vector<Figures> all;
  all.reserve(32);
  fmt::print("{:<24}{:>12}{:>10}{:>16}{:>16}{:>22}\n", "1,000 tensors", "ranks", "s",
             "processor ms", "store bytes", "bytes a further rank");
  for (const int target_dim : {0, 1}) measure_curve(target_dim, options, all);
  if (!options.json.empty()) write(all, options.json);
  return 0;
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) { return tensorbus::bench::run(argc, argv); }
