// The copy kernels against memcpy: how much of the speed of a plain copy that moves the same bytes
// through memory is left. Kernel and memcpy alternate in every round, so that both see the same
// weather; the ratios of the rounds give the median and its spread.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copy/execute.h"
#include "json_option.h"
#include "tensorbus/plan.h"

namespace tensorbus {
namespace {

constexpr std::int64_t mebibyte = std::int64_t{1} << 20;
constexpr int rounds = 16;

// Written once, so that no page fault falls into a measurement.
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes) : bytes_(new std::byte[static_cast<std::size_t>(bytes)]) {
    // 1.0 as float32 is no subnormal in any type that the benchmark reads.
    constexpr std::uint32_t one = 0x3F80'3F80;
    for (std::int64_t at = 0; at + 4 <= bytes; at += 4) std::memcpy(bytes_.get() + at, &one, 4);
  }
  std::byte* data() const { return bytes_.get(); }

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

// Rows of elements from a source pitch to a target pitch, in chunks as the bus moves them.
struct Rows {
  Dtype from = Dtype::float32;
  Dtype to = Dtype::float32;
  std::int64_t length = 0;
  std::int64_t count = 1;
  std::int64_t source_pitch = 0;
  std::int64_t target_pitch = 0;
};

plan::Program program_of(const Rows& rows, std::int64_t members = 1) {
  const auto row_bytes = rows.length * static_cast<std::int64_t>(item_bytes(rows.from));
  plan::Program program;
  for (Rank rank = 0; rank < members; ++rank) program.source.ranks.push_back(rank);
  if (members > 1) program.source.folds = {{ReduceOp::sum, members}};
  program.parts = {{0, 0, rows.from, rows.from, rows.to}};
  const std::int64_t at_once = std::max<std::int64_t>(1, plan::default_chunk_bytes / row_bytes);
  for (std::int64_t first = 0; first < rows.count; first += at_once) {
    plan::Run run;
    run.source = first * rows.source_pitch;
    run.target = first * rows.target_pitch;
    run.length = rows.length;
    run.rows = std::min(at_once, rows.count - first);
    run.source_row = rows.source_pitch;
    run.target_row = rows.target_pitch;
    program.runs.push_back(run);
    program.chunks.push_back(
        {program.runs.size() - 1, program.runs.size(), run.elements() * row_bytes / rows.length});
  }
  return program;
}

struct Case {
  std::string name;
  std::optional<double> aim;
  std::int64_t bytes_moved;  // read plus written by the kernel
  std::function<void()> kernel;
};

struct Result {
  double gigabytes_per_second;  // of the kernel, read plus written, median
  double ratio;                 // memcpy's time over the kernel's, median
  double low, high;             // quartiles of the ratio
};

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// Small work is repeated, so that the first pass, which finds the caches as the last case left
// them, does not count for much.
double seconds(std::int64_t bytes, const std::function<void()>& work) {
  const std::int64_t repeats = std::max<std::int64_t>(1, 64 * mebibyte / bytes);
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < repeats; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
         static_cast<double>(repeats);
}

std::vector<Result> measure(const std::vector<Case>& cases, const Buffer& from, const Buffer& to) {
  std::vector<std::vector<double>> ratios(cases.size());
  std::vector<std::vector<double>> times(cases.size());
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::int64_t bytes = cases[i].bytes_moved;
      const auto plain = [&] {
        return seconds(bytes, [&] {
          std::memcpy(to.data(), from.data(), static_cast<std::size_t>(bytes / 2));
        });
      };
      // Whoever goes second may find its data in a cache: they take turns.
      const double plain_first = round % 2 == 0 ? plain() : 0;
      const double kernel = seconds(bytes, cases[i].kernel);
      const double plain_time = round % 2 == 0 ? plain_first : plain();
      if (round < 0) continue;
      ratios[i].push_back(plain_time / kernel);
      times[i].push_back(kernel);
    }
  }
  std::vector<Result> results;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    results.push_back({static_cast<double>(cases[i].bytes_moved) / quantile(times[i], 0.5) / 1e9,
                       quantile(ratios[i], 0.5), quantile(ratios[i], 0.25),
                       quantile(ratios[i], 0.75)});
  }
  return results;
}

std::function<void()> copying(const Rows& rows, const std::byte* from, std::byte* to) {
  return [program = program_of(rows), from, to] {
    const copy::Sources members[] = {{&from, 1}};
    copy::execute(program, members, {&to, 1});
  };
}

std::vector<Case> all_cases(const Buffer& from, const Buffer& to) {
  std::vector<Case> cases;
  const std::byte* source = from.data();
  std::byte* target = to.data();
  for (const std::int64_t size : {1, 16, 256}) {
    const std::int64_t bytes = size * mebibyte;
    cases.push_back({fmt::format("contiguous, {} MiB", size), 0.95, 2 * bytes,
                     copying({.length = 262144,
                              .count = bytes / mebibyte,
                              .source_pitch = mebibyte,
                              .target_pitch = mebibyte},
                             source, target)});
  }
  // One (reader, source) pair of Shard(0) -> Shard(1) of 8192 x 8192 float32 over 2 and 2 ranks.
  cases.push_back(
      {"rows of 16 KiB, Shard(0) -> Shard(1)", 0.85, 2 * 64 * mebibyte,
       copying({.length = 4096, .count = 4096, .source_pitch = 32768, .target_pitch = 16384},
               source, target)});
  cases.push_back(
      {"rows of 16 KiB, Shard(1) -> Shard(0)", 0.85, 2 * 64 * mebibyte,
       copying({.length = 4096, .count = 4096, .source_pitch = 16384, .target_pitch = 32768},
               source, target)});
  cases.push_back(
      {"runs of 256 bytes, gathered", 0.5, 2 * 64 * mebibyte,
       copying({.length = 64, .count = 262144, .source_pitch = 1024, .target_pitch = 256}, source,
               target)});
  cases.push_back(
      {"runs of 256 bytes, scattered", 0.5, 2 * 64 * mebibyte,
       copying({.length = 64, .count = 262144, .source_pitch = 256, .target_pitch = 1024}, source,
               target)});
  const auto cast = [&](std::string_view name, Dtype a, Dtype b, std::optional<double> aim) {
    const std::int64_t elements = 32 * mebibyte;
    const auto width = static_cast<std::int64_t>(item_bytes(a));
    const auto moved = elements * (width + static_cast<std::int64_t>(item_bytes(b)));
    cases.push_back(
        {std::string(name), aim, moved,
         copying({.from = a,
                  .to = b,
                  .length = mebibyte / width,
                  .count = elements * width / mebibyte,
                  .source_pitch = mebibyte,
                  .target_pitch = mebibyte / width * static_cast<std::int64_t>(item_bytes(b))},
                 source, target)});
  };
  cast("float32 -> bfloat16", Dtype::float32, Dtype::bfloat16, 1.0);
  cast("bfloat16 -> float32", Dtype::bfloat16, Dtype::float32, 1.0);
  cast("float32 -> float16", Dtype::float32, Dtype::float16, 1.0);
  cast("float16 -> float32", Dtype::float16, Dtype::float32, 1.0);
  cast("bfloat16 -> float8_e4m3fn", Dtype::bfloat16, Dtype::float8_e4m3fn, std::nullopt);
  cast("float8_e4m3fn -> bfloat16", Dtype::float8_e4m3fn, Dtype::bfloat16, std::nullopt);
  const auto sum = [&](std::string_view name, Dtype dtype) {
    const std::int64_t bytes = 32 * mebibyte;
    const auto width = static_cast<std::int64_t>(item_bytes(dtype));
    cases.push_back({std::string(name), std::nullopt, 5 * bytes,
                     [program = program_of({.from = dtype,
                                            .to = dtype,
                                            .length = mebibyte / width,
                                            .count = bytes / mebibyte,
                                            .source_pitch = mebibyte,
                                            .target_pitch = mebibyte},
                                           4),
                      source, target, bytes] {
                       const std::byte* first[] = {source, source + bytes, source + 2 * bytes,
                                                   source + 3 * bytes};
                       const copy::Sources members[] = {
                           {first, 1}, {first + 1, 1}, {first + 2, 1}, {first + 3, 1}};
                       copy::execute(program, members, {&target, 1});
                     }});
  };
  sum("sum of 4, float32", Dtype::float32);
  sum("sum of 4, bfloat16", Dtype::bfloat16);
  return cases;
}

void print(const std::vector<Case>& cases, const std::vector<Result>& results) {
  fmt::print("{:<40}{:>8}{:>18}{:>8}{:>10}\n", "kernel", "ratio", "quartiles", "aim", "GB/s");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Result& result = results[i];
    fmt::print("{:<40}{:>8.2f}{:>18}{:>8}{:>10.1f}\n", cases[i].name, result.ratio,
               fmt::format("{:.2f} - {:.2f}", result.low, result.high),
               cases[i].aim ? fmt::format("{:.2f}", *cases[i].aim) : "",
               result.gigabytes_per_second);
  }
  fmt::print("ratio: time of a memcpy that reads and writes as many bytes / time of the kernel\n");
}

void write_json(const std::string& path, const std::vector<Case>& cases,
                const std::vector<Result>& results) {
  std::ofstream file(path);
  file << "[\n";
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Result& result = results[i];
    file << fmt::format(
        R"(  {{"name": "{}", "ratio": {:.4f}, "low": {:.4f}, "high": {:.4f}, "aim": {}, "gb_per_s": {:.3f}}}{})",
        cases[i].name, result.ratio, result.low, result.high,
        cases[i].aim ? fmt::format("{:.2f}", *cases[i].aim) : "null", result.gigabytes_per_second,
        i + 1 < cases.size() ? ",\n" : "\n");
  }
  file << "]\n";
}

int main_(int argc, char** argv) {
  const std::string json = bench::json_option(argc, argv);
  const Buffer from(256 * mebibyte);
  const Buffer to(256 * mebibyte);
  const std::vector<Case> cases = all_cases(from, to);
  const std::vector<Result> results = measure(cases, from, to);
  print(cases, results);
  if (!json.empty()) write_json(json, cases, results);
  return 0;
}

}  // namespace
}  // namespace tensorbus

int main(int argc, char** argv) { return tensorbus::main_(argc, argv); }
