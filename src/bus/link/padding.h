// What a box that reaches beyond its whole is filled with there.
#pragma once

#include "tensor/view.h"

namespace tensorbus::bus {

// Sets the elements of a box, which begins at `start` of a tensor of the shape `whole`, that lie
// beyond that.
void fill_padding(const TensorView& box, const Shape& whole, const Shape& start, double pad);

}  // namespace tensorbus::bus
