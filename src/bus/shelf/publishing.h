// The end of a registration that publishes: one version at a time gets a slot of the shelf, which
// the worker fills.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bus/registration/awaited.h"
#include "bus/registration/own_registration.h"
#include "bus/shelf/shelves.h"

namespace tensorbus::bus {

class Publishing {
 public:
  Publishing(OwnRegistration& self, Shelves& shelves) : self_(self), shelves_(shelves) {}

  // `group`: the senders as the generation's record has them.
  void begin(const Generation& generation, const GroupPtr& group);
  bool active() const noexcept { return shelf_ != nullptr; }
  const GroupPtr& group() const noexcept { return group_; }
  // The last version that was begun; the next generation counts on from there.
  std::int64_t last_version() const noexcept { return last_; }
  // The newest version that is complete; 0: none.
  std::int64_t newest() const noexcept { return active() ? shelf_->slots().newest() : 0; }
  // How many versions the worker has got an answer for.
  std::int64_t answered() const noexcept { return self_.membership.last_round - (idle() ? 0 : 1); }
  // No version waits or is being filled.
  bool idle() const noexcept { return !waiting_ && filling_ == 0; }

  void publish(CommandId id, const Publish& publish, Deadline deadline);
  void shelve(CommandId id, const Shelve& shelve);
  // False: there is no such command here.
  bool cancel(CommandId id, const Status& why);
  // Fails a version that waits and is not one of the first `after`.
  void fail(const Status& why, Rank lost, std::int64_t after);
  enum class Parting : std::uint8_t { finished, back_soon };
  void close(const Status& why, Parting parting);

  void step();
  // A version waits in vain for its generation, and ends with the next step.
  bool is_late() const noexcept { return early_ && early_->deadline.at() <= self_.context.now; }
  TimePoint wake_at() const;
  // What the version that waits waits for; nothing if none does.
  Awaited awaited() const;
  // Nothing if none waits.
  std::string current() const { return waiting_ || early_ ? "publish" : ""; }

 private:
  struct Waiting {
    CommandId id;
    Publish command;
    std::int64_t version = 0;
    Deadline deadline;
    TimePoint patient_until{};
    bool warned = false;
  };
  // A version whose generation has not begun, and which has no number yet.
  struct Early {
    CommandId id;
    Publish command;
    Deadline deadline;
  };

  void end(Status why, std::vector<Rank> lost = {});
  void take_early();
  void end_early(Status why);
  // Once for each version.
  void warn();
  std::string obstacle() const;

  OwnRegistration& self_;
  Shelves& shelves_;
  GroupPtr group_;
  std::shared_ptr<Shelf> shelf_;
  std::int64_t first_ = 0;    // version that may be named: one above the last of this generation
  std::int64_t last_ = 0;     // that was begun, in whatever generation
  std::int64_t filling_ = 0;  // the version that the worker copies; 0: none
  bool compares_ = false;     // with the version before
  std::optional<Waiting> waiting_;
  std::optional<Early> early_;
};

}  // namespace tensorbus::bus
