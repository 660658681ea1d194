// What a registration reads from a group of senders, and where it finds them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bus/registration/own_registration.h"
#include "bus/round/reader.h"

namespace tensorbus::bus {

class Course {
 public:
  explicit Course(const OwnRegistration& self) : self_(self) {}

  // `senders`: as the record of their generation has them. Plans are made anew if a group is.
  void set(const GroupPtr& senders, const GroupPtr& own);
  // Null before set().
  const GroupPtr& senders() const noexcept { return senders_; }
  std::uint64_t fingerprint() const noexcept { return passage_->fingerprint; }
  // This rank's tensors as the plans count them; none before set().
  std::vector<TensorView> targets() const;
  // The senders are where this catalog says.
  JoinPlan plan(std::int64_t generation, const Catalog& catalog) const;

 private:
  void find_sources(JoinPlan& plan, const Catalog& catalog) const;

  const OwnRegistration& self_;
  GroupPtr senders_;
  GroupPtr own_;
  std::unique_ptr<const Passage> passage_;
};

}  // namespace tensorbus::bus
