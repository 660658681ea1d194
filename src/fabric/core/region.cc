#include "fabric/core/region.h"

#include <algorithm>

#include "base/refuse.h"
#include "fabric/core/boxes.h"
#include "tensor/checked.h"
#include "tensor/fields.h"
#include "tensorbus/status.h"
#include "wire/message.h"

namespace tensorbus::fabric {
namespace {

using tensorbus::to_string;

constexpr std::size_t most_dims = wire::most_numbers;
constexpr wire::Title forms_title{"region's list of tensors"};

void check_part(std::size_t tensor, const char* side, const Shape& stream_shape, Dtype stream_dtype,
                const TensorForm& form) {
  if (form.dtype == stream_dtype && form.shape == stream_shape) return;
  const auto text = [](Dtype dtype, const Shape& shape) {
    return std::string(to_string(dtype)) + " " + to_string(shape);
  };
  refuse(std::string(side) + " tensor " + std::to_string(tensor) + " is " +
         text(form.dtype, form.shape) + ", the stream was made for " +
         text(stream_dtype, stream_shape));
}

void check_index(std::size_t tensor, const char* side, std::size_t count) {
  if (tensor < count) return;
  refuse("the stream names " + std::string(side) + " tensor " + std::to_string(tensor) +
         ", there are " + std::to_string(count));
}

// Spans that lead outside of the tensor are refused, so that a stream from anywhere is safe to run.
void check_spans(const plan::Part& part, std::size_t tensor, const Shape& shape,
                 std::int64_t plan::Span::*first) {
  if (part.dims.size() != shape.size()) refuse("a part has another number of dimensions");
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    for (const plan::Span& span : part.dims[dim]) {
      if (span.length < 1 || span.*first < 0 || span.*first > shape[dim] - span.length) {
        refuse("tensor " + std::to_string(tensor) + ": a piece leads outside of dimension " +
               std::to_string(dim));
      }
    }
  }
}

}  // namespace

TensorForm form_of(const TensorView& tensor) {
  return {tensor.dtype, Shape(tensor.shape.begin(), tensor.shape.end()),
          Shape(tensor.strides.begin(), tensor.strides.end())};
}

plan::Strides strides_of(const Forms& forms) {
  plan::Strides strides;
  strides.reserve(forms.size());
  for (const TensorForm& form : forms) strides.push_back(form.strides);
  return strides;
}

plan::Strides strides_of(std::span<const TensorView> tensors) {
  plan::Strides strides;
  strides.reserve(tensors.size());
  for (const TensorView& tensor : tensors) {
    strides.emplace_back(tensor.strides.begin(), tensor.strides.end());
  }
  return strides;
}

std::string encode(const Forms& forms) { return wire::write(forms, forms_title); }

Forms decode_forms(std::string_view bytes) {
  Forms forms = wire::read<Forms>(bytes, forms_title);
  for (const TensorForm& form : forms) extent_of(form);
  return forms;
}

Extent extent_of(const TensorForm& form) {
  if (form.shape.size() != form.strides.size()) {
    refuse("a tensor of shape " + to_string(form.shape) + " has " +
           std::to_string(form.strides.size()) + " strides");
  }
  if (form.shape.size() > most_dims) refuse("a tensor has too many dimensions");
  const bool negative = std::ranges::any_of(form.shape, [](std::int64_t n) { return n < 0; });
  if (negative) refuse("a tensor has the shape " + to_string(form.shape));
  if (std::ranges::find(form.shape, 0) != form.shape.end()) return {};
  const auto item = static_cast<std::int64_t>(item_bytes(form.dtype));
  Extent extent{0, item};
  constexpr const char* what = "a tensor's extent";
  for (std::size_t dim = 0; dim < form.shape.size(); ++dim) {
    const std::int64_t step = checked_multiply(form.strides[dim], item, what);
    const std::int64_t reach = checked_multiply(step, form.shape[dim] - 1, what);
    std::int64_t& side = reach < 0 ? extent.begin : extent.end;
    side = checked_add(side, reach, what);
  }
  return extent;
}

void check_source(const plan::Stream& stream, const Forms& forms) {
  for (const plan::Part& part : stream.parts) {
    const std::size_t tensor = part.source_tensor;
    check_index(tensor, "source", forms.size());
    check_part(tensor, "source", part.source_shape, part.types.source, forms[tensor]);
    check_spans(part, tensor, part.source_shape, &plan::Span::source);
  }
}

void check_target(const plan::Stream& stream, std::span<const TensorView> targets) {
  for (const plan::Part& part : stream.parts) {
    const std::size_t tensor = part.target_tensor;
    check_index(tensor, "target", targets.size());
    const TensorView& target = targets[tensor];
    const TensorForm form = form_of(target);
    check_part(tensor, "target", part.target_shape, part.types.target, form);
    extent_of(form);
    check_spans(part, tensor, part.target_shape, &plan::Span::target);
    if (target.read_only) {
      refuse("target tensor " + std::to_string(tensor) + " is read-only");
    }
    if (repeats_itself(target)) {
      refuse("target tensor " + std::to_string(tensor) +
             " is expanded: several of its elements share one address");
    }
  }
}

// Every member of a reduction gives the type that is reduced.
std::optional<plan::Stream> stream_from(const Forms& forms, plan::Stream stream) {
  for (plan::Part& part : stream.parts) {
    check_index(part.source_tensor, "source", forms.size());
    const TensorForm& form = forms[part.source_tensor];
    if (form.shape != part.source_shape) return std::nullopt;
    if (form.dtype == part.types.source) continue;
    if (form.dtype != part.wire || stream.source.reduces()) return std::nullopt;
    part.types.source = part.wire;
  }
  return stream;
}

plan::Stream whole_stream(const Forms& source, std::span<const Dtype> target,
                          std::int64_t chunk_bytes) {
  if (target.size() != source.size()) {
    refuse("a region of " + std::to_string(source.size()) + " tensors was given " +
           std::to_string(target.size()) + " targets");
  }
  std::vector<TensorBox> boxes;
  boxes.reserve(source.size());
  for (std::size_t tensor = 0; tensor < source.size(); ++tensor) {
    boxes.push_back({tensor, Shape(source[tensor].shape.size()), source[tensor].shape});
  }
  return box_stream(source, boxes, target, chunk_bytes);
}

std::string_view path_to(std::span<const TensorView> targets, const RemoteRegion& region) {
  if (std::ranges::none_of(targets, &TensorView::on_device)) return region.path();
  return region.path_to_device();
}

void Gate::move_to(std::uint64_t value) noexcept {
  std::uint64_t seen = counter_->load(std::memory_order_relaxed);
  while (seen < value && !counter_->compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
  // Also against stores that are not atomic: the owner's next writes come after the move.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace tensorbus::fabric
