// A secret that all clients of a store know and nobody else.
#pragma once

#include <string>

#include "tensorbus/deadline.h"
#include "tensorbus/store.h"

#pragma GCC visibility push(default)

namespace tensorbus {

// What the key holds; whoever asks first puts a random secret there. Who may use the store may know
// the secret: protect the store (a token, etcd's users) to protect what the secret does.
std::string shared_secret(Store& store, const std::string& key, Deadline deadline);

}  // namespace tensorbus

#pragma GCC visibility pop
