// What a link moves: tensors by name, with what each holds of the whole.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bus/channel/command.h"
#include "device/core/moments.h"
#include "tensor/view.h"

namespace tensorbus::bus {

// What stays the same, beside types and shapes, for as long as a plan is good. One entry for each
// tensor, in the order of the names; several boxes may share a name.
struct LinkForm {
  std::vector<std::string> names;
  std::vector<std::optional<Shape>> wholes;        // of those that have a layout or a start
  std::vector<std::optional<SideLayout>> layouts;  // neither layout nor start: it is the whole
  std::vector<std::optional<Shape>> starts;        // of boxes
  friend bool operator==(const LinkForm&, const LinkForm&) = default;
};

// The tensors of one call.
struct LinkTensors {
  std::shared_ptr<const LinkForm> form;
  std::vector<TensorView> views;      // where they are now
  std::shared_ptr<const void> owner;  // of what the views borrow, for as long as it is registered
  // What the caller's streams had been given: nothing is read or written before that.
  device::Moments moments{};
};

// What a registration was made for.
struct RegisteredForm {
  std::shared_ptr<const LinkForm> form;
  std::vector<TensorForm> types;  // without strides: those may change
  bool subset = false;
  std::int64_t keep = 0;
  std::optional<Dtype> dtype{};
  bool delta = false;  // with what deltas need

  // Whether a call with these tensors can use it; `wanted` has the rest.
  bool fits(const LinkTensors& tensors, const RegisteredForm& wanted) const;
};

RegisteredForm registered_form(const LinkTensors& tensors, RegisteredForm rest);

}  // namespace tensorbus::bus
