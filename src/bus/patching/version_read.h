// The reading of one version of a shelf: patches to what the reader holds, if all sources offer
// one, else all bytes.
//
// Patches are read into memory of the agent, checked, and applied only when all are there: until
// then not a byte of the targets has changed. Of ranks that pull together, only when all ranks have
// got theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bus/patching/held_state.h"
#include "bus/patching/scratch.h"
#include "bus/patching/sums.h"
#include "bus/round/context.h"
#include "bus/round/recv.h"
#include "delta/patch/checked_patch.h"

namespace tensorbus::bus {

// How a version is read.
struct Manner {
  bool fetches = false;   // the targets stay as they are until resume()
  bool scratch = false;   // then: also what no patch can do is read before that, into other memory
  bool together = false;  // patches wait for resume(): other ranks have to get theirs
  Verify verify = Verify::off;  // what was patched is compared with what the sources have
};

class VersionRead : public std::enable_shared_from_this<VersionRead> {
 public:
  struct Origin {
    std::int64_t generation = 0;
    std::uint64_t serial = 0;
    std::int64_t version = 0;
    std::vector<std::shared_ptr<const plan::Stream>> streams{};
    std::vector<TensorView> targets{};
    // Keeps the targets.
    std::shared_ptr<Loan> loan{};
    // By rank, with the streams that come from there.
    struct Source {
      PeerConnectionPtr connection;
      std::vector<std::size_t> streams;
    };
    std::map<Rank, Source> sources{};
    // Begins to read all bytes, into the targets if there is no scratch; null: the version is not
    // there any more.
    std::function<std::shared_ptr<Recv>(const std::shared_ptr<Scratch>&)> dense{};
    bool promises = false;
    std::shared_ptr<const std::vector<std::string>> labels{};  // of the targets; may be null
    bool is_far = false;                                       // some source is on another host
    Manner manner{};
  };
  VersionRead(Context& context, Origin origin, std::shared_ptr<HeldState> held)
      : context_(context), origin_(std::move(origin)), held_(std::move(held)) {}

  void start();
  void on_patched(Rank rank, const Patched& answer);
  void on_sums(Rank rank, const VersionSums& sums);
  // Does a little; again soon while busy() is true.
  void step();
  bool busy() const noexcept {
    return phase_ == Phase::applying || (phase_ == Phase::verifying && !summed_);
  }
  TimePoint wake_at() const noexcept;

  bool done();
  // Waits for resume(): what that needs is here, or has to be read from the sources then.
  bool waits() const noexcept { return phase_ == Phase::waiting; }
  bool is_fetch() const noexcept { return origin_.manner.fetches; }
  bool needs_sources() const noexcept { return dense_later_.has_value(); }
  // The rest.
  void resume(Verify verify);
  const Outcome& outcome() const noexcept { return outcome_; }
  std::int64_t generation() const noexcept { return origin_.generation; }
  std::int64_t version() const noexcept { return origin_.version; }
  std::int64_t bytes_done() const noexcept;
  std::int64_t bytes_total() const noexcept;
  // Nothing before the first byte is asked for and once the outcome is known.
  std::optional<BeingRead> being_read() const;
  // What has not begun to be written stays as it is.
  void end(const Status& why);
  // The same, unless all that is needed is here.
  void lose_sources(const Status& why);

 private:
  enum class Phase : std::uint8_t {
    asking,
    fetching,
    waiting,
    applying,
    verifying,
    dense,
    done,
  };
  struct Fetched {
    std::size_t stream = 0;
    Rank rank = 0;
    OfferedPatch offered;
    std::shared_ptr<fabric::Peer> peer;
    std::string path{};
    std::vector<std::byte> bytes{};
    Shape shape{};
    Shape strides{1};
    std::shared_ptr<const plan::Stream> all{};  // of those bytes
    std::optional<fabric::OpId> running{};
    bool whole = false;
    std::optional<delta::CheckedPatch> checked{};
    std::size_t applied = 0;  // blocks
  };

  void ask();
  void be_patient();
  AskPatch question() const;
  bool can_be_patched() const noexcept;
  void bind_streams();
  bool add_patches(Rank rank, const Patched& answer);
  void fetch();
  void attach(std::size_t at);
  void on_attached(std::size_t at, const fabric::Completion& done);
  void on_fetched(std::size_t at, const fabric::Completion& done);
  void check_all();
  // Nothing is written before resume().
  bool holds_back() const noexcept { return origin_.manner.fetches && !resumed_; }
  void wait();
  std::string label_of(std::size_t target) const;
  // Whether the targets may be patched: nobody is known to have written to them.
  bool are_untouched() const;
  // Whether what was fetched fits what the targets have; else all is read.
  bool fits();
  // From the first byte that is written on.
  void touch();
  void begin_apply();
  void apply();
  void finish_apply();
  void begin_verifying();
  void verify();
  void finish_verifying(bool verified);
  // The targets have the version.
  void hold();
  void read_dense(delta::Why why);
  std::shared_ptr<Scratch> new_scratch() const;
  void step_dense();
  void finish_dense();
  void finish(Status status);
  void stop_fetching();
  // Whatever runs for an earlier phase comes too late.
  fabric::OpId operation(Phase phase, std::size_t at,
                         void (VersionRead::*then)(std::size_t, const fabric::Completion&));

  Context& context_;
  const Origin origin_;
  const std::shared_ptr<HeldState> held_;
  Phase phase_ = Phase::asking;
  Outcome outcome_;
  Update update_;
  bool resumed_ = false;
  bool fits_ = false;
  Verify verify_ = Verify::off;
  std::optional<delta::Why> dense_later_;
  std::shared_ptr<Scratch> scratch_;
  std::shared_ptr<const HeldState::Streams> streams_;
  std::map<Rank, bool> answered_;
  std::vector<Fetched> patches_;
  std::shared_ptr<Recv> recv_;
  std::unique_ptr<SumCheck> sums_;
  bool summed_ = false;  // the targets
  TimePoint begun_{};
  TimePoint patient_until_{};
};

}  // namespace tensorbus::bus
