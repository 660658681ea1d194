// A directory on a Store: one thread makes the calls that block, another waits for changes.
#pragma once

#include <memory>
#include <string>

#include "bus/directory/directory.h"
#include "tensorbus/store.h"

namespace tensorbus::bus {

struct StoreDirectoryOptions {
  std::string space = "default";
  // How long the store waits for a sign of life before it removes what this agent published.
  Duration time_to_live = std::chrono::seconds(5);
  // How long one call may take, and the pause after one that failed.
  Duration one_try = std::chrono::seconds(1);
  Duration between_tries = std::chrono::milliseconds(100);
  Duration look_at_lease_every = std::chrono::milliseconds(500);
};

// Error(unsupported) if the store has no leases or watches. Dropping the directory removes what it
// has published, which takes a few tries' time at most; the store stays open.
std::unique_ptr<Directory> make_store_directory(std::shared_ptr<Store> store,
                                                StoreDirectoryOptions options);

// The secret that all agents of a namespace share, made by the first: whoever knows the secret may
// read.
std::string shared_secret(Store& store, const std::string& space, Deadline deadline);

}  // namespace tensorbus::bus
