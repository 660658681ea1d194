// By what both ends of a stream know that they mean the same one.
#pragma once

#include <cstdint>

#include "tensorbus/plan.h"

namespace tensorbus::delta {

// Of what a stream carries, in which order: equal for readers that get the same from a source,
// whoever they are and however they cut it into chunks.
std::uint64_t fingerprint_of(const plan::Stream& stream);

}  // namespace tensorbus::delta
