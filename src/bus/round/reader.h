// The receiving end of one registration: its subscriptions in the senders' generation, and the recv
// that runs.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bus/channel/loan.h"
#include "bus/match/match.h"
#include "bus/round/context.h"
#include "bus/round/recv.h"
#include "bus/round/round.h"

namespace tensorbus::bus {

// Everything that joining needs, read from the records at one moment.
struct JoinPlan {
  std::string batch;
  End group;
  std::int64_t generation = 0;
  std::string side;  // of the reader's registration
  std::uint64_t registration = 0;
  std::uint64_t fingerprint = 0;
  std::int64_t version = 0;  // that this reader last read
  bool promises = false;     // nobody else writes to the targets
  std::vector<plan::Stream> streams;
  std::map<Rank, fabric::Address> sources;
  std::vector<TensorView> targets;  // in the senders' order
  std::map<Rank, Verify> verify;    // whose checksums are compared
  // Of the tensors, if any are compared or patched.
  std::shared_ptr<const std::vector<std::string>> labels;

  // What a reader asks of one source: the streams that come from it.
  Subscribe wish(Rank reader, Rank source) const;
};

// The serial of the subscriptions that are made in one joining: the numbers of their streams begin
// with it.
std::uint64_t draw_serial(const Context& context);

// Why joining failed, and when to try again: later after every failure.
class JoinTrouble {
 public:
  void fail(std::string why, TimePoint now);
  void end() noexcept;
  // For messages; empty if nothing has failed.
  const std::string& why() const noexcept { return why_; }
  // Max if nothing has failed, or it is being tried again.
  TimePoint retry_at() const noexcept { return retry_at_; }
  void retry() noexcept { retry_at_ = TimePoint::max(); }

 private:
  std::string why_;
  TimePoint retry_at_ = TimePoint::max();
  Duration backoff_ = Duration::zero();
};

class Reader : public std::enable_shared_from_this<Reader> {
 public:
  Reader(Context& context, std::shared_ptr<Loan> loan)
      : context_(context), loan_(std::move(loan)) {}

  // Other memory to read into. Only while no recv runs.
  void replace(std::shared_ptr<Loan> loan, std::vector<TensorView> targets) {
    loan_ = std::move(loan);
    plan_.targets = std::move(targets);
    parts_.clear();
    folds_.clear();
  }

  // Subscribes, joins and starts at every source. Only while idle.
  void join(JoinPlan plan);
  bool idle() const noexcept { return phase_ == Phase::idle; }
  bool started() const noexcept { return phase_ == Phase::started; }
  std::int64_t generation() const noexcept { return plan_.generation; }
  // The generation that the reader has started in, also when it has lost its sources since; 0: none
  // yet, or the end of that generation was dealt with.
  std::int64_t started_in() const noexcept { return started_in_; }
  void forget_start() noexcept { started_in_ = 0; }
  std::uint64_t fingerprint() const noexcept { return plan_.fingerprint; }
  // Why joining failed last; for messages.
  const std::string& trouble() const noexcept { return trouble_.why(); }
  // The sources that were lost when the reader last left.
  const std::vector<Rank>& lost() const noexcept { return lost_; }
  // After a failure the reader waits a little: until then join() is not called.
  bool waits() const noexcept { return retry_at() != TimePoint::max(); }
  TimePoint retry_at() const noexcept { return trouble_.retry_at(); }
  void retry() noexcept { trouble_.retry(); }
  // Whether the reader has something to read in rounds up to this one.
  bool goes_on(std::int64_t last_round) const;
  // Ends the reader's subscriptions at all sources; a recv that runs fails with this, naming
  // `rank`.
  void leave(const Status& why, std::optional<Rank> rank);

  void on_up(const PeerConnectionPtr& connection);
  void on_lost(const PeerConnectionPtr& connection, const Status& why);
  bool knows(std::uint64_t serial) const noexcept {
    return phase_ != Phase::idle && serial == serial_;
  }
  // A source of this rank itself has another connection.
  bool is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const;
  void on_message(const PeerConnectionPtr& connection, const AgentMessage& message);

  // Skips rounds that must be skipped and, if a recv is wanted and none runs, starts one as soon as
  // all sources offer the same round.
  void step(bool wanted);
  // The version that each source gives to the round that all sources offer; nothing while some
  // source does not offer it.
  std::optional<std::map<Rank, std::int64_t>> offered_versions() const;
  // Ends the round that all sources offer for this reader, unread.
  void pass_over(Mark mark);
  // A recv that runs, or is over and has not been taken.
  Recv* recv() noexcept { return recv_.get(); }
  void finish_recv();

  // Whether all sources offer the next round, or have offered `round` once.
  bool published(std::optional<std::int64_t> round) const;
  // The sources that have not offered that round: a recv waits for them.
  std::vector<Rank> awaited(std::optional<std::int64_t> round = std::nullopt) const;
  // Asks a source which versions all ranks have. False: this reader has not joined that source.
  bool ask_versions(Rank rank);
  // The sources that are sending to this reader now, and which round.
  std::map<Rank, std::int64_t> offering() const;
  // Marks the round of a source: this rank and the source are both sending. Nothing happens if the
  // round is over.
  void conflict(Rank rank, std::int64_t round);

 private:
  enum class Phase : std::uint8_t { idle, subscribing, joining, started };
  struct SourceEnd {
    PeerConnectionPtr connection;
    bool asked = false;
    std::shared_ptr<const fabric::RemoteRegion> region;
    bool attaching = false;           // to another region; until then messages wait
    bool let_go = false;              // the source has none of that number any more
    std::deque<AgentMessage> held{};  // in the order in which they came
    std::uint32_t word = 0;
    std::int64_t next = 0;  // 0: the source has not answered the join
    SourceView view;
    std::uint64_t ticket = 0;
    std::int64_t version = 0;  // of the round that is offered
    Sums sums;                 // of the round that comes
    bool swapping = false;
  };
  // What is read in every round, bound to the targets.
  struct Part {
    std::uint64_t number = 0;
    std::shared_ptr<const plan::Stream> stream;
    std::span<const TensorView> targets;
    std::shared_ptr<Digest> digest{};  // if it is checked
    std::size_t first_sum = 0;         // among those of its source
  };

  void ask(Rank rank, SourceEnd& source);
  void on_subscribed(Rank rank, SourceEnd& source, const Subscribed& answer);
  void attach(Rank rank, SourceEnd& source, std::uint64_t region);
  void on_attached(Rank rank, const fabric::Completion& done);
  // Hears all messages that have waited, until messages have to wait again.
  void hear_held(Rank rank);
  void hear(Rank rank, SourceEnd& source, const MessageBody& body);
  void on_joined(SourceEnd& source, const Joined& joined);
  void on_offer(Rank rank, SourceEnd& source, const Offer& offer);
  static void on_sums(SourceEnd& source, const Sums& sums);
  void on_over(Rank rank, const Over& over);
  void join_all_when_ready();
  void start_when_joined();
  void start_recv(std::int64_t round);
  // Whose checksums are compared in a round: of those that verify first rounds only, who has sent
  // some.
  std::set<Rank> checked_in(std::int64_t round) const;
  void make_parts(std::int64_t round);
  std::shared_ptr<const plan::Stream> stream_as_stored(std::size_t at) const;
  void add_part(std::uint64_t number, std::shared_ptr<const plan::Stream> stream,
                std::span<const TensorView> targets);
  RecvPart part_of(const Part& part, std::int64_t round) const;
  void swap_word(Rank rank, std::int64_t round, std::uint64_t ticket, Mark mark);
  void on_word(Rank rank, std::uint64_t serial, std::int64_t round, RoundWord word);
  void fail_joining(const std::string& why);
  Choice choice() const;
  // Whether a source that looks like this has offered this round.
  static bool has_offered(const SourceView& view, std::int64_t round) {
    return view.floor > round || (view.floor == round && view.offered);
  }
  fabric::Source lent(const SourceEnd& source) const {
    return {source.connection->peer(), source.region, source.ticket};
  }

  Context& context_;
  std::shared_ptr<Loan> loan_;
  JoinPlan plan_;
  Phase phase_ = Phase::idle;
  std::uint64_t serial_ = 0;
  std::int64_t started_in_ = 0;
  std::vector<std::shared_ptr<const plan::Stream>> streams_;
  std::vector<Part> parts_;  // made when needed
  std::vector<std::shared_ptr<GroupFold>> folds_;
  std::set<Rank> checked_;  // whose checksums these compare
  std::map<Rank, SourceEnd> sources_;
  std::shared_ptr<Recv> recv_;
  JoinTrouble trouble_;
  std::vector<Rank> lost_;
};

}  // namespace tensorbus::bus
