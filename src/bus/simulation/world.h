// One simulated cluster with its users and its faults.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "bus/simulation/checks.h"
#include "bus/simulation/claims/patch_claims.h"
#include "bus/simulation/joint_pulls.h"
#include "bus/simulation/users.h"
#include "tensorbus/layout.h"

namespace tensorbus::bus::simulation {

struct UserSide {
  std::string name;
  std::string remote;
  std::vector<Rank> ranks;
  SideLayout layout;
  bool sends = false;

  Layout whole() const { return {Mesh(layout.mesh, ranks), layout.placements}; }
};

class World;
class ShelfUser;

// Larger than every tag: the largest of several sources is garbage if one is.
inline constexpr std::int64_t garbage = std::int64_t{1} << 62;

// An element tells where it comes from: the step that filled it in, the sender and its life.
constexpr std::int64_t tag_of(std::int64_t step, Life life, std::int64_t element) {
  return step << 40 | std::int64_t{life.rank} << 32 | life.number << 16 | element;
}
constexpr std::int64_t step_of(std::int64_t number) { return number >> 40; }
constexpr Life life_of(std::int64_t number) {
  return {static_cast<Rank>(number >> 32 & 0xFF), number >> 16 & 0xFFFF};
}
constexpr std::int64_t element_of(std::int64_t number) { return number & 0xFFFF; }

// The user of one rank.
class User {
 public:
  User(World& world, const UserSide& side, Rank rank) : world_(world), side_(side), rank_(rank) {}
  virtual ~User() = default;
  User(const User&) = delete;
  User& operator=(const User&) = delete;

  // Does what comes next for it, if it waits for nothing.
  virtual void act() = 0;
  // Loses patience with what it waits for.
  virtual void pass_time() = 0;
  // No byte of what it received is written after an error.
  virtual void check_untouched() = 0;
  virtual void die() = 0;
  // The user's agent died and another has taken over: what was pending has failed.
  virtual void lose_agent() = 0;
  virtual void close() = 0;
  virtual bool closed() const = 0;
  virtual std::string doing() const = 0;

  Rank rank() const noexcept { return rank_; }
  std::size_t successes = 0;

 protected:
  Node& node() const;
  // The user's part of a tensor of the side, element by element.
  void for_each(const Shape& shape, std::span<std::int64_t> numbers,
                const std::function<void(std::int64_t& number, std::int64_t i)>& visit) const;

  World& world_;
  const UserSide& side_;
  const Rank rank_;
};

// Sends and receives rounds.
class RoundUser final : public User {
 public:
  using User::User;

  void act() override;
  void pass_time() override;
  void check_untouched() override;
  void die() override;
  void lose_agent() override;
  void close() override;
  bool closed() const override { return phase_ == Phase::closed && pending_.empty(); }
  std::string doing() const override;

 private:
  enum class Phase : std::uint8_t { init, enlist, work, leave, closed };
  struct Pending {
    CommandId id;
    Direction direction = Direction::send;
    std::uint64_t ticket = 0;
    std::int64_t round = 0;
    std::uint64_t since = 0;                // when it began, in steps
    std::optional<TimePoint> expires_at{};  // its deadline, if it is short
    std::optional<TimePoint> due{};         // its deadline
    std::optional<TimePoint> cancels_at{};
    std::optional<TimePoint> raises_at{};  // the worker's own deadline, whatever the agent does
    bool outdated = false;                 // a registration of tensors that have changed since
    bool restages = false;                 // other memory to send from
  };

  void init();
  void enlist();
  void name_tensor();
  void ask_to_enlist();
  std::shared_ptr<SimulatedLoan> new_loan() const;
  void restage();
  void on_restaged(const Outcome& outcome);
  void send();
  void recv();
  Duration patience() const;
  void leave();
  void raise(const Pending& pending);
  void end_early(const Pending& pending, const std::string& why);
  // Submits the command, perhaps with little patience.
  void submit(Pending pending, Command command, std::shared_ptr<Loan> loan, Duration most);
  void on_outcome(const Pending& pending, const Outcome& outcome);
  void on_send(const Pending& pending, const Outcome& outcome);
  void on_recv(const Pending& pending, const Outcome& outcome);
  void check_received(std::int64_t round);
  // No outcome of a round depends on a sender that leaves after it.
  void check_send_went_on(const Pending& pending, const Outcome& outcome);
  void check_recv_went_on(const Outcome& outcome);
  void spoil();
  std::span<std::int64_t> numbers() const { return loan_->numbers(0); }

  Phase phase_ = Phase::init;
  std::deque<Pending> pending_;
  std::shared_ptr<SimulatedLoan> loan_;
  std::shared_ptr<SimulatedLoan> next_loan_;  // that takes its place
  bool bare_ = false;                         // what is to be staged has no memory yet
  RegisterBatch enlisting_;
  std::int64_t life_ = 0;  // registrations so far
  std::uint64_t ticket_ = 0;
  std::int64_t accepted_ = 0;               // sends of this life
  std::int64_t opened_ = 0;                 // the last of them that was answered for itself
  std::map<Life, std::int64_t> last_read_;  // rounds, by source
  std::int64_t read_here_ = 0;              // the last round of this registration
  Life read_from_;                          // one of its sources
  std::int64_t content_ = 0;                // which tensors it has registered
  std::int64_t last_version_ = 0;
  Shape shape_;
  std::vector<std::int64_t> after_error_;
};

class World {
 public:
  World(std::uint64_t seed, const Faults& faults);
  Report run();

  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    const auto time = std::chrono::duration_cast<std::chrono::microseconds>(
        cluster.clock().now() - TimePoint(std::chrono::hours(1)));
    report.history.push_back(fmt::format("{:>9} us  ", time.count()) +
                             fmt::format(format, std::forward<Args>(args)...));
  }
  void violate(const std::string& invariant, const std::string& what);
  void hit(const std::string& fault, Rank rank);
  bool odds(std::uint64_t one_in) { return cluster.random(one_in) == 0; }

  // Whether a user acts up now.
  bool impatient() { return faults_.expires && !healed_ && odds(4); }
  bool healed() const noexcept { return healed_; }
  bool two_way() const noexcept { return two_way_; }
  // Nothing has been hurt yet.
  bool calm() const noexcept { return calm_; }
  // Users send state dicts, whose names and shapes all of them change from time to time.
  bool linked() const noexcept { return linked_; }
  // Users publish and pull; and all ranks of a side pull together.
  bool shelved() const noexcept { return shelved_; }
  bool together() const noexcept { return together_; }
  // No user of the side waits for a version that was to come when they still published.
  bool pulls_what_is_there(const UserSide& side) const;
  // The newest version of a generation that all its senders have told their agents of; 0: none.
  std::int64_t newest_of_all(Life sender) const;
  // In which step this element of a version last changed; nothing: the sender does not have it.
  std::optional<std::int64_t> changed_in(Life sender, std::int64_t version,
                                         std::int64_t element) const;
  bool have_all_published(Life sender, std::int64_t version) const;
  // One of the senders that publish now, if all are in one generation.
  std::optional<Life> publisher() const;
  std::size_t keep() const noexcept { return keep_; }
  // Readers promise to leave their tensors alone, and may get patches.
  bool deltas() const noexcept { return delta_mode_ != delta::Mode::off; }
  delta::Mode delta_mode() const noexcept { return delta_mode_; }
  std::optional<std::int64_t> delta_memory() const noexcept { return delta_memory_; }
  // Nobody publishes anything any more; and what was being published is there.
  bool resting() const noexcept { return resting_; }
  bool rested() const noexcept { return rested_; }
  std::int64_t content() const noexcept { return content_; }
  Shape shape_of(std::int64_t content) const { return {content % 2 == 0 ? 4 : 3, 6}; }

  Cluster cluster;
  Report report;
  Checks checks;
  // What a sender's memory held while a round was open.
  std::map<std::tuple<Life, std::int64_t>, std::int64_t> tags;
  // In which step each element of a version last changed.
  std::map<std::tuple<Life, std::int64_t>, std::map<std::int64_t, std::int64_t>> contents;
  // How a round ended, as its sender was told.
  std::map<std::tuple<Life, std::int64_t>, std::map<Rank, ReaderOutcome>> sent;
  std::set<std::tuple<Life, std::int64_t, Rank>> read;       // by whom
  std::set<std::pair<Life, std::int64_t>> shelved_versions;  // and whose
  JointPulls joint_pulls;
  PatchClaims claims;

 private:
  void make_sides();
  void choose_deltas(std::uint64_t seed);
  PatchClaims::Needs what_claims_need();
  const ShelfUser* shelf_user(Rank rank) const;
  void happen();
  void change_content();
  bool satisfied() const;
  // All users have successes, again after their tensors have changed.
  void expect_progress(std::size_t most_steps);
  // Without publishes every reader gets what there is.
  void expect_newest(std::size_t most_steps);
  // Breaks a line on which this agent has just said something, more likely after rare steps.
  void lose_what_was_said(Rank rank);
  void hurt();
  // Repairs something that is broken; false: nothing is.
  bool repair();
  void hurt_process(User& user, Node& node);
  void hurt_agent(Rank rank, Node& node);
  void hurt_lines(Rank rank, Node& node);
  void lose_list(Rank rank);
  void heal();
  void finish();
  std::vector<std::unique_ptr<User>> users_;

  const Faults faults_;
  std::vector<UserSide> sides_;
  bool healed_ = true;
  bool two_way_ = false;
  bool linked_ = false;
  bool shelved_ = false;
  bool together_ = false;
  std::size_t keep_ = 2;
  delta::Mode delta_mode_ = delta::Mode::off;
  std::optional<std::int64_t> delta_memory_;
  bool resting_ = false;
  bool rested_ = false;
  bool calm_ = true;
  std::int64_t content_ = 0;
  std::map<Step, std::uint64_t> reached_;  // how often, with faults
};

}  // namespace tensorbus::bus::simulation
