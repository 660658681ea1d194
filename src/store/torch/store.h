// tcpstore://: a client of torch's own TCPStore server, or of anything that speaks its protocol.
#pragma once

#include <memory>

#include "tensorbus/store.h"

namespace tensorbus::store {

// Never sends anything that torch's servers do not know. What they cannot do shows:
// - compare_and_set() looks first, then swaps; torch answers with the value alone. If somebody else
//   changes the key in between, then `swapped` is also true when it was they who set it to
//   `desired`, when an absent key was expected and is empty by now, when an empty one was expected
//   and is absent by now, and when a key is to keep its value and is absent by now. Values that
//   differ between writers avoid all of it.
// - set() of several entries shows them one after the other.
// - A torch queue that is not empty counts as a key with an empty value.
// - After a reconnect, reads, waits and set() are sent again. When the answer to add(), join(),
//   erase() or compare_and_set() is lost, that is Error(unreachable): the call may have been
//   applied.
// - barrier() keeps its state in keys that list() does not show.
std::unique_ptr<Store> connect_torch(const StoreUrl::Host& host, const ConnectOptions& options);

}  // namespace tensorbus::store
