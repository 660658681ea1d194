// What tests ask of the stand-in and no driver has. Found with dlsym.
#pragma once

#include "device/cuda/abi.h"

// What is there now; a caller that cleans up leaves zeros.
struct StandinCounts {
  std::size_t streams;  // without the legacy ones
  std::size_t events;
  std::size_t blocks;
  std::size_t pinned;
  std::size_t retained;     // primary contexts
  std::size_t after_death;  // calls with a context whose sticky error had been told before
};

#pragma GCC visibility push(default)
extern "C" {
// As if the process had just started: everything is gone, cuInit has not been called, the
// environment is read again. Nobody may be inside a call.
void standin_restart();
// The context of a device dies with this error, as if somebody's kernel had gone wrong.
void standin_kill_context(int device, int error);
StandinCounts standin_counts();
// How often a function has been called, by its name for cuGetProcAddress.
int standin_calls(const char* name);
// Where the stand-in keeps what is at a device's address; null: nothing is.
void* standin_shadow(std::uint64_t address);
}
#pragma GCC visibility pop
