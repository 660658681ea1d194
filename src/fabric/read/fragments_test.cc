#include "fabric/read/fragments.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

#include "copy/execute.h"
#include "fabric/core/region.h"

namespace tensorbus::fabric {
namespace {

std::vector<std::byte> counting_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 251);
  return bytes;
}

std::vector<std::byte> gathered(const plan::Program& program, copy::Sources sources) {
  std::vector<std::byte> all;
  for (const plan::Chunk& chunk : program.chunks) {
    std::vector<std::byte> wire(static_cast<std::size_t>(chunk.wire_bytes));
    copy::gather_chunk(program, chunk, sources, wire);
    all.insert(all.end(), wire.begin(), wire.end());
  }
  return all;
}

// A random batch with random strides, with room between the elements.
Forms random_forms(std::mt19937_64& random) {
  Forms forms(1 + random() % 3);
  for (TensorForm& form : forms) {
    form.dtype = all_dtypes()[random() % all_dtypes().size()];
    form.shape.resize(random() % 4);
    for (std::int64_t& extent : form.shape) extent = static_cast<std::int64_t>(1 + random() % 13);
    form.strides.resize(form.shape.size());
    std::int64_t stride = 1;
    for (std::size_t dim = form.shape.size(); dim-- > 0;) {
      stride *= static_cast<std::int64_t>(1 + random() % 2);
      form.strides[dim] = stride;
      stride *= form.shape[dim];
    }
  }
  return forms;
}

TEST(Fragments, CutsCarryTheSameBytesInSmallerChunks) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    const Forms forms = random_forms(random);
    std::vector<Dtype> types;
    std::vector<std::vector<std::byte>> memory;
    std::vector<const std::byte*> sources;
    for (const TensorForm& form : forms) {
      types.push_back(form.dtype);
      memory.push_back(counting_bytes(static_cast<std::size_t>(extent_of(form).end)));
      sources.push_back(memory.back().data());
    }
    const auto multiple = [&](std::uint64_t most) {
      return plan::part_alignment * static_cast<std::int64_t>(1 + random() % most);
    };
    const plan::Stream stream = whole_stream(forms, types, multiple(64));
    const plan::Strides strides = strides_of(forms);
    const plan::Program whole = plan::compile(stream, &strides, nullptr);
    const std::int64_t most = multiple(16);
    const plan::Program pieces = cut(whole, most);
    for (const plan::Chunk& chunk : pieces.chunks) {
      ASSERT_GT(chunk.wire_bytes, 0);
      ASSERT_LE(chunk.wire_bytes, most);
    }
    ASSERT_EQ(gathered(pieces, sources), gathered(whole, sources)) << "round " << round;
  }
}

TEST(Fragments, BothSidesCutAlikeWhateverTheirStrides) {
  const Forms forms{{Dtype::float32, {64, 1000}, {1000, 1}}};
  const std::vector<Dtype> types{Dtype::float32};
  const plan::Stream stream = whole_stream(forms, types, 100'000 / 16 * 16);
  const plan::Strides rows{{1000, 1}};
  const plan::Strides columns{{1, 64}};
  const plan::Program source = cut(plan::compile(stream, &rows, nullptr), 16'000);
  const plan::Program target = cut(plan::compile(stream, nullptr, &columns), 16'000);
  ASSERT_EQ(source.chunks.size(), target.chunks.size());
  for (std::size_t i = 0; i < source.chunks.size(); ++i) {
    EXPECT_EQ(source.chunks[i].wire_bytes, target.chunks[i].wire_bytes);
  }
}

TEST(Fragments, PiecesOfAChunkAreAboutEqual) {
  const Forms forms{{Dtype::uint8, {1 << 20}, {1}}};
  const std::vector<Dtype> types{Dtype::uint8};
  const plan::Strides strides = strides_of(forms);
  const plan::Program pieces =
      cut(plan::compile(whole_stream(forms, types), &strides, nullptr), 64'000);
  ASSERT_EQ(pieces.chunks.size(), 17u);
  for (const plan::Chunk& chunk : pieces.chunks) EXPECT_GT(chunk.wire_bytes, 61'000);
}

// proves: L5.1
TEST(ChunkPieces, CoverEveryChunkInOrder) {
  // A large tensor, one with columns between its rows, one without elements, a small one.
  const Forms forms{{Dtype::float32, {700'001}, {1}},
                    {Dtype::int16, {900, 777}, {1000, 1}},
                    {Dtype::uint8, {0}, {1}},
                    {Dtype::float64, {3}, {1}}};
  std::vector<Dtype> types;
  std::vector<std::vector<std::byte>> memory;
  std::vector<const std::byte*> sources;
  for (const TensorForm& form : forms) {
    types.push_back(form.dtype);
    memory.push_back(counting_bytes(static_cast<std::size_t>(extent_of(form).end)));
    sources.push_back(memory.back().data());
  }
  const plan::Strides strides = strides_of(forms);
  const plan::Program whole = plan::compile(whole_stream(forms, types), &strides, nullptr);
  const ChunkPieces pieces(whole);
  for (std::size_t chunk = 0; chunk < whole.chunks.size(); ++chunk) {
    std::vector<std::byte> expected(static_cast<std::size_t>(whole.chunks[chunk].wire_bytes));
    copy::gather_chunk(whole, whole.chunks[chunk], sources, expected);
    std::vector<std::byte> wire(expected.size());
    std::size_t next = 0;
    for (const ChunkPieces::Piece& piece : pieces.of(chunk)) {
      EXPECT_EQ(piece.begin, next);
      next += piece.bytes;
      copy::gather_chunk(pieces.program(), pieces.program().chunks[piece.chunk], sources,
                         std::span(wire).subspan(piece.begin, piece.bytes));
    }
    EXPECT_EQ(next, wire.size());
    EXPECT_TRUE(wire == expected) << "chunk " << chunk;
    EXPECT_GT(pieces.of(chunk).size(), wire.size() > 200'000 ? 1u : 0u);
  }
}

}  // namespace
}  // namespace tensorbus::fabric
