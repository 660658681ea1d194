// One recv, from the moment that all its sources offer the round: reads every byte, then commits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bus/channel/being_read.h"
#include "bus/channel/loan.h"
#include "bus/round/context.h"
#include "bus/round/digest.h"
#include "bus/round/fold.h"
#include "bus/round/round.h"

namespace tensorbus::bus {

// What is read, and where to.
struct RecvPart {
  std::shared_ptr<const plan::Stream> stream;
  std::uint64_t number = 0;
  std::vector<fabric::Source> sources;
  std::span<const TensorView> targets;
  std::shared_ptr<Digest> digest{};   // of what was read; none: it is not checked
  std::vector<std::uint64_t> sums{};  // what the source says the digest must be
};
// One source's word.
struct RecvCommit {
  Rank rank = 0;
  PeerConnectionPtr connection;
  fabric::Source source;
  std::uint32_t word = 0;
};

class Recv : public std::enable_shared_from_this<Recv> {
 public:
  Recv(Context& context, std::int64_t generation, std::uint64_t serial, std::int64_t round,
       std::int64_t version, std::vector<RecvCommit> commits, std::shared_ptr<Loan> loan);

  // `folds` reduce what was read into their memory. `labels` name the tensors by position in the
  // batch; only checks need them.
  void start(std::vector<RecvPart> parts, std::vector<std::shared_ptr<GroupFold>> folds,
             std::shared_ptr<const std::vector<std::string>> labels);
  // Compares a little of what was read with what was offered; again soon while checks() is true.
  void step();
  bool checks() const noexcept { return state_ == RecvState::reading && checked_.has_value(); }
  // What was read is not what was offered.
  bool damaged() const noexcept { return damaged_; }

  std::uint64_t serial() const noexcept { return serial_; }
  std::int64_t generation() const noexcept { return generation_; }
  std::int64_t round() const noexcept { return round_; }
  RecvState state() const noexcept { return state_; }
  bool done() const noexcept { return state_ == RecvState::done; }
  const Outcome& outcome() const noexcept { return outcome_; }
  std::int64_t bytes_done() const noexcept;
  std::int64_t bytes_total() const noexcept { return bytes_total_; }
  // Nothing before the first byte is asked for and once the outcome is known.
  std::optional<BeingRead> being_read() const;
  // Lets the sources know how far the recv is, if that is new to them.
  void tell_sources();
  // Memory was taken back and no sender has said why: for a while the sender may turn out to be
  // gone. After that while the round counts as withdrawn.
  bool unexplained() noexcept;
  TimePoint explained_by() const noexcept;
  // The round can not be read again.
  bool consumed() const noexcept { return consumed_; }

  // A source has ended the round.
  void withdrawn(Rank rank, const std::string& why);
  void lost(const Status& why, Rank rank);
  // The recv is cancelled; nothing happens to a commit that has begun.
  void end(const Status& why);
  // At the deadline also a commit is given up; the round is used up then.
  void give_up(const Status& why);

 private:
  // Of the phase that ends now; the next one begins.
  std::int64_t end_phase() noexcept;
  void note_sources();
  void fail(Status why, RecvEvent event);
  void fail_here(const Status& why);
  std::int64_t bytes_of(std::size_t part) const noexcept;
  void on_read(std::size_t part, const fabric::Completion& completion);
  void check_or_commit();
  void settle_checks() noexcept;
  void compare(const RecvPart& part);
  void commit();
  void on_committed(std::size_t at, const fabric::Completion& completion);
  void settle();
  void await_explanation() { taken_back_at_ = context_.now; }
  // What a failure says of the round and the targets.
  std::string aftermath() const;

  Context& context_;
  const std::int64_t generation_;
  const std::uint64_t serial_;
  const std::int64_t round_;
  const std::vector<RecvCommit> commits_;
  const std::shared_ptr<Loan> loan_;
  RecvState state_ = RecvState::waiting;
  Outcome outcome_;
  std::vector<RecvPart> parts_;
  std::vector<std::shared_ptr<GroupFold>> folds_;
  std::vector<std::optional<fabric::OpId>> running_;
  std::size_t left_ = 0;
  std::shared_ptr<const std::vector<std::string>> labels_;
  std::optional<std::size_t> checked_;  // parts, once all is read
  bool damaged_ = false;
  std::size_t committed_ = 0;
  bool consumed_ = false;
  std::optional<std::pair<Status, Rank>> loss_;  // heard of while the recv commits
  std::optional<TimePoint> taken_back_at_;       // and not explained
  std::optional<TimePoint> explained_by_;
  std::int64_t bytes_done_ = 0;  // of parts that are read
  std::int64_t bytes_told_ = 0;
  TimePoint tell_at_{};
  TimePoint phase_began_at_{};
  std::int64_t bytes_total_ = 0;
};

}  // namespace tensorbus::bus
