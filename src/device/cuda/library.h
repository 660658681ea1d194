// The CUDA driver's library, loaded when the first device is needed. Nothing of ours links the
// library: one build runs on machines with and without a GPU.
#pragma once

#include <string>

#include "device/cuda/abi.h"

namespace tensorbus::device::cuda {

// By soname: the library that a framework has loaded already is taken.
inline constexpr const char* soname = "libcuda.so.1";

struct Library {
  Functions functions;
  std::string file;  // that it was loaded from
  int version = 0;   // of CUDA that the driver serves: 12040 is 12.4
};

// Loads the driver and asks for nothing: no device is looked at, no file made. Error(unsupported)
// that says why there is no driver, or that the driver is too old.
Library load(const std::string& file);
// load(soname), for the life of the process, on the first call that succeeds.
const Library& library();

// cuInit(). Error(unsupported) that says why no device can be used, with a hint.
void initialise(const Functions& functions);

// "CUDA_ERROR_OUT_OF_MEMORY (2: out of memory)".
std::string describe(const Functions& functions, Result result);
std::string version_text(int version);  // "12.4"

}  // namespace tensorbus::device::cuda
