// Users who publish and pull: publishers run ahead of each other and fill their slots element by
// element, readers pull at every moment and check what they got.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bus/simulation/world.h"

namespace tensorbus::bus::simulation {

class ShelfUser final : public User {
 public:
  using User::User;

  void act() override;
  void pass_time() override;
  void check_untouched() override;
  void die() override;
  void lose_agent() override;
  void close() override;
  bool closed() const override { return phase_ == Phase::closed && !pending_; }
  std::string doing() const override;
  bool publishes() const noexcept { return side_.sends; }
  // Nothing is being filled, and nothing will be begun while the world rests; the user may wait for
  // a slot.
  bool rests() const noexcept {
    return phase_ == Phase::work && !filling_ && (!pending_ || !shelving_);
  }
  // The user waits for nothing that may never come while the world rests.
  bool pulls_what_is_there() const noexcept {
    return phase_ == Phase::work && (!pending_ || pending_->plain);
  }
  Life life() const noexcept { return {rank_, life_}; }

 private:
  enum class Phase : std::uint8_t { init, enlist, work, leave, closed };
  struct Pending {
    CommandId id;
    std::uint64_t since = 0;  // in steps
    std::optional<TimePoint> expires_at{};
    std::optional<TimePoint> cancels_at{};
    std::optional<TimePoint> due{};
    std::uint64_t late_for = 0;  // in steps without faults
    Pull pull{};
    bool plain = false;    // a pull of what there is, begun while all rested
    bool at_rest = false;  // all publishers did when it began
  };
  struct Filling {
    std::int64_t version = 0;
    std::size_t slot = 0;
    std::size_t written = 0;  // elements
  };

  void submit(Pending pending, Command command, std::shared_ptr<Loan> loan, Duration most);
  void on_outcome(const Pending& pending, const Outcome& outcome);
  void on_enlisted(const Pending& pending, const Outcome& outcome);
  void on_published(const Outcome& outcome);
  void on_pulled(const Pending& pending, const Outcome& outcome);
  void drop_pending();
  void check_ends();
  void check_pulled(const Pending& pending, const Outcome& outcome);
  void check_not_older(const Pull& wish, const Outcome& outcome, Life source);
  void check_newest(const Outcome& outcome, Life source);
  void init();
  void enlist();
  void ask_to_enlist();
  void publish();
  void fill();
  // Before a slot is written to.
  void check_gate_moved();
  std::uint64_t gate_of(std::size_t slot) const;
  void pull();
  void leave();

  Phase phase_ = Phase::init;
  std::optional<Pending> pending_;
  std::optional<Filling> filling_;
  bool shelving_ = false;                            // what is pending says that the slot is filled
  std::map<std::size_t, std::uint64_t> shelved_at_;  // where a gate stood when its slot was
  std::shared_ptr<SimulatedLoan> loan_;
  RegisterBatch enlisting_;
  std::int64_t life_ = 0;
  std::int64_t answered_ = 0;  // versions of this life
  std::int64_t attempts_ = 0;  // to publish one
  std::int64_t last_version_ = 0;
  std::int64_t last_generation_ = 0;
  std::int64_t last_life_ = 0;  // that pulled
  std::vector<std::int64_t> after_error_;
};

}  // namespace tensorbus::bus::simulation
