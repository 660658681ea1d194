#include "bus/patching/scratch.h"

#include <atomic>
#include <new>
#include <utility>

#include "copy/execute.h"

namespace tensorbus::bus {
namespace {

constexpr std::size_t alignment = 64;  // where vectors begin

std::size_t bytes_of(const TensorForm& form) {
  const std::size_t bytes =
      static_cast<std::size_t>(element_count(form.shape)) * item_bytes(form.dtype);
  return (bytes + alignment - 1) / alignment * alignment;
}

fabric::Forms dense_forms(std::span<const TensorView> tensors) {
  fabric::Forms forms;
  for (const TensorView& tensor : tensors) {
    Shape shape(tensor.shape.begin(), tensor.shape.end());
    Shape strides = plan::contiguous_strides(shape);
    forms.push_back({tensor.dtype, std::move(shape), std::move(strides)});
  }
  return forms;
}

}  // namespace

Scratch::Scratch(std::span<const TensorView> like)
    : forms_(dense_forms(like)), gate_(std::make_shared<std::atomic<std::uint64_t>>(0)) {
  for (const TensorForm& form : forms_) total_ += bytes_of(form);
  bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, total_ + alignment)));
  if (bytes_ == nullptr) throw std::bad_alloc();
  std::byte* at = bytes_.get();
  for (const TensorForm& form : forms_) {
    const std::size_t bytes = bytes_of(form);
    views_.push_back({bytes == 0 ? nullptr : at, form.dtype, form.shape, form.strides});
    at += bytes;
  }
}

bool Scratch::copy_to(std::span<const TensorView> targets) {
  if (!std::exchange(begun_, true)) {
    std::vector<Dtype> types;
    for (const TensorForm& form : forms_) types.push_back(form.dtype);
    const plan::Strides from = fabric::strides_of(forms_);
    const plan::Strides to = fabric::strides_of(targets);
    program_ = plan::compile(fabric::whole_stream(forms_, types), &from, &to);
  }
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (const TensorView& view : views_) from.push_back(view.data);
  for (const TensorView& target : targets) to.push_back(target.data);
  const copy::Caches caches = copy::caches_for(static_cast<std::int64_t>(total_));
  for (std::int64_t budget = at_once; next_ < program_.chunks.size() && budget > 0; ++next_) {
    const plan::Chunk& chunk = program_.chunks[next_];
    copy::copy_chunk(program_, chunk, from, to, caches);
    budget -= chunk.wire_bytes;
  }
  return next_ == program_.chunks.size();
}

}  // namespace tensorbus::bus
