// A whole redistribution inside one process: the way to try a plan and to test it.
#pragma once

#include <span>

#include "tensor/view.h"
#include "tensorbus/layout.h"

namespace tensorbus::copy {

// The local tensors of both sides are in the order of their meshes' ranks; targets do not share
// memory with sources. Error, before anything is written, if types or shapes do not fit the
// layouts.
void redistribute(const Layout& source, std::span<const TensorView> from, const Layout& target,
                  std::span<const TensorView> to);

}  // namespace tensorbus::copy
