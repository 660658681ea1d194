#include "copy/execute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "copy/cast.h"
#include "tensorbus/status.h"

namespace tensorbus::copy {
namespace {

using Bytes = std::vector<std::byte>;
using plan::Program;
using plan::ProgramPart;
using plan::Run;

// Programs made at random, without a planner: any geometry the types allow, not only those that
// layouts give.
class RandomProgram {
 public:
  explicit RandomProgram(unsigned seed) : random_(seed) {
    program_.source.ranks = {0};
    const std::size_t parts = 1 + below(3);
    for (std::size_t part = 0; part < parts; ++part) add_part(any_convertible(), any_convertible());
    finish();
  }

  RandomProgram(unsigned seed, Dtype from, Dtype to, std::vector<plan::Fold> folds)
      : random_(seed) {
    std::int64_t members = 1;
    for (const plan::Fold& fold : folds) members *= fold.count;
    for (Rank rank = 0; rank < members; ++rank) program_.source.ranks.push_back(rank);
    program_.source.folds = std::move(folds);
    reducing_ = true;
    add_part(from, to);
    finish();
  }

  const Program& program() const { return program_; }
  std::size_t below(std::size_t end) { return random_() % end; }

  // Tensors as large as the runs need, filled with small values of the part's type.
  std::vector<Bytes> random_sources() {
    std::vector<Bytes> tensors;
    for (std::size_t part = 0; part < program_.parts.size(); ++part) {
      const Dtype dtype = program_.parts[part].source;
      Bytes& tensor = tensors.emplace_back(static_cast<std::size_t>(source_bytes_[part]));
      const Cast cast = cast_between(Dtype::int32, dtype);
      for (std::size_t at = 0; at + item_bytes(dtype) <= tensor.size(); at += item_bytes(dtype)) {
        const auto value = static_cast<std::int32_t>(below(9)) - (dtype == Dtype::uint8 ? 0 : 4);
        cast.steps(reinterpret_cast<const std::byte*>(&value), 0, tensor.data() + at, 0, 1);
      }
    }
    return tensors;
  }

  std::vector<Bytes> empty_targets() const {
    std::vector<Bytes> tensors;
    for (const std::int64_t bytes : target_bytes_) {
      tensors.emplace_back(static_cast<std::size_t>(bytes), std::byte{0xA5});
    }
    return tensors;
  }

 private:
  Dtype any_convertible() { return all_dtypes()[below(12)]; }

  void add_part(Dtype from, Dtype to) {
    const bool narrower_source = item_bytes(from) <= item_bytes(to);
    const std::size_t part = program_.parts.size();
    program_.parts.push_back({part, part, from, reducing_ || narrower_source ? from : to, to});
    source_bytes_.push_back(0);
    target_bytes_.push_back(0);
    for (std::size_t runs = 1 + below(5); runs > 0; --runs) add_run(part);
  }

  void add_run(std::size_t part) {
    const ProgramPart& types = program_.parts[part];
    const auto from = static_cast<std::int64_t>(item_bytes(types.source));
    const auto to = static_cast<std::int64_t>(item_bytes(types.target));
    Run run;
    run.part = part;
    const std::size_t lengths[] = {1, 2, 3, 5, 16, 64, 65, 700, 3000};
    run.length = static_cast<std::int64_t>(lengths[below(std::size(lengths))]);
    run.rows = static_cast<std::int64_t>(1 + below(run.length > 100 ? 4 : 70));
    run.planes = static_cast<std::int64_t>(1 + below(run.rows > 10 ? 3 : 40));
    // Dense or with gaps; the source may also repeat itself.
    run.target_row = (run.length + gap()) * to;
    run.target_plane = run.target_row * run.rows + gap() * to;
    run.source_row = below(8) == 0 ? 0 : (run.length + gap()) * from;
    run.source_plane = below(4) == 0 ? from : run.source_row * run.rows + gap() * from;
    run.source = source_bytes_[part];
    run.target = target_bytes_[part];
    if (below(4) == 0) transpose(run, to);
    source_bytes_[part] += run.source_row * (run.rows - 1) + run.source_plane * (run.planes - 1) +
                           (run.length + gap()) * from;
    target_bytes_[part] += run.target_row * (run.rows - 1) + run.target_plane * (run.planes - 1) +
                           (run.length + gap()) * to;
    program_.runs.push_back(run);
  }

  static void transpose(Run& run, std::int64_t item) {
    run.length = 1;
    run.target_row = run.planes * item;
    run.target_plane = item;
  }

  std::int64_t gap() { return below(2) == 0 ? 0 : static_cast<std::int64_t>(below(5)); }

  // Chunks of a few runs, with the gaps that alignment leaves between them.
  void finish() {
    std::size_t first = 0;
    while (first < program_.runs.size()) {
      const std::size_t end = std::min(program_.runs.size(), first + 1 + below(3));
      std::int64_t wire = 0;
      for (std::size_t at = first; at < end; ++at) {
        Run& run = program_.runs[at];
        run.wire = wire;
        wire +=
            run.elements() * static_cast<std::int64_t>(item_bytes(program_.parts[run.part].wire));
        if (below(2) == 0) wire += 15 - (wire + 15) % 16;
      }
      program_.chunks.push_back({first, end, wire});
      first = end;
    }
  }

  std::mt19937 random_;
  Program program_;
  bool reducing_ = false;
  std::vector<std::int64_t> source_bytes_;
  std::vector<std::int64_t> target_bytes_;
};

std::vector<const std::byte*> firsts(const std::vector<Bytes>& tensors) {
  std::vector<const std::byte*> pointers;
  for (const Bytes& tensor : tensors) pointers.push_back(tensor.data());
  return pointers;
}

std::vector<std::byte*> firsts(std::vector<Bytes>& tensors) {
  std::vector<std::byte*> pointers;
  for (Bytes& tensor : tensors) pointers.push_back(tensor.data());
  return pointers;
}

// The meaning of a run, one element at a time.
template <typename Visit>
void for_each_element(const Program& program, Visit visit) {
  for (const Run& run : program.runs) {
    const ProgramPart& part = program.parts[run.part];
    for (std::int64_t plane = 0; plane < run.planes; ++plane) {
      for (std::int64_t row = 0; row < run.rows; ++row) {
        for (std::int64_t column = 0; column < run.length; ++column) {
          const auto from = static_cast<std::int64_t>(item_bytes(part.source));
          const auto to = static_cast<std::int64_t>(item_bytes(part.target));
          visit(part, run.source + plane * run.source_plane + row * run.source_row + column * from,
                run.target + plane * run.target_plane + row * run.target_row + column * to);
        }
      }
    }
  }
}

// proves: B4.3
TEST(Execute, EveryWayThroughAProgramGivesWhatItsRunsMean) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    RandomProgram random(seed);
    const Program& program = random.program();
    const std::vector<Bytes> sources = random.random_sources();

    std::vector<Bytes> expected = random.empty_targets();
    for_each_element(program, [&](const ProgramPart& part, std::int64_t from, std::int64_t to) {
      scalar_cast_between(part.source, part.target)
          .steps(sources[part.source_tensor].data() + from, 0,
                 expected[part.target_tensor].data() + to, 0, 1);
    });

    std::vector<Bytes> direct = random.empty_targets();
    std::vector<Bytes> bypassing = random.empty_targets();
    std::vector<Bytes> packed = random.empty_targets();
    for (const plan::Chunk& chunk : program.chunks) {
      copy_chunk(program, chunk, firsts(sources), firsts(direct));
      copy_chunk(program, chunk, firsts(sources), firsts(bypassing), Caches::bypass);
      Bytes wire(static_cast<std::size_t>(chunk.wire_bytes));
      gather_chunk(program, chunk, firsts(sources), wire);
      scatter_chunk(program, chunk, wire, firsts(packed));
    }
    ASSERT_EQ(direct, expected) << "seed " << seed;
    ASSERT_EQ(bypassing, expected) << "seed " << seed;
    ASSERT_EQ(packed, expected) << "seed " << seed;
  }
}

// However many threads there are: bit for bit, and nothing beside it.
void expect_same_with_threads(RandomProgram& random, std::span<const Sources> sources,
                              const std::vector<Bytes>& expected) {
  for (std::size_t threads = 1; threads <= most_threads; ++threads) {
    Crew crew(threads);
    std::vector<Bytes> shared = random.empty_targets();
    execute(random.program(), sources, firsts(shared), crew);
    ASSERT_EQ(shared, expected) << threads << " threads";
  }
}

// proves: L5.1
TEST(Execute, ThreadsThatShareAProgramGiveTheSameBytes) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    RandomProgram random(seed);
    const std::vector<Bytes> tensors = random.random_sources();
    const std::vector<const std::byte*> pointers = firsts(tensors);
    const Sources member(pointers);
    std::vector<Bytes> expected = random.empty_targets();
    execute(random.program(), {&member, 1}, firsts(expected));
    expect_same_with_threads(random, {&member, 1}, expected);
  }
}

// One element at a time in double, which is exact for the small values of the tests.
double fold_naively(const std::vector<plan::Fold>& folds, std::vector<double> values) {
  for (const plan::Fold& fold : folds) {
    std::vector<double> next;
    for (std::size_t first = 0; first < values.size(); first += fold.count) {
      double result = values[first];
      for (std::int64_t i = 1; i < fold.count; ++i) {
        const double value = values[first + static_cast<std::size_t>(i)];
        if (fold.op == ReduceOp::max) result = std::max(result, value);
        if (fold.op == ReduceOp::min) result = std::min(result, value);
        if (fold.op == ReduceOp::product) result *= value;
        if (fold.op == ReduceOp::sum || fold.op == ReduceOp::avg) result += value;
      }
      next.push_back(fold.op == ReduceOp::avg ? result / static_cast<double>(fold.count) : result);
    }
    values = next;
  }
  return values.front();
}

struct ReductionCase {
  Dtype from;
  Dtype to;
  std::vector<plan::Fold> folds;
};

class ReduceTest : public testing::TestWithParam<ReductionCase> {};

// proves: B4.2
TEST_P(ReduceTest, DirectAndPackedGiveTheFoldOfEveryElement) {
  const auto& [from_type, to_type, folds] = GetParam();
  for (unsigned seed = 0; seed < 6; ++seed) {
    RandomProgram random(seed, from_type, to_type, folds);
    const Program& program = random.program();
    std::vector<std::vector<Bytes>> members;
    std::vector<std::vector<const std::byte*>> pointers;
    for (std::size_t i = 0; i < program.source.ranks.size(); ++i) {
      members.push_back(random.random_sources());
      pointers.push_back(firsts(std::as_const(members.back())));
    }
    const std::vector<Sources> sources(pointers.begin(), pointers.end());

    std::vector<Bytes> expected = random.empty_targets();
    for_each_element(program, [&](const ProgramPart& part, std::int64_t from, std::int64_t to) {
      std::vector<double> values;
      for (const std::vector<Bytes>& member : members) {
        double& value = values.emplace_back();
        cast_between(part.source, Dtype::float64)
            .steps(member[0].data() + from, 0, reinterpret_cast<std::byte*>(&value), 0, 1);
      }
      const double result = fold_naively(folds, values);
      cast_between(Dtype::float64, part.target)
          .steps(reinterpret_cast<const std::byte*>(&result), 0, expected[0].data() + to, 0, 1);
    });

    std::vector<Bytes> direct = random.empty_targets();
    execute(program, sources, firsts(direct));
    ASSERT_EQ(direct, expected) << "seed " << seed;
    expect_same_with_threads(random, sources, expected);

    std::vector<Bytes> packed = random.empty_targets();
    for (const plan::Chunk& chunk : program.chunks) {
      std::vector<Bytes> wires;
      for (const Sources& source : sources) {
        gather_chunk(program, chunk, source,
                     wires.emplace_back(static_cast<std::size_t>(chunk.wire_bytes)));
      }
      const std::vector<std::span<const std::byte>> views(wires.begin(), wires.end());
      reduce_packed_chunk(program, chunk, views, firsts(packed));
    }
    ASSERT_EQ(packed, expected) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ReduceTest,
    testing::Values(
        ReductionCase{Dtype::float32, Dtype::float32, {{ReduceOp::sum, 4}}},
        ReductionCase{Dtype::bfloat16, Dtype::float32, {{ReduceOp::sum, 3}}},
        ReductionCase{Dtype::float16, Dtype::bfloat16, {{ReduceOp::avg, 4}}},
        ReductionCase{Dtype::float64, Dtype::float64, {{ReduceOp::avg, 2}, {ReduceOp::sum, 3}}},
        ReductionCase{Dtype::float32, Dtype::float16, {{ReduceOp::sum, 2}, {ReduceOp::avg, 2}}},
        ReductionCase{Dtype::int8, Dtype::int64, {{ReduceOp::product, 3}}},
        ReductionCase{Dtype::uint8, Dtype::int16, {{ReduceOp::sum, 2}, {ReduceOp::sum, 2}}},
        ReductionCase{Dtype::bool_, Dtype::bool_, {{ReduceOp::max, 3}}},
        ReductionCase{Dtype::float8_e5m2, Dtype::float32, {{ReduceOp::min, 3}}}));

// proves: B4.2
TEST(Reduce, SumsOf64BitIntegersWrap) {
  Program program;
  program.source = {{0, 1}, {{ReduceOp::sum, 2}}};
  program.parts = {{0, 0, Dtype::int64, Dtype::int64, Dtype::int64}};
  program.runs = {{.length = 1}};
  program.chunks = {{0, 1, 8}};
  const std::int64_t highest = std::numeric_limits<std::int64_t>::max();
  const std::int64_t one = 1;
  std::int64_t result = 0;
  const std::byte* first[] = {reinterpret_cast<const std::byte*>(&highest)};
  const std::byte* second[] = {reinterpret_cast<const std::byte*>(&one)};
  std::byte* target[] = {reinterpret_cast<std::byte*>(&result)};
  const Sources members[] = {first, second};
  execute(program, members, target);
  EXPECT_EQ(result, std::numeric_limits<std::int64_t>::min());
}

// proves: L5.1
TEST(Reduce, ThreadsDoNotChangeHowASumIsRounded) {
  constexpr std::size_t members = 5;
  constexpr std::size_t length = 3000;
  constexpr std::size_t rows = 64;
  Program program;
  program.source.folds = {{ReduceOp::sum, members}};
  program.parts = {{0, 0, Dtype::bfloat16, Dtype::bfloat16, Dtype::float32}};
  std::mt19937 random(7);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto at = static_cast<std::int64_t>(row * length);
    program.runs.push_back({.source = 2 * at, .target = 4 * at, .length = length});
    program.chunks.push_back({row, row + 1, 2 * length});
  }
  std::vector<Bytes> tensors;
  std::vector<std::vector<const std::byte*>> pointers;
  for (std::size_t member = 0; member < members; ++member) {
    program.source.ranks.push_back(static_cast<Rank>(member));
    Bytes& tensor = tensors.emplace_back(2 * length * rows);
    // Every exponent of a normal number: sums that lose bits.
    for (std::size_t at = 0; at < tensor.size(); at += 2) {
      tensor[at] = static_cast<std::byte>(random());
      tensor[at + 1] = static_cast<std::byte>(random() % 0x3F + 0x20);
    }
    pointers.push_back({tensor.data()});
  }
  const std::vector<Sources> sources(pointers.begin(), pointers.end());
  const auto sum_with = [&](std::size_t threads) {
    Crew crew(threads);
    Bytes sum(4 * length * rows);
    std::byte* const target[] = {sum.data()};
    execute(program, sources, target, crew);
    return sum;
  };
  const Bytes expected = sum_with(1);
  for (std::size_t threads = 2; threads <= most_threads; ++threads) {
    EXPECT_EQ(sum_with(threads), expected) << threads << " threads";
  }
}

TEST(Execute, ABufferThatIsTooSmallIsAnErrorAndNotAnOverrun) {
  RandomProgram random(1);
  const Program& program = random.program();
  const plan::Chunk& chunk = program.chunks.front();
  const std::vector<Bytes> sources = random.random_sources();
  Bytes wire(static_cast<std::size_t>(chunk.wire_bytes) - 1);
  EXPECT_THROW(gather_chunk(program, chunk, firsts(sources), wire), Error);
  std::vector<Bytes> targets = random.empty_targets();
  EXPECT_THROW(scatter_chunk(program, chunk, wire, firsts(targets)), Error);
}

}  // namespace
}  // namespace tensorbus::copy
