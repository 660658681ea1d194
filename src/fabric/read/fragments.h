// Programs cut for messages: what one message carries is a chunk of its own, so that the kernels
// gather straight into the message and scatter straight out of it.
#pragma once

#include <cstdint>

#include "tensorbus/plan.h"

namespace tensorbus::fabric {

// The same program with chunks of at most `longest` (a positive multiple of
// plan::part_alignment). Where it is cut depends on the sizes of the chunks alone, so both sides of
// a stream cut alike whatever their strides. Chunks that carry nothing are left out.
plan::Program cut(const plan::Program& program, std::int64_t longest);

}  // namespace tensorbus::fabric
