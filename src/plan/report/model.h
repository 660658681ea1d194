// A list of named tensors and their plans: what the command line and the reports work on.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensorbus/plan.h"

namespace tensorbus::plan {

struct ModelTensor {
  std::string name;
  Plan plan;
};

using Model = std::vector<ModelTensor>;

// What a tensor of a model file does not say itself.
struct ModelDefaults {
  std::optional<Layout> source;
  std::optional<Layout> target;
  Dtype dtype = Dtype::float32;
};

// A JSON list of {"name", "shape", "dtype", "target_dtype", "source", "target"}: shape is a list or
// "8192x512", layouts are in their text form; all but name and shape may come from the defaults.
// Error that names the tensor if something is missing or wrong.
Model parse_model(std::string_view json, const ModelDefaults& defaults);

}  // namespace tensorbus::plan
