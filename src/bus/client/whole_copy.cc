#include "bus/client/whole_copy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "bus/client/device_copy.h"
#include "copy/execute.h"

namespace tensorbus::bus {
namespace {

fabric::Forms forms_of(std::span<const TensorView> tensors) {
  fabric::Forms forms;
  for (const TensorView& tensor : tensors) forms.push_back(fabric::form_of(tensor));
  return forms;
}

}  // namespace

void WholeCopy::compile_for(std::span<const TensorView> from, std::span<const TensorView> to) {
  fabric::Forms source = forms_of(from);
  fabric::Forms target = forms_of(to);
  if (source == from_ && target == to_) return;
  std::vector<Dtype> types;
  for (const TensorForm& form : target) types.push_back(form.dtype);
  const plan::Strides source_strides = fabric::strides_of(source);
  const plan::Strides target_strides = fabric::strides_of(target);
  program_ = plan::compile(fabric::whole_stream(source, types), &source_strides, &target_strides);
  from_ = std::move(source);
  to_ = std::move(target);
}

void WholeCopy::run(std::span<const TensorView> from, std::span<const TensorView> to,
                    copy::Crew& crew, device::Copiers& copiers, Deadline deadline) {
  compile_for(from, to);
  if (std::ranges::any_of(from, &TensorView::on_device)) {
    return copy_from_devices(program_, from, to, copiers, deadline);
  }
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  for (const TensorView& tensor : from) sources.push_back(tensor.data);
  for (const TensorView& tensor : to) targets.push_back(tensor.data);
  const copy::Sources member(sources);
  copy::execute(program_, {&member, 1}, targets, crew);
}

}  // namespace tensorbus::bus
