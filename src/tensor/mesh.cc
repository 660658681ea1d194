#include <algorithm>
#include <numeric>

#include "tensor/checked.h"
#include "tensorbus/layout.h"

namespace tensorbus {

std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) {
      throw Error(Code::invalid_argument,
                  "shape " + to_string(shape) + " has a negative size; sizes are 0 or more");
    }
    // A zero elsewhere makes the product 0 whatever the others are.
    if (size == 0) {
      empty = true;
    } else {
      count = checked_multiply(count, size, "the number of elements");
    }
  }
  // Far below 2^63, so that sums of indices need no checks.
  if (count > std::int64_t{1} << 60) {
    throw Error(Code::invalid_argument,
                "shape " + to_string(shape) + " has more than 2^60 elements");
  }
  return empty ? 0 : count;
}

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

Mesh::Mesh(Shape shape, std::optional<std::vector<Rank>> ranks) {
  constexpr std::int64_t most_ranks = std::int64_t{1} << 24;
  for (const std::int64_t size : shape) {
    if (size < 1) {
      throw Error(Code::invalid_argument, "mesh shape " + to_string(shape) +
                                              " has a dimension without ranks; each needs one");
    }
  }
  const std::int64_t size = element_count(shape);
  if (size > most_ranks) {
    throw Error(Code::invalid_argument, "mesh shape " + to_string(shape) + " has " +
                                            std::to_string(size) + " ranks; at most " +
                                            std::to_string(most_ranks) + " are possible");
  }
  Data data{std::move(shape), {}, {}};
  if (ranks.has_value()) {
    data.ranks = *std::move(ranks);
  } else {
    data.ranks.resize(static_cast<std::size_t>(size));
    std::iota(data.ranks.begin(), data.ranks.end(), Rank{0});
  }
  if (data.ranks.size() != static_cast<std::size_t>(size)) {
    throw Error(Code::invalid_argument, "mesh shape " + to_string(data.shape) + " needs " +
                                            std::to_string(size) + " ranks, but " +
                                            std::to_string(data.ranks.size()) + " are given");
  }

  bool in_order = true;
  for (std::size_t i = 0; i < data.ranks.size(); ++i) {
    if (data.ranks[i] < 0) {
      throw Error(Code::invalid_argument, "rank " + std::to_string(data.ranks[i]) +
                                              " of a mesh is negative; ranks are 0 or more");
    }
    in_order = in_order && data.ranks[i] == static_cast<Rank>(i);
  }
  if (!in_order) {
    for (std::size_t i = 0; i < data.ranks.size(); ++i) {
      data.positions.emplace_back(data.ranks[i], i);
    }
    std::ranges::sort(data.positions);
    const auto twice = std::ranges::adjacent_find(
        data.positions, [](const auto& a, const auto& b) { return a.first == b.first; });
    if (twice != data.positions.end()) {
      throw Error(Code::invalid_argument, "rank " + std::to_string(twice->first) +
                                              " is in the mesh twice; ranks must differ");
    }
  }
  data_ = std::make_shared<const Data>(std::move(data));
}

std::optional<std::size_t> Mesh::find(Rank rank) const noexcept {
  if (data_->positions.empty()) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= size()) return std::nullopt;
    return static_cast<std::size_t>(rank);
  }
  const auto found = std::ranges::lower_bound(data_->positions, rank, {},
                                              [](const auto& position) { return position.first; });
  if (found == data_->positions.end() || found->first != rank) return std::nullopt;
  return found->second;
}

std::size_t Mesh::index_of(Rank rank) const {
  const auto index = find(rank);
  if (!index.has_value()) {
    throw Error(Code::invalid_argument, "rank " + std::to_string(rank) +
                                            " is not in the mesh of shape " + to_string(shape()) +
                                            " with " + std::to_string(size()) + " ranks");
  }
  return *index;
}

std::vector<std::int64_t> Mesh::coordinates_of(std::size_t index) const {
  std::vector<std::int64_t> coordinates(dims());
  auto rest = static_cast<std::int64_t>(index);
  for (std::size_t dim = dims(); dim-- > 0;) {
    coordinates[dim] = rest % shape()[dim];
    rest /= shape()[dim];
  }
  return coordinates;
}

}  // namespace tensorbus
