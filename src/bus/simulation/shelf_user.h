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
  // Nothing: the user waits for no pull.
  std::optional<PatchClaims::OnePull> pull_that_waits() const {
    if (publishes() || phase_ != Phase::work || !pending_) return std::nullopt;
    return PatchClaims::OnePull{pending_->since, pending_->dense_reads};
  }
  // How what the user has differs from this version; empty: it does not. `source`: one of those
  // who published it.
  std::string lacks(std::int64_t generation, std::int64_t version,
                    std::optional<Life>* source = nullptr) const;

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
    bool plain = false;             // a pull of what there is, begun while all rested
    bool at_rest = false;           // all publishers did when it began
    std::uint64_t dense_reads = 0;  // of this rank before
  };
  struct Filling {
    std::int64_t version = 0;
    std::size_t slot = 0;
    std::size_t written = 0;                // elements
    std::optional<std::size_t> previous{};  // the slot to compare with
  };

  void submit(Pending pending, Command command, std::shared_ptr<Loan> loan, Duration most);
  void on_outcome(const Pending& pending, const Outcome& outcome);
  void on_enlisted(const Pending& pending, const Outcome& outcome);
  void on_published(const Outcome& outcome);
  void on_fetched(const Outcome& outcome);
  void on_pulled(const Pending& pending, const Outcome& outcome);
  void drop_pending();
  void check_ends();
  void check_pulled(const Pending& pending, const Outcome& outcome);
  void check_failed(const Pending& pending, const Outcome& outcome);
  // A patch must have every element that is not what it was.
  void check_nothing_stale(const Outcome& outcome);
  void check_not_older(const Pull& wish, const Outcome& outcome, Life source);
  void check_newest(const Outcome& outcome, Life source);
  void init();
  void enlist();
  void ask_to_enlist();
  void publish();
  // Some elements change.
  void train();
  void fill();
  // Before a slot is written to.
  void check_gate_moved();
  std::uint64_t gate_of(std::size_t slot) const;
  // Writes down which elements differ from those of the version before.
  void compare();
  void pull();
  Pull next_pull();
  void choose_manner(Pull& pull);
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
  std::vector<std::int64_t> before_;     // what a pull found
  std::optional<std::int64_t> fetched_;  // and not applied
  // In which attempt each element last changed; 0: in none of this life.
  std::vector<std::int64_t> changed_in_;
};

}  // namespace tensorbus::bus::simulation
