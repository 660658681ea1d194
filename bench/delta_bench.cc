// What deltas cost and save: comparing while casting against casting alone, making and applying
// patches against copying everything, at shares of changed values from 0.01 % to 100 %. All is
// done by one thread. Told --turns it makes patches in turns with its caller (delta.py).
#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "copy/execute.h"
#include "copy/redistribute.h"
#include "delta/change/diff.h"
#include "delta/patch/apply.h"
#include "delta/patch/patch_writer.h"
#include "rows.h"
#include "tensorbus/plan.h"

namespace tensorbus {
namespace {

using bench::Row;

constexpr std::int64_t columns = 4096;
constexpr std::int64_t rows_of_weights = 8192;
constexpr std::int64_t elements = columns * rows_of_weights;
constexpr int rounds = 9;
const Shape shape = {rows_of_weights, columns};
const Shape dense_strides = plan::contiguous_strides(shape);
// An engine that has more than this tensor in each of its rows.
const Shape spread_strides = {columns + 32, 1};

// Written once, so that no page fault falls into a measurement; lines begin where vectors do.
class Memory {
 public:
  explicit Memory(std::size_t bytes)
      : first_(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))),
        size_(bytes) {
    std::memset(first_.get(), 0, bytes);
  }
  std::byte* data() const { return first_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> first_;
  std::size_t size_;
};

TensorView view(const Memory& memory, Dtype dtype, const Shape& strides = dense_strides) {
  return {memory.data(), dtype, shape, strides};
}

// The program of a reader that gets the whole tensor.
plan::Program program_for(const Shape& target_strides) {
  const Layout one(Mesh({1}), {Replicate{}});
  const plan::Plan batch[] = {plan::make(one, one, shape, {Dtype::bfloat16, Dtype::bfloat16})};
  const plan::Strides source = {dense_strides};
  const plan::Strides target = {target_strides};
  return plan::compile(plan::read_streams(batch, 0).front(), &source, &target);
}

// Two versions of which a share differs by one in the last place of bfloat16.
class Versions {
 public:
  explicit Versions(double share) {
    std::mt19937_64 random(1);
    for (std::int64_t i = 0; i < elements; ++i) {
      put(before, i, weight(random()));
      put(after, i, weight_at(before, i));
    }
    std::geometric_distribution<std::int64_t> unchanged(std::clamp(share, 1e-12, 1 - 1e-12));
    const auto skip = [&] { return share >= 1 ? 0 : unchanged(random); };
    for (std::int64_t i = share > 0 ? skip() : elements; i < elements; i += 1 + skip()) {
      put(after, i, weight_at(before, i) ^ 1U << 16);
      ++changed;
    }
    copy::copy_tensor(view(before, Dtype::float32), view(published, Dtype::bfloat16));
    copy::copy_tensor(view(after, Dtype::float32), view(narrow, Dtype::bfloat16));
  }

  // float32, as it is trained
  Memory before{4 * elements};
  Memory after{4 * elements};
  // bfloat16: the version before, as it was published, and the one after, as it could be trained
  Memory published{2 * elements};
  Memory narrow{2 * elements};
  std::int64_t changed = 0;

 private:
  // Of the size that weights have.
  static std::uint32_t weight(std::uint64_t bits) {
    return static_cast<std::uint32_t>(0x3C00 + (bits & 0x1FF) + (bits >> 20 & 0x8000)) << 16;
  }
  static std::uint32_t weight_at(const Memory& memory, std::int64_t i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, memory.data() + 4 * i, 4);
    return bits;
  }
  static void put(const Memory& memory, std::int64_t i, std::uint32_t bits) {
    std::memcpy(memory.data() + 4 * i, &bits, 4);
  }
};

template <typename Work>
double milliseconds(const Work& work) {
  const TimePoint start = now();
  work();
  return 1e3 * bench::seconds_since(start);
}

// Everything that happens to a version.
class Delta {
 public:
  explicit Delta(const Versions& versions) : versions_(versions) {
    diff(Dtype::float32);
    patch_.resize(writer().bytes());
    write();
  }

  void cast() const {
    copy::copy_tensor(view(versions_.after, Dtype::float32), view(slot_, Dtype::bfloat16));
  }
  void copy() const {
    const std::byte* const from[] = {versions_.narrow.data()};
    std::byte* const to[] = {target_.data()};
    const copy::Sources members[] = {from};
    copy::execute(dense_program_, members, to);
  }
  void diff(Dtype from) {
    const Memory& trained = from == Dtype::float32 ? versions_.after : versions_.narrow;
    const delta::Comparison comparison{view(trained, from), view(slot_, Dtype::bfloat16),
                                       versions_.published.data(), &changes_[0]};
    delta::diff_each({&comparison, 1}, alone_);
  }
  void merge() { since_[0] |= changes_[0]; }
  // As often as asked for; the buffer stays, as that of a pool does.
  void write() {
    const delta::PatchWriter made = writer();
    const std::byte* const from[] = {slot_.data()};
    made.write({1, 1, 2, 3}, from, std::span(patch_).first(made.bytes()));
  }
  void check() const { delta::CheckedPatch(patch_, dense_.parts()); }
  void apply(const delta::Packed& packed) {
    const delta::CheckedPatch patch(patch_, packed.parts());
    std::byte* const to[] = {target_.data()};
    delta::apply(patch, packed, to, alone_);
  }
  void apply_dense() { apply(dense_); }
  void apply_spread() { apply(spread_); }

  std::size_t patch_bytes() const { return patch_.size(); }
  const Memory& slot() const { return slot_; }

 private:
  delta::PatchWriter writer() const { return {source_, changes_}; }

  const Versions& versions_;
  copy::Crew alone_;
  Memory slot_{2 * elements};
  Memory target_{2 * rows_of_weights * (columns + 32)};
  plan::Program dense_program_ = program_for(dense_strides);
  plan::Program spread_program_ = program_for(spread_strides);
  delta::Packed source_{dense_program_, plan::BoundSide::source};
  delta::Packed dense_{dense_program_, plan::BoundSide::target};
  delta::Packed spread_{spread_program_, plan::BoundSide::target};
  delta::Changes changes_ = {delta::Bitmap(elements)};
  delta::Changes since_ = {delta::Bitmap(elements)};
  std::vector<std::byte> patch_;
};

// XOR of both versions, compressed fast: what others send. Found at run time, or not at all.
class XorAndZstd {
 public:
  XorAndZstd() : library_(::dlopen("libzstd.so.1", RTLD_NOW)) {
    if (library_ == nullptr) return;
    compress_ = reinterpret_cast<Compress>(::dlsym(library_, "ZSTD_compress"));
    bound_ = reinterpret_cast<Bound>(::dlsym(library_, "ZSTD_compressBound"));
  }

  explicit operator bool() const { return compress_ != nullptr && bound_ != nullptr; }

  std::size_t run(const Versions& versions) {
    if (out_.empty()) out_.resize(bound_(different_.size()));
    for (std::size_t at = 0; at < different_.size(); at += 8) {
      std::uint64_t words[2];
      std::memcpy(&words[0], versions.published.data() + at, 8);
      std::memcpy(&words[1], versions.narrow.data() + at, 8);
      words[0] ^= words[1];
      std::memcpy(different_.data() + at, &words[0], 8);
    }
    return compress_(out_.data(), out_.size(), different_.data(), different_.size(), 1);
  }

 private:
  using Compress = std::size_t (*)(void*, std::size_t, const void*, std::size_t, int);
  using Bound = std::size_t (*)(std::size_t);

  void* library_;
  Compress compress_ = nullptr;
  Bound bound_ = nullptr;
  Memory different_{2 * elements};
  std::vector<std::byte> out_;
};

double entropy_bytes(double share, std::int64_t changed) {
  const double bits =
      share <= 0 || share >= 1 ? 0 : -share * std::log2(share) - (1 - share) * std::log2(1 - share);
  return static_cast<double>(elements) * bits / 8 + 2 * static_cast<double>(changed);
}

std::string named(std::string_view what, double share) {
  return fmt::format("{}, {:g} %", what, 100 * share);
}

// Of all rounds alike.
Row fixed(std::string name, std::string against, std::string unit, double floor, double value) {
  Row row{std::move(name), std::move(against), std::move(unit), floor, value, {value / floor}};
  return row;
}

std::optional<double> most_of_bound(double share) {
  if (share == 0.001) return 1.3;
  return share >= 0.005 && share <= 0.05 ? std::optional(1.1) : std::nullopt;
}

std::optional<double> most_of_copy(double share) {
  if (share == 0.001) return 0.1;
  return share == 0.01 ? std::optional(0.6) : std::nullopt;
}

void measure_share(double share, XorAndZstd& zstd, std::vector<Row>& rows) {
  const Versions versions(share);
  Delta delta(versions);
  const auto cast = [&] { return milliseconds([&] { delta.cast(); }); };
  const auto copy = [&] { return milliseconds([&] { delta.copy(); }); };
  const auto against = [&](std::string_view name, std::string_view floor, const auto& floor_work,
                           const auto& work, std::optional<double> at_most = {}) {
    Row row{named(name, share), std::string(floor), "ms"};
    row.at_most = at_most;
    rows.push_back(
        bench::measure(row, rounds, floor_work, [&] { return milliseconds([&] { work(); }); }));
  };
  against(
      "diff float32 -> bfloat16", "cast alone", cast, [&] { delta.diff(Dtype::float32); }, 1.2);
  against("diff bfloat16", "copy", copy, [&] { delta.diff(Dtype::bfloat16); });
  against("make a patch", "copy", copy, [&] { delta.write(); });
  against("check a patch", "copy", copy, [&] { delta.check(); });
  against(
      "check and apply", "copy", copy, [&] { delta.apply_dense(); }, most_of_copy(share));
  const auto dense = [&] { return milliseconds([&] { delta.apply_dense(); }); };
  against(
      "check and apply, rows apart", "side by side", dense, [&] { delta.apply_spread(); },
      share <= 0.03 ? std::optional(1.3) : std::nullopt);
  against("bitmap of another version", "copy", copy, [&] { delta.merge(); });
  const auto bytes = static_cast<double>(delta.patch_bytes());
  if (share > 0) {
    Row row = fixed(named("bytes of a patch", share), "entropy", "MB",
                    entropy_bytes(share, versions.changed) / 1e6, bytes / 1e6);
    row.at_most = most_of_bound(share);
    rows.push_back(row);
  }
  // If all values differ in the same bit, anything is small once it is compressed.
  if (!zstd || share >= 1) return;
  std::size_t compressed = 0;
  const auto others = [&] { return milliseconds([&] { compressed = zstd.run(versions); }); };
  against(
      "diff bfloat16, make a patch", "XOR + zstd -1", others,
      [&] { delta.diff(Dtype::bfloat16), delta.write(); }, 1);
  rows.push_back(fixed(named("bytes of a patch", share), "XOR + zstd -1", "MB",
                       static_cast<double>(compressed) / 1e6, bytes / 1e6));
}

// A line with the share, then a line for each turn; each is answered when it is done.
int take_turns() {
  double share = 0;
  if (!(std::cin >> share)) return 2;
  const Versions versions(share);
  Delta delta(versions);
  fmt::print("{} {}\n", elements, delta.patch_bytes());
  std::fflush(stdout);
  for (std::string line; std::cin >> line;) {
    fmt::print("{:.6f}\n", milliseconds([&] { delta.diff(Dtype::bfloat16), delta.write(); }));
    std::fflush(stdout);
  }
  return 0;
}

int main_(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--turns") return take_turns();
  XorAndZstd zstd;
  if (!zstd) fmt::print("libzstd.so.1 was not found: no rows against it\n");
  std::vector<Row> rows;
  for (const double share : {0.0, 0.0001, 0.001, 0.005, 0.01, 0.03, 0.1, 0.5, 1.0}) {
    measure_share(share, zstd, rows);
  }
  return bench::report(rows, argc, argv);
}

}  // namespace
}  // namespace tensorbus

int main(int argc, char** argv) { return tensorbus::main_(argc, argv); }
