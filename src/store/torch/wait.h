// Waiting for a Condition at a server that can only tell when certain keys exist.
#pragma once

#include "store/torch/pool.h"
#include "tensorbus/store.h"

namespace tensorbus::store {

// A key, or all candidates of a pattern: the server's WAIT. Anything else: looking again and again.
// Throws Error(invalid_argument) for a pattern without enough candidates, Error(timeout) that names
// what is missing.
WaitResult torch_wait(TorchPool& pool, const Condition& condition, const Until& until);

}  // namespace tensorbus::store
