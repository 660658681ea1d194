// A barrier that can be used again at once, without a server that counts.
//
// A member that arrives sets a key of its own, under a lease, so that a member that dies is not
// counted. A member that then sees enough arrivals releases the oldest of them by removing their
// keys; a member is inside as long as its key is there. Releasing and withdrawing both write the
// barrier's turn key, and a release happens only if nobody wrote the turn key since the arrivals
// were counted: a member that gave up is never among the released. The turn key stays, as the one
// trace of a barrier.
#pragma once

#include <string>

#include "store/etcd/lease.h"

namespace tensorbus::store::etcd {

class Barrier {
 public:
  Barrier(std::shared_ptr<Access> access, Leases& leases, const std::string& name,
          std::size_t count, const std::string& member);

  // Once. Throws Error(timeout) saying who is missing; the caller is out then.
  void pass(const Call& call);

 private:
  struct View {
    bool inside = false;   // this member's key is there
    bool present = false;  // and so is its lease
    std::size_t arrived = 0;
    std::size_t wanted = 0;  // what the oldest of them came for
    std::string oldest;
    std::int64_t revision = 0;
  };

  void arrive(const Call& call);
  Json arrivals_by_age() const;
  View look(const Call& call);
  void release(const Call& call);
  void await_change(std::int64_t after_revision, const Call& call);
  // False if this member was released before, and so has passed.
  bool withdraw(const Call& call);
  void leave(const Status& reason);
  std::string who_is_missing(const Call& call);

  const std::shared_ptr<Access> access_;
  Leases& leases_;
  const std::string name_;
  const std::size_t count_;
  const std::string member_;
  const std::string base_;
  std::shared_ptr<Presence> presence_;
  std::string own_;            // this member's key
  bool acknowledged_ = false;  // etcd has said that the key is set
  Backoff backoff_;
};

}  // namespace tensorbus::store::etcd
