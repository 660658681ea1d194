// What a store, its watches and its leases share. The last of them to go takes it along.
#pragma once

#include "store/etcd_session.h"

namespace tensorbus::store::etcd {

struct Link {
  explicit Link(const StoreUrl& url) : gateway(url), session(gateway) {}

  Call call(Deadline deadline, Cancellation* cancellation = nullptr) {
    return {deadline, &closing, cancellation};
  }

  Cancellation closing;
  Gateway gateway;
  Session session;
};

}  // namespace tensorbus::store::etcd
