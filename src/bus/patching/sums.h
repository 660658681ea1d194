// Whether what a reader has patched itself to is what its sources have: checksums of all of it,
// tensor by tensor, made at both ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "bus/round/digest.h"
#include "bus/round/messages.h"

namespace tensorbus::bus {

// At a source.
class SumMaker {
 public:
  using Streams = std::vector<std::shared_ptr<const plan::Stream>>;
  // Takes the place of what this reader asked for before. `tensors`: of the slot that has the
  // version, borrowed until the answer.
  void ask(std::uint64_t serial, const AskSums& ask, const Streams& streams,
           std::span<const TensorView> tensors);
  void leave(std::uint64_t serial);
  bool busy() const noexcept { return !jobs_.empty(); }
  struct Done {
    std::uint64_t serial = 0;
    std::int64_t version = 0;
    std::vector<std::uint64_t> sums{};  // of all streams, one after the other
  };
  // Works a little; says what is done.
  std::optional<Done> step();

 private:
  struct Job {
    std::uint64_t serial = 0;
    std::int64_t version = 0;
    std::vector<std::unique_ptr<Digest>> digests;  // by stream
    std::size_t at = 0;
    std::vector<std::uint64_t> sums{};
  };
  std::list<Job> jobs_;  // one after the other
};

// At the reader.
class SumCheck {
 public:
  using Streams = std::vector<std::shared_ptr<const plan::Stream>>;
  // By rank, which of the streams come from there.
  using Sources = std::map<Rank, std::vector<std::size_t>>;
  // The targets are borrowed.
  SumCheck(const Streams& streams, const Sources& sources, Verify verify, std::int64_t version,
           std::span<const TensorView> targets);

  // A message of several. False: the source cannot say, or these are not the sums of what the
  // reader has.
  bool take(Rank rank, const VersionSums& sums);
  // Looks at a little of the targets. False: there is more.
  bool work();
  // All sources have answered.
  bool answered() const noexcept { return awaited_.empty(); }
  // After all that. The positions of the targets that are not what the sources have.
  std::vector<std::size_t> different() const;

 private:
  const Streams streams_;
  const Sources sources_;
  std::vector<std::unique_ptr<Digest>> digests_;  // by stream
  std::size_t at_ = 0;
  std::map<Rank, std::vector<std::uint64_t>> sums_;
  std::set<Rank> awaited_;
};

}  // namespace tensorbus::bus
