#include "bus/link/stage.h"

#include <algorithm>

#include "copy/redistribute.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus {
namespace {

constexpr std::size_t alignment = 64;

Shape copied(std::span<const std::int64_t> extents) { return {extents.begin(), extents.end()}; }

std::size_t dense_bytes(const TensorView& tensor) {
  return item_bytes(tensor.dtype) * static_cast<std::size_t>(element_count(copied(tensor.shape)));
}

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

bool lies_in(const fabric::Pool& pool, const TensorView& tensor) {
  return tensor.data != nullptr && !tensor.on_device() && pool.find(tensor.data, 1).has_value();
}

Dtype type_at(std::size_t index, std::span<const TensorView> tensors,
              std::span<const Dtype> types) {
  return types.empty() ? tensors[index].dtype : types[index];
}

struct Copies {
  std::vector<TensorView> from;
  std::vector<TensorView> to;

  void add(const TensorView& source, const TensorView& target) {
    from.push_back(source);
    to.push_back(target);
  }
};

bool is_like(const TensorView& tensor, const TensorForm& form) {
  return tensor.dtype == form.dtype && std::ranges::equal(tensor.shape, form.shape);
}

}  // namespace

std::vector<PooledPlace> allocate_places(fabric::Pool& pool, std::span<const TensorView> like) {
  std::size_t total = 0;
  for (const TensorView& tensor : like) total += rounded_up(dense_bytes(tensor));
  const std::shared_ptr<std::byte> block = total == 0 ? nullptr : pool.allocate(total);
  std::vector<PooledPlace> places;
  std::byte* at = block.get();
  for (const TensorView& tensor : like) {
    const std::size_t bytes = dense_bytes(tensor);
    const Shape shape = copied(tensor.shape);
    places.push_back({bytes == 0 ? nullptr : std::shared_ptr<std::byte>(block, at),
                      {tensor.dtype, shape, plan::contiguous_strides(shape)}});
    at += rounded_up(bytes);
  }
  return places;
}

std::vector<bool> outside_of(const fabric::Pool& pool, std::span<const TensorView> tensors) {
  std::vector<bool> outside;
  for (const TensorView& tensor : tensors) outside.push_back(!lies_in(pool, tensor));
  return outside;
}

Stage::Stage(std::span<const TensorView> tensors, std::span<const Dtype> types,
             fabric::Pool& pool) {
  std::vector<std::size_t> staged;
  std::vector<TensorView> like;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (lies_in(pool, tensors[i])) continue;
    staged.push_back(i);
    like.push_back(tensors[i]);
    like.back().dtype = type_at(i, tensors, types);
  }
  std::vector<PooledPlace> places = allocate_places(pool, like);
  for (std::size_t i = 0; i < staged.size(); ++i) {
    if (places[i].memory != nullptr) block_ = places[i].memory;
    staged_[staged[i]] = {std::move(places[i]), like[i].data, copied(like[i].strides)};
  }
}

bool Stage::can_be_narrowed(std::span<const TensorView> tensors) const {
  return std::ranges::any_of(staged_, [&](const auto& entry) {
    const Dtype dtype = tensors[entry.first].dtype;
    return is_floating_point(dtype) && item_bytes(dtype) > 1;
  });
}

bool Stage::has(std::span<const TensorView> tensors, std::span<const Dtype> types,
                const fabric::Pool& pool) const {
  return std::ranges::all_of(staged_, [&](const auto& entry) {
    const auto& [index, each] = entry;
    const TensorView& tensor = tensors[index];
    const Dtype dtype = each.place.form.dtype;
    const bool pooled = dtype != tensor.dtype && tensor.data != each.data && lies_in(pool, tensor);
    return !pooled && dtype == type_at(index, tensors, types);
  });
}

std::vector<TensorView> Stage::placed(std::span<const TensorView> tensors) const {
  std::vector<TensorView> views(tensors.begin(), tensors.end());
  for (const auto& [index, each] : staged_) views[index] = each.place.view();
  return views;
}

std::vector<std::size_t> Stage::indices() const {
  std::vector<std::size_t> indices;
  for (const auto& [index, each] : staged_) indices.push_back(index);
  return indices;
}

void Stage::fill(std::span<const TensorView> tensors, copy::Crew& crew, device::Copiers& copiers,
                 Deadline deadline) {
  Copies same;
  Copies others;  // narrower, or on a device
  for (const auto& [index, each] : staged_) {
    const TensorView& tensor = tensors[index];
    const bool plain = tensor.dtype == each.place.form.dtype && !tensor.on_device();
    (plain ? same : others).add(tensor, each.place.view());
  }
  copy::copy_each(same.from, same.to, crew);
  if (!others.from.empty()) casts_.run(others.from, others.to, crew, copiers, deadline);
}

std::optional<PooledPlace> Stage::give(const TensorView& tensor) {
  if (tensor.on_device()) return std::nullopt;
  const auto found = std::ranges::find_if(staged_, [&](const auto& entry) {
    const StagedTensor& each = entry.second;
    return each.data == tensor.data && is_like(tensor, each.place.form) &&
           std::ranges::equal(each.strides, tensor.strides);
  });
  if (found == staged_.end()) return std::nullopt;
  copy::copy_tensor(tensor, found->second.place.view());
  return staged_.extract(found).mapped().place;
}

}  // namespace tensorbus::bus
