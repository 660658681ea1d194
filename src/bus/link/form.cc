#include "bus/link/form.h"

#include <algorithm>

namespace tensorbus::bus {

bool RegisteredForm::fits(const LinkTensors& tensors, const RegisteredForm& wanted) const {
  if (form == nullptr || subset != wanted.subset || keep != wanted.keep || dtype != wanted.dtype) {
    return false;
  }
  if (wanted.delta && !delta) return false;
  const auto alike = [](const TensorForm& then, const TensorView& now) {
    return then.dtype == now.dtype && std::ranges::equal(then.shape, now.shape);
  };
  return std::ranges::equal(types, tensors.views, alike) &&
         (form == tensors.form || *form == *tensors.form);
}

RegisteredForm registered_form(const LinkTensors& tensors, RegisteredForm rest) {
  rest.form = tensors.form;
  for (const TensorView& view : tensors.views) {
    rest.types.push_back({view.dtype, Shape(view.shape.begin(), view.shape.end()), {}});
  }
  return rest;
}

}  // namespace tensorbus::bus
