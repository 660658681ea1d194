// The shape of a tensor from the shapes of its shards.
#pragma once

#include <span>

#include "tensorbus/layout.h"

namespace tensorbus {

// `locals` are in the order of Mesh::ranks(). Error if there is no shape that fits them all.
Shape global_shape(const Layout& layout, std::span<const Shape> locals);

// Error that names the first rank whose local shape is not its share of `shape`, and what was
// expected.
void check_local_shapes(const Layout& layout, const Shape& shape, std::span<const Shape> locals);

}  // namespace tensorbus
