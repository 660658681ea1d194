// Writes the values of a patch to where the reader has them.
#pragma once

#include <cstddef>

#include "copy/crew.h"
#include "copy/execute.h"
#include "delta/patch/checked_patch.h"
#include "delta/patch/packed.h"

namespace tensorbus::delta {

// Blocks [first, end) of the patch: a step, in any order, on any thread. `packed` is of the
// target's side, `to` has its tensors. Error if the patch was checked for other parts.
void apply_blocks(const CheckedPatch& patch, const Packed& packed, copy::Targets to,
                  std::size_t first, std::size_t end);

// Applies all blocks of the patch.
void apply(const CheckedPatch& patch, const Packed& packed, copy::Targets to, copy::Crew& crew);

}  // namespace tensorbus::delta
