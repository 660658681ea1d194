// A picture of what one side of a running job reads from the other, from the records of its agents.
#pragma once

#include <string>

#include "bus/directory/catalog.h"
#include "os/process/interruptible.h"

namespace tensorbus::program {

// SVG. Error(invalid_argument) if the side reads no such batch, or not all ranks are there;
// Error(cancelled) once `stop` is asked for.
std::string plan_picture(const bus::Catalog& catalog, const std::string& batch,
                         const std::string& reading_side, const os::Interruption& stop);

}  // namespace tensorbus::program
