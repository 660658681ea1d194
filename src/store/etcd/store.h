// The store on etcd 3.4 or later, through its JSON gateway.
//
// Beyond the interface's contract:
// - One set() holds at most 4,000 entries and 1.5 MB in all, because more cannot change at one
// moment on etcd; a larger set() is refused before anything is sent.
// - The library's own keys lie under "__tensorbus_store/". The library's keys are never listed,
// watched or matched, and setting one is refused. A user with a password must be allowed to read
// and write there.
// - Names are looked up by the system's resolver, which cannot be interrupted; close() waits for a
//   look-up that is under way.
#pragma once

#include <memory>

#include "tensorbus/store.h"

namespace tensorbus::store {

// Throws Error(unreachable) if no host answers by the deadline, Error(denied) for a wrong user or
// password, Error(unsupported) if the gateway is disabled.
std::unique_ptr<Store> connect_etcd(const StoreUrl& url, const ConnectOptions& options);

}  // namespace tensorbus::store
