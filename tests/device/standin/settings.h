// What the environment asks of the stand-in, and failures on demand.
#pragma once

#include <cstddef>
#include <string>

#include "device/cuda/abi.h"

namespace tensorbus::device::cuda {

// STANDIN_LAZY=1, STANDIN_DEVICES=2, ...: the names of the members.
struct Settings {
  bool lazy = false;    // nothing runs that nobody waits for
  long delay_us = 300;  // the longest pause before an operation runs, and in its middle
  long seed = 1;        // of the pauses
  long devices = 2;
  long version = 12040;   // CUDA 12.4
  long memory_mb = 1024;  // of each device
  bool peers = true;      // whether devices reach each other
  bool ipc_self = false;  // whether a process may open its own handles, which no driver allows
  std::string fail;       // "cuMemAlloc:2:2,...": the second call returns 2; without a code 801
};

Settings settings_from_environment();

// What the n-th call of a function has to return instead of doing its work; success: its work.
Result injected(const Settings& settings, const std::string& name, int call);

}  // namespace tensorbus::device::cuda
