// A channel that records what goes through it: every command from its submission to its outcome.
// Nothing else of an agent knows that commands are recorded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bus/channel/channel.h"
#include "observe/recorder.h"

namespace tensorbus::bus {

// A batch or a pair, and the local name under which a worker has it; empty if that is not known.
using BatchSide = std::pair<std::string, std::string>;

// A command that has not ended.
struct RunningCommand {
  observe::Work work = observe::Work::send;
  BatchSide of;
  TimePoint since{};
  std::int64_t bytes_done = 0;
  std::int64_t bytes_total = 0;
};

// What a batch has last done with success.
struct LastMove {
  observe::Work work = observe::Work::send;
  std::int64_t version = 0;
  std::int64_t wall_ns = 0;  // when it ended
  std::int64_t bytes = 0;
  Duration took{};           // without what it waited for others
  std::vector<Rank> from{};  // whom it read from
};

// A version for which the worker fills a slot.
struct Filling {
  TimePoint asked_at{};
  TimePoint given_at{};
  std::int64_t version = 0;
};

// A batch that a worker has registered.
struct Registered {
  std::uint64_t session = 0;     // of the worker
  std::int64_t bytes = 0;        // of its tensors here
  std::int64_t shelf_bytes = 0;  // of all versions that it keeps of them
  std::int64_t world_size = 0;   // ranks of its side; 0: not known
  std::optional<Filling> filling{};
  std::optional<LastMove> last{};
  std::int64_t said_at = 0;  // steady nanoseconds of the last line about it
};

// Of the thread that has the agent. Both parts outlive it.
class ObservedChannel final : public Channel {
 public:
  ObservedChannel(Channel& inner, observe::Recorder& recorder, Rank rank)
      : inner_(inner), recorder_(recorder), rank_(rank) {}

  std::span<const ChannelEvent> poll() override;
  void complete(CommandId id, const Outcome& outcome) override;
  void fail(const Status& why) noexcept override { inner_.fail(why); }
  void progress(CommandId id, std::int64_t done, std::int64_t total) noexcept override;
  bool arm() override { return inner_.arm(); }
  int fd() const noexcept override { return inner_.fd(); }
  TimePoint wake_at() const noexcept override { return inner_.wake_at(); }

  observe::Recorder& recorder() const noexcept { return recorder_; }
  const std::map<CommandId, RunningCommand>& running() const noexcept { return running_; }
  const std::map<BatchSide, Registered>& registered() const noexcept { return registered_; }
  // Grows with every beginning and end.
  std::uint64_t changes() const noexcept { return changes_; }

 private:
  struct Pair {
    std::int64_t world_size = 0;
    std::uint64_t session = 0;
  };

  void begin(const Submission& submission);
  void end_session(std::uint64_t session);
  void count_shelves();
  // Nothing more comes of it.
  void forget(const std::string& batch);
  BatchSide place_of(std::string_view batch, std::optional<std::string_view> role) const;
  void note(const InitPair& pair, std::uint64_t session);
  BatchSide note(const RegisterBatch& batch, std::uint64_t session);
  // Nothing: it goes on with another command.
  std::optional<observe::Span> end(const RunningCommand& command, const Outcome& outcome);
  std::optional<observe::Span> end_publish(const RunningCommand& command, const Outcome& outcome);
  observe::Span span_of(const RunningCommand& command, const Outcome& outcome) const;
  void note(const observe::Span& span, const BatchSide& of, const Outcome& outcome);

  Channel& inner_;
  observe::Recorder& recorder_;
  const Rank rank_;
  std::map<CommandId, RunningCommand> running_;
  std::map<BatchSide, Registered> registered_;
  std::map<BatchSide, Pair> pairs_;
  std::uint64_t changes_ = 0;
};

}  // namespace tensorbus::bus
