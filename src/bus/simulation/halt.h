// For tests of failures: a process that stops itself at a named step of the protocol.
#pragma once

#include <functional>
#include <string>

#include "bus/round/step.h"

namespace tensorbus::bus {

// To be told of every step. When the file holds the name of the step, it is removed and the process
// stops (SIGSTOP), there and then; whoever wrote the file kills it or lets it go on.
std::function<void(Step)> halt_where_told(std::string path);

}  // namespace tensorbus::bus
