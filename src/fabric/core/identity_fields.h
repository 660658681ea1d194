// The fields of addresses, for what holds some.
#pragma once

#include "fabric/core/identity.h"
#include "wire/message.h"

namespace tensorbus::fabric {

template <typename Archive>
void fields(Archive& a, Identity& identity) {
  a("host", identity.host);
  a.natural("pid", identity.pid);
  a("start_time", identity.start_time);
  a("id", identity.id);
  a("name", identity.name);
}

template <typename Archive>
void fields(Archive& a, Address& address) {
  a("identity", address.identity);
  a("kind", address.kind);
  a.bytes("where", address.where);
}

}  // namespace tensorbus::fabric
