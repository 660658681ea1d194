// The program as a function: the program of users, and one for tests of failures that halts its
// agents.
#pragma once

#include "bus/host/daemon.h"

namespace tensorbus::program {

// What an agent calls at every step of the protocol; may be empty.
using Reached = decltype(bus::DaemonOptions::reached);

// The exit code.
int run_program(int argc, char** argv, const Reached& reached = {});

}  // namespace tensorbus::program
