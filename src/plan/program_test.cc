#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "plan/testing/random_case.h"
#include "tensorbus/plan.h"
#include "tensorbus/status.h"

namespace tensorbus::plan {
namespace {

// One byte stands for the first byte of an element, so all types have the same tests.
using Memory = std::vector<std::int64_t>;

template <typename Visit>
void for_each_element(const Program& program, const Run& run, Visit visit) {
  const ProgramPart& part = program.parts[run.part];
  std::int64_t wire = run.wire;
  for (std::int64_t plane = 0; plane < run.planes; ++plane) {
    for (std::int64_t row = 0; row < run.rows; ++row) {
      for (std::int64_t i = 0; i < run.length; ++i) {
        visit(run.source + plane * run.source_plane + row * run.source_row +
                  i * static_cast<std::int64_t>(item_bytes(part.source)),
              wire,
              run.target + plane * run.target_plane + row * run.target_row +
                  i * static_cast<std::int64_t>(item_bytes(part.target)));
        wire += static_cast<std::int64_t>(item_bytes(part.wire));
      }
    }
  }
}

std::int64_t extent(const Shape& shape, const Shape& strides, Dtype dtype) {
  std::int64_t last = 1;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) last += shape[dim] * strides[dim];
  return last * static_cast<std::int64_t>(item_bytes(dtype));
}

// The local tensors of one rank over a batch, filled with the number of their global element.
struct Local {
  Strides strides;
  std::vector<Memory> tensors;
};

Local make_local(RandomCase& random, std::span<const Plan> batch, bool source_side, Rank rank) {
  Local local;
  for (const Plan& plan : batch) {
    const Layout& layout = source_side ? plan.source() : plan.target();
    const Dtype dtype = source_side ? plan.types().source : plan.types().target;
    const Holding holding = layout.holding(plan.shape(), rank);
    const Shape shape = holding.local_shape();
    local.strides.push_back(random.strides(shape));
    local.tensors.emplace_back(static_cast<std::size_t>(extent(shape, local.strides.back(), dtype)),
                               -1);
    if (!source_side || element_count(shape) == 0) continue;
    std::vector<std::pair<std::int64_t, std::int64_t>> elements = {{0, 0}};  // place, number
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      std::vector<std::pair<std::int64_t, std::int64_t>> next;
      for (const auto& [place, number] : elements) {
        std::int64_t at = place;
        for (const Interval& interval : holding.dims[dim]) {
          for (std::int64_t i = interval.begin; i < interval.end; ++i) {
            next.emplace_back(at, number * plan.shape()[dim] + i);
            at += local.strides.back()[dim];
          }
        }
      }
      elements = std::move(next);
    }
    for (const auto& [place, number] : elements) {
      local.tensors.back()[static_cast<std::size_t>(place) * item_bytes(dtype)] = number;
    }
  }
  return local;
}

std::vector<Plan> random_batch(RandomCase& random) {
  constexpr Dtype types[] = {Dtype::float64, Dtype::float32, Dtype::bfloat16, Dtype::int8};
  const Layout source = random.layout(1, false);
  const Layout target = random.layout(1, false);
  const Tables tables(source, target, random.hosts(source, target));
  std::vector<Plan> batch;
  while (batch.size() < 3) {
    Shape shape = random.shape(4);
    if (shape.empty()) shape = {5};
    batch.emplace_back(tables, shape, Types{types[random.below(4)], types[random.below(4)]});
  }
  return batch;
}

void copy(const Program& program, const Local& source, Local& target) {
  for (const Run& run : program.runs) {
    const ProgramPart& part = program.parts[run.part];
    for_each_element(program, run, [&](auto from, auto, auto to) {
      target.tensors[part.target_tensor].at(static_cast<std::size_t>(to)) =
          source.tensors[part.source_tensor].at(static_cast<std::size_t>(from));
    });
  }
}

Memory pack(const Program& program, const Chunk& chunk, const Local& source) {
  Memory wire(static_cast<std::size_t>(chunk.wire_bytes), -1);
  for (const Run& run : program.runs_of(chunk)) {
    const Memory& tensor = source.tensors[program.parts[run.part].source_tensor];
    for_each_element(program, run, [&](auto from, auto at, auto) {
      wire.at(static_cast<std::size_t>(at)) = tensor.at(static_cast<std::size_t>(from));
    });
  }
  return wire;
}

void scatter(const Program& program, const Chunk& chunk, const Memory& wire, Local& target) {
  for (const Run& run : program.runs_of(chunk)) {
    Memory& tensor = target.tensors[program.parts[run.part].target_tensor];
    for_each_element(program, run, [&](auto, auto at, auto to) {
      tensor.at(static_cast<std::size_t>(to)) = wire.at(static_cast<std::size_t>(at));
    });
  }
}

// Every program direct, and packed chunk by chunk and scattered: targets are the same and right.
TEST(Program, PackingAndScatteringChunksIsTheDirectCopy) {
  RandomCase random(21);
  for (int round = 0; round < 150; ++round) {
    const std::vector<Plan> batch = random_batch(random);
    const std::int64_t chunk_bytes = part_alignment * (1 + random.below(8));
    const Layout& source_layout = batch[0].source();
    const Layout& target_layout = batch[0].target();
    SCOPED_TRACE(to_string(source_layout) + " -> " + to_string(target_layout));
    std::map<Rank, Local> sources;
    for (const Rank rank : source_layout.mesh().ranks()) {
      sources[rank] = make_local(random, batch, true, rank);
    }
    for (const Rank reader : target_layout.mesh().ranks()) {
      Local direct = make_local(random, batch, false, reader);
      Local scattered = direct;
      for (const Stream& stream : read_streams(batch, reader, chunk_bytes)) {
        const Local& source = sources[stream.source.ranks.front()];
        const Program both = compile(stream, &source.strides, &direct.strides);
        copy(both, source, direct);
        const Program packing = compile(stream, &source.strides, nullptr);
        const Program scattering = compile(stream, nullptr, &direct.strides);
        ASSERT_EQ(packing.chunks.size(), scattering.chunks.size());
        // Backwards: chunks do not depend on each other.
        for (std::size_t i = packing.chunks.size(); i-- > 0;) {
          ASSERT_LE(packing.chunks[i].wire_bytes, chunk_bytes);
          const Memory wire = pack(packing, packing.chunks[i], source);
          ASSERT_EQ(wire, pack(both, both.chunks[i], source));
          scatter(scattering, scattering.chunks[i], wire, scattered);
        }
      }
      EXPECT_EQ(direct.tensors, scattered.tensors);
      for (std::size_t tensor = 0; tensor < batch.size(); ++tensor) {
        std::int64_t written = 0;
        for (const std::int64_t value : direct.tensors[tensor]) written += value >= 0 ? 1 : 0;
        EXPECT_EQ(written, element_count(target_layout.local_shape(batch[tensor].shape(), reader)));
      }
    }
  }
}

TEST(Stream, BothSidesComputeTheSame) {
  RandomCase random(22);
  for (int round = 0; round < 150; ++round) {
    const std::vector<Plan> batch = random_batch(random);
    std::vector<Stream> read;
    std::vector<Stream> served;
    for (const Rank rank : batch[0].target().mesh().ranks()) {
      for (Stream& stream : read_streams(batch, rank)) read.push_back(std::move(stream));
    }
    for (const Rank rank : batch[0].source().mesh().ranks()) {
      for (Stream& stream : serve_streams(batch, rank)) served.push_back(std::move(stream));
    }
    ASSERT_EQ(read.size(), served.size());
    for (const Stream& stream : served) EXPECT_THAT(read, testing::Contains(stream));
  }
}

Program compile_whole(const char* source, const char* target, Shape shape, Rank reader,
                      std::int64_t chunk_bytes) {
  const std::vector<Plan> batch = {make(parse_layout(source), parse_layout(target),
                                        std::move(shape), {Dtype::float32, Dtype::float32})};
  const Stream stream = read_streams(batch, reader, chunk_bytes).at(0);
  const Strides from = {contiguous_strides(stream.parts[0].source_shape)};
  const Strides to = {contiguous_strides(stream.parts[0].target_shape)};
  return compile(stream, &from, &to);
}

TEST(Program, RowsOfAReshardedMatrixAreOneRun) {
  const Program program = compile_whole("4:S0", "4:S1", {8192, 8192}, 1, 1 << 30);
  ASSERT_EQ(program.runs.size(), 1U);
  plan::Run expected;
  expected.source = 2048 * 4;
  expected.length = 2048;
  expected.rows = 2048;
  expected.source_row = 8192 * 4;
  expected.target_row = 2048 * 4;
  EXPECT_EQ(program.runs[0], expected);
}

TEST(Program, ContiguousDataIsOneRunPerChunk) {
  const Program program = compile_whole("2:S0", "4:S0", {1024, 32, 32}, 2, 1 << 20);
  EXPECT_EQ(program.chunks.size(), 1U);
  EXPECT_EQ(program.runs.size(), 1U);
  const Program cut = compile_whole("2:S0", "4:S0", {1024, 32, 32}, 2, 64000);
  EXPECT_EQ(cut.chunks.size(), 17U);
  EXPECT_EQ(cut.runs.size(), 17U);
}

TEST(Program, AStridedShardOfTheLastDimensionIsOneRun) {
  const Program program = compile_whole("1:R", "2:SS1/64", {1000, 512}, 1, 1 << 30);
  ASSERT_EQ(program.runs.size(), 1U);
  EXPECT_EQ(program.runs[0].length, 4);
  EXPECT_EQ(program.runs[0].rows, 64 * 1000);  // the distance goes on from row to row
}

TEST(Program, TwoToTheFortyElementsDoNotOverflow) {
  const std::int64_t edge = std::int64_t{1} << 20;
  const Program program = compile_whole("4:S0", "4:S1", {edge, edge}, 3, std::int64_t{1} << 50);
  ASSERT_EQ(program.runs.size(), 1U);
  EXPECT_EQ(program.runs[0].source, 3 * (edge / 4) * 4);
  EXPECT_EQ(program.runs[0].source_row, edge * 4);
  EXPECT_EQ(program.runs[0].elements(), edge / 4 * (edge / 4));
}

TEST(Program, BadStridesAndChunksAreRefused) {
  const std::vector<Plan> batch = {
      make(parse_layout("1:R"), parse_layout("1:R"), {4, 4}, {Dtype::float32, Dtype::float32})};
  EXPECT_THROW(read_streams(batch, 0, 0), Error);
  EXPECT_THROW(read_streams(batch, 0, 100), Error);
  const Stream stream = read_streams(batch, 0).at(0);
  const Strides few = {{1}};
  const Strides far = {{std::int64_t{1} << 61, 1}};
  EXPECT_THROW(compile(stream, &few, nullptr), Error);
  EXPECT_THROW(compile(stream, nullptr, &far), Error);
  const Strides none;
  EXPECT_THROW(compile(stream, &none, nullptr), Error);
}

TEST(Stream, ARankOutsideHasNone) {
  const std::vector<Plan> batch = {
      make(parse_layout("1:R"), parse_layout("1:R@4"), {4}, {Dtype::float32, Dtype::float32})};
  EXPECT_TRUE(read_streams(batch, 0).empty());
  EXPECT_TRUE(serve_streams(batch, 4).empty());
  EXPECT_EQ(serve_streams(batch, 0).size(), 1U);
}

}  // namespace
}  // namespace tensorbus::plan
