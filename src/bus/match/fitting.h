// Whether the tensors of two sides of a pair fit. Pure.
#pragma once

#include "bus/match/side_tensors.h"

namespace tensorbus::bus {

// Of sides that both may send. Throws Error(invalid_argument) that lists whatever does not fit.
void check_alike(const End& one_end, const std::vector<SideTensor>& one, const End& other_end,
                 const std::vector<SideTensor>& other);

// Of a side that sends versions and one that takes them, and may take less. The same for all that
// the takers ask for and nobody holds.
void check_taken(const Side& sender, const SideTensors& sent, const Side& taker,
                 const SideTensors& taken);

}  // namespace tensorbus::bus
