#include "copy/redistribute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "copy/execute.h"
#include "plan/testing/random_case.h"
#include "tensor/global_shape.h"
#include "tensorbus/status.h"

namespace tensorbus::copy {
namespace {

using Number = std::int32_t;
constexpr Number untouched = -1;

std::size_t extent(const Shape& shape, const Shape& strides) {
  std::int64_t last = 0;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) last += (shape[dim] - 1) * strides[dim];
  return tensorbus::element_count(shape) == 0 ? 0 : static_cast<std::size_t>(last) + 1;
}

// Calls visit(place in memory, number of the element in the whole tensor) for all that a rank
// holds.
template <typename Visit>
void for_each_element(const Holding& holding, const Shape& whole, const Shape& strides, Visit visit,
                      std::size_t dim = 0, std::int64_t place = 0, std::int64_t number = 0) {
  if (dim == whole.size()) return visit(static_cast<std::size_t>(place), number);
  for (const Interval& interval : holding.dims[dim]) {
    for (std::int64_t i = interval.begin; i < interval.end; ++i, place += strides[dim]) {
      for_each_element(holding, whole, strides, visit, dim + 1, place, number * whole[dim] + i);
    }
  }
}

// The local tensors of one side, in views with gaps, in the order of the mesh's ranks.
struct LocalTensors {
  LocalTensors(plan::RandomCase& random, const Layout& layout, const Shape& whole) {
    for (const Rank rank : layout.mesh().ranks()) {
      holdings.push_back(layout.holding(whole, rank));
      shapes.push_back(holdings.back().local_shape());
      strides.push_back(random.strides(shapes.back()));
      memory.emplace_back(extent(shapes.back(), strides.back()), untouched);
    }
  }

  void fill(const Shape& whole) {
    for (std::size_t i = 0; i < memory.size(); ++i) {
      for_each_element(holdings[i], whole, strides[i], [&](std::size_t place, std::int64_t n) {
        memory[i][place] = static_cast<Number>(n);
      });
    }
  }

  std::vector<TensorView> views() {
    std::vector<TensorView> result;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      result.push_back({reinterpret_cast<std::byte*>(memory[i].data()), Dtype::int32, shapes[i],
                        strides[i], false});
    }
    return result;
  }

  std::vector<Holding> holdings;
  std::vector<Shape> shapes;
  std::vector<Shape> strides;
  std::vector<std::vector<Number>> memory;
};

// Both sides of a redistribution, the source filled, and what the target must become.
struct Move {
  Move(plan::RandomCase& random, Layout from_layout, Layout to_layout, const Shape& whole)
      : source(std::move(from_layout)),
        target(std::move(to_layout)),
        from(random, source, whole),
        to(random, target, whole),
        expected(to) {
    from.fill(whole);
    expected.fill(whole);
  }
  static Move between_any_layouts(plan::RandomCase& random, const Shape& whole) {
    Layout source = random.layout(whole.size(), false);
    Layout target = random.layout(whole.size(), false);
    return {random, std::move(source), std::move(target), whole};
  }

  Layout source;
  Layout target;
  LocalTensors from;
  LocalTensors to;
  LocalTensors expected;
};

// proves: B4.1 B5.6 B5.7 B5.8 B5.9
TEST(Redistribute, EveryTargetElementIsItsOwnAndNothingElseIsWritten) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    plan::RandomCase random(seed);
    Move move = Move::between_any_layouts(random, random.shape(4));
    redistribute(move.source, move.from.views(), move.target, move.to.views());
    ASSERT_EQ(move.to.memory, move.expected.memory)
        << "seed " << seed << ": " << to_string(move.source) << " to " << to_string(move.target);
  }
}

// proves: B4.2
TEST(Redistribute, PartialSourcesWithAnyStridesAreSummed) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    plan::RandomCase random(seed);
    const Shape whole = random.shape(3);
    const Layout source(
        Mesh({2, 3}), {Partial{ReduceOp::sum}, whole.empty() ? Placement(Replicate{}) : Shard{-1}});
    Move move(random, source, random.layout(whole.size(), false), whole);
    for (std::vector<Number>& memory : move.expected.memory) {
      for (Number& number : memory) number = number == untouched ? untouched : 2 * number;
    }
    redistribute(move.source, move.from.views(), move.target, move.to.views());
    ASSERT_EQ(move.to.memory, move.expected.memory) << "seed " << seed;
  }
}

// Each side binds only its own strides, as processes do that do not know each other's.
TEST(Redistribute, PackingAndUnpackingByProgramsOfOneSideGivesTheDirectCopy) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    plan::RandomCase random(seed);
    const Shape whole = random.shape(4);
    Move move = Move::between_any_layouts(random, whole);
    const plan::Plan batch[] = {
        plan::make(move.source, move.target, whole, {Dtype::int32, Dtype::int32})};
    const std::vector<TensorView> sources = move.from.views();
    const std::vector<TensorView> targets = move.to.views();
    for (const Rank reader : move.target.mesh().ranks()) {
      for (const plan::Stream& stream : plan::read_streams(batch, reader, 64)) {
        const std::size_t owner = move.source.mesh().index_of(stream.source.ranks.front());
        const std::size_t own = move.target.mesh().index_of(reader);
        const plan::Strides source_strides = {move.from.strides[owner]};
        const plan::Strides target_strides = {move.to.strides[own]};
        const plan::Program packing = plan::compile(stream, &source_strides, nullptr);
        const plan::Program unpacking = plan::compile(stream, nullptr, &target_strides);
        ASSERT_EQ(packing.chunks.size(), unpacking.chunks.size());
        const std::byte* first = sources[owner].data;
        std::byte* target_first = targets[own].data;
        for (std::size_t chunk = 0; chunk < packing.chunks.size(); ++chunk) {
          std::vector<std::byte> wire(static_cast<std::size_t>(packing.chunks[chunk].wire_bytes));
          gather_chunk(packing, packing.chunks[chunk], {&first, 1}, wire);
          scatter_chunk(unpacking, unpacking.chunks[chunk], wire, {&target_first, 1});
        }
      }
    }
    ASSERT_EQ(move.to.memory, move.expected.memory) << "seed " << seed;
  }
}

TEST(Redistribute, ATensorThatDoesNotFitIsNamedAndNothingIsWritten) {
  plan::RandomCase random(1);
  const Shape whole = {4, 6};
  const Layout rows(Mesh({2}), {Shard{0}});
  const Layout columns(Mesh({3}), {Shard{1}});
  LocalTensors from(random, rows, whole);
  LocalTensors to(random, columns, whole);
  to.shapes[2] = {4, 1};
  const auto before = to.memory;
  try {
    redistribute(rows, from.views(), columns, to.views());
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("target"), testing::HasSubstr("rank 2"),
                               testing::HasSubstr("(4, 2)")));
  }
  EXPECT_EQ(to.memory, before);
}

// proves: L5.1
TEST(CopyEach, ThreadsThatShareItCopyEveryByteAndNoOther) {
  // Empty, small, odd, several chunks; together beyond what stays in the caches.
  const std::vector<Shape> shapes = {{0}, {1}, {1237}, {300, 1001}, {2, 1 << 19}, {9 << 20}};
  const Shape transposed = {40, 50};
  const Shape transposed_strides = {1, 40};
  std::mt19937 random(1);
  std::vector<std::vector<std::byte>> from_memory;
  std::vector<Shape> strides;
  for (const Shape& shape : shapes) {
    strides.push_back(plan::contiguous_strides(shape));
    auto& memory =
        from_memory.emplace_back(static_cast<std::size_t>(tensorbus::element_count(shape)));
    for (std::byte& each : memory) each = static_cast<std::byte>(random());
  }
  auto& last = from_memory.emplace_back(2000);
  for (std::byte& each : last) each = static_cast<std::byte>(random());
  const auto views = [&](std::vector<std::vector<std::byte>>& memory, std::size_t first) {
    std::vector<TensorView> all;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      all.push_back({memory[i].data() + first, Dtype::uint8, shapes[i], strides[i]});
    }
    all.push_back({memory.back().data() + first, Dtype::uint8, transposed, transposed_strides});
    return all;
  };
  constexpr std::size_t guard = 3;
  for (std::size_t threads = 1; threads <= most_threads; ++threads) {
    Crew crew(threads);
    std::vector<std::vector<std::byte>> expected;
    std::vector<std::vector<std::byte>> copied;
    for (const auto& memory : from_memory) {
      copied.emplace_back(memory.size() + 2 * guard, std::byte{0xA5});
      expected.push_back(copied.back());
      std::ranges::copy(memory, expected.back().begin() + guard);
    }
    copy_each(views(from_memory, 0), views(copied, guard), crew);
    EXPECT_TRUE(copied == expected) << threads << " threads";
  }
}

TEST(GlobalShape, IsFoundFromTheSharesOfAnyLayout) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    plan::RandomCase random(seed);
    const Shape whole = random.shape(4);
    const Layout layout = random.layout(whole.size(), true);
    std::vector<Shape> locals;
    for (const Rank rank : layout.mesh().ranks()) {
      locals.push_back(layout.local_shape(whole, rank));
    }
    ASSERT_EQ(global_shape(layout, locals), whole) << to_string(layout);
  }
}

}  // namespace
}  // namespace tensorbus::copy
