// The access to etcd that a store, its watches and its leases share; the last of them ends it.
#pragma once

#include "os/process/fork.h"
#include "store/etcd/session.h"

namespace tensorbus::store::etcd {

struct Access {
  explicit Access(const StoreUrl& url) : gateway(url), session(gateway) {}

  // Whether this is the child of a fork: a child has the objects, but neither the threads nor the
  // connections.
  bool forked() const noexcept { return os::fork_generation() != generation; }

  Call call(Deadline deadline, Cancellation* cancellation = nullptr) {
    if (forked()) {
      throw Error(Code::failed,
                  "this store was connected before a fork; connect again in the child process");
    }
    return {deadline, &closing, cancellation};
  }

  const unsigned generation = os::fork_generation();
  Cancellation closing;
  Gateway gateway;
  Session session;
};

}  // namespace tensorbus::store::etcd
