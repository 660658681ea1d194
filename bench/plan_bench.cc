// What planning costs. A large model: the pass over the ranks, then one rank's programs. And the
// curve from 16 to 16,384 ranks while a rank's own pieces stay the same: its time must stay flat.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "json_option.h"
#include "tensorbus/plan.h"

namespace tensorbus {
namespace {

constexpr int ranks_per_host = 8;

struct Result {
  std::string name;
  std::int64_t source_ranks = 0;
  std::int64_t target_ranks = 0;
  std::int64_t tensors = 0;
  std::size_t pieces = 0;  // of the measured target rank
  double tables_ms = 0;    // the pass over the ranks, all layouts of the model
  double read_ms = 0;      // a target rank: all its pieces, streams and programs
  double serve_ms = 0;     // a source rank: the same
};

// The tensors of a model that share a pair of layouts.
struct Family {
  Layout source;
  Layout target;
  std::vector<Shape> shapes;
};

// The fastest of several: planning has no input but its arguments, all else is disturbance.
template <typename Work>
double milliseconds(Work work) {
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    best = round == 0 ? spent.count() : std::min(best, spent.count());
  }
  return best;
}

// Sources and targets on hosts of their own, as trainers and engines are.
plan::Hosts hosts_of(const Layout& source, const Layout& target) {
  plan::Hosts hosts;
  for (std::size_t i = 0; i < source.mesh().size(); ++i) {
    hosts.source.push_back(fmt::format("trainer{}", i / ranks_per_host));
  }
  for (std::size_t i = 0; i < target.mesh().size(); ++i) {
    hosts.target.push_back(fmt::format("engine{}", i / ranks_per_host));
  }
  return hosts;
}

std::size_t compile_all(const std::vector<plan::Stream>& streams, bool reader) {
  std::size_t runs = 0;
  for (const plan::Stream& stream : streams) {
    plan::Strides strides;
    for (const plan::Part& part : stream.parts) {
      strides.resize((reader ? part.target_tensor : part.source_tensor) + 1);
      strides.back() = plan::contiguous_strides(reader ? part.target_shape : part.source_shape);
    }
    runs += reader ? plan::compile(stream, nullptr, &strides).runs.size()
                   : plan::compile(stream, &strides, nullptr).runs.size();
  }
  return runs;
}

Result measure(std::string name, const std::vector<Family>& families) {
  Result result;
  result.name = std::move(name);
  result.source_ranks = static_cast<std::int64_t>(families[0].source.mesh().size());
  result.target_ranks = static_cast<std::int64_t>(families[0].target.mesh().size());
  std::vector<plan::Hosts> hosts;
  for (const Family& family : families) hosts.push_back(hosts_of(family.source, family.target));

  std::vector<plan::Tables> tables;
  result.tables_ms = milliseconds([&] {
    tables.clear();
    for (std::size_t i = 0; i < families.size(); ++i) {
      tables.emplace_back(families[i].source, families[i].target, hosts[i]);
    }
  });
  std::vector<plan::Plan> batch;
  for (std::size_t i = 0; i < families.size(); ++i) {
    for (const Shape& shape : families[i].shapes) {
      batch.emplace_back(tables[i], shape, plan::Types{Dtype::bfloat16, Dtype::bfloat16});
    }
  }
  result.tensors = static_cast<std::int64_t>(batch.size());

  const Rank reader = families[0].target.mesh().ranks()[families[0].target.mesh().size() / 2];
  const Rank source = families[0].source.mesh().ranks()[families[0].source.mesh().size() / 2];
  for (const plan::Stream& stream : plan::read_streams(batch, reader)) {
    result.pieces += stream.parts.size();
  }
  result.read_ms = milliseconds([&] { compile_all(plan::read_streams(batch, reader), true); });
  result.serve_ms = milliseconds([&] { compile_all(plan::serve_streams(batch, source), false); });
  return result;
}

// A transformer of 125 layers with 8 tensors each: column-parallel, row-parallel and replicated.
std::vector<Family> large_model() {
  Family columns{parse_layout("8x16x8x4:R,S0,S1,S0"), parse_layout("16x8x4x2:R,S0,R,S0"), {}};
  Family rows{parse_layout("8x16x8x4:R,S0,S1,S0"), parse_layout("16x8x4x2:R,S1,R,S1"), {}};
  Family norms{parse_layout("8x16x8x4:R,S0,R,R"), parse_layout("16x8x4x2:R,R,R,R"), {}};
  for (int layer = 0; layer < 125; ++layer) {
    columns.shapes.insert(columns.shapes.end(),
                          {{8192, 8192}, {1024, 8192}, {1024, 8192}, {28672, 8192}, {28672, 8192}});
    rows.shapes.insert(rows.shapes.end(), {{8192, 8192}, {8192, 28672}});
    norms.shapes.push_back({8192});
  }
  return {columns, rows, norms};
}

// More ranks are more replicas: pieces stay the same.
Family growing_replicas(std::int64_t ranks) {
  const std::string groups = std::to_string(ranks / 16);
  return {parse_layout(groups + "x2x2x4:R,S0,S1,S0"), parse_layout(groups + "x4x2x2:R,S1,R,S0"),
          std::vector<Shape>(100, Shape{4096, 4096})};
}

// More ranks hold more: a rank's own part and its pieces stay the same.
Family growing_shards(std::int64_t ranks) {
  return {parse_layout(std::to_string(ranks) + ":S0"),
          parse_layout(std::to_string(ranks / 4) + "x4:S0,S1"),
          std::vector<Shape>(100, Shape{ranks * 64, 4096})};
}

std::vector<Result> measure_all() {
  std::vector<Result> results = {measure("model of 1,000 tensors", large_model())};
  for (std::int64_t ranks = 16; ranks <= 16384; ranks *= 4) {
    results.push_back(measure("replicas grow", {growing_replicas(ranks)}));
  }
  for (std::int64_t ranks = 16; ranks <= 16384; ranks *= 4) {
    results.push_back(measure("shards grow", {growing_shards(ranks)}));
  }
  return results;
}

void print(const std::vector<Result>& results) {
  fmt::print("{:<24}{:>8}{:>8}{:>9}{:>8}{:>11}{:>10}{:>10}\n", "case", "sources", "targets",
             "tensors", "pieces", "tables ms", "read ms", "serve ms");
  for (const Result& r : results) {
    fmt::print("{:<24}{:>8}{:>8}{:>9}{:>8}{:>11.2f}{:>10.2f}{:>10.2f}\n", r.name, r.source_ranks,
               r.target_ranks, r.tensors, r.pieces, r.tables_ms, r.read_ms, r.serve_ms);
  }
  fmt::print(
      "tables: the pass over all ranks; read, serve: all programs of one target, one source\n");
}

void write_json(const std::string& path, const std::vector<Result>& results) {
  std::ofstream file(path);
  file << "[\n";
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result& r = results[i];
    file << fmt::format(
        R"(  {{"name": "{}", "source_ranks": {}, "target_ranks": {}, "tensors": {}, "pieces": {}, )"
        R"("tables_ms": {:.4f}, "read_ms": {:.4f}, "serve_ms": {:.4f}}}{})",
        r.name, r.source_ranks, r.target_ranks, r.tensors, r.pieces, r.tables_ms, r.read_ms,
        r.serve_ms, i + 1 < results.size() ? ",\n" : "\n");
  }
  file << "]\n";
}

int main_(int argc, char** argv) {
  const std::string json = bench::json_option(argc, argv);
  const std::vector<Result> results = measure_all();
  print(results);
  if (!json.empty()) write_json(json, results);
  return 0;
}

}  // namespace
}  // namespace tensorbus

int main(int argc, char** argv) { return tensorbus::main_(argc, argv); }
