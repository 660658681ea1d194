// What must hold after every step of a simulated cluster, whatever happened to the cluster: words,
// generations and joins. Numbers are those of the invariants in docs/protocol.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bus/round/messages.h"
#include "bus/round/word.h"
#include "bus/simulation/simulation.h"

namespace tensorbus::bus::simulation {

// A registration of a rank; lives count from 1.
struct Life {
  Rank rank = 0;
  std::int64_t number = 0;
  friend auto operator<=>(const Life&, const Life&) = default;
};

class Checks {
 public:
  using Violate = std::function<void(const std::string& invariant, const std::string& what)>;
  Checks(Cluster& cluster, Violate violate);

  // A user registers; until the user has, and after a death, a lapse or a close, its rank may end
  // generations. Others hear of a lapse at any later time.
  void note_registration(std::uint64_t registration, Life life);
  // The user has registered, as it asked for in the step `since`.
  void note_registered(std::uint64_t registration, Rank rank, std::uint64_t since);
  void note_death(Rank rank) {
    troubled_.insert(rank);
    deaths_[rank] = steps_;
  }
  void note_lapse(Rank rank) {
    lapsed_.insert(rank);
    deaths_[rank] = steps_;
  }
  // A user closes, whose sends were answered up to this round.
  void note_leaving(Life life, std::int64_t answered) {
    troubled_.insert(life.rank);
    left_[life] = answered;
    last_left_[life.rank] = steps_;
  }
  // Told of every step of every agent, and of every message as it was said.
  std::function<void(Rank, Step)> on_step;
  std::function<void(Rank from, Rank to, const AgentMessage&)> on_said;

  // Nothing: that life belongs to no generation.
  std::optional<std::pair<End, std::int64_t>> generation_of(Life life) const;

  // All senders of the generation of one of them.
  std::vector<Life> senders_with(Life sender) const;
  // The last round of a generation that everybody must get through: some sender has left the
  // generation after that round. Nothing if none has, or if a sender of the generation has died.
  std::optional<std::int64_t> goes_on_until(Life sender) const;
  // A reader that this source still offers the round to.
  std::optional<Rank> waiting_for(Rank source, std::int64_t round) const;
  // Whether a user closed not long before that step, or later.
  bool left_about(Rank rank, std::uint64_t step) const;

  // Whether a reader has told a source after that step that it has read this round.
  bool committed(Rank reader, std::int64_t round, std::uint64_t since) const;
  std::uint64_t steps() const noexcept { return steps_; }

  void after_step(std::optional<Rank> acted);
  // To whom something was said since the last call.
  std::vector<Rank> take_told() { return std::exchange(told_, {}); }
  // Nobody wants anything any more.
  void at_rest();

 private:
  using Line = std::pair<Rank, Rank>;  // source, reader

  void on_store(const std::string& key, const std::optional<std::string>& value);
  void on_list(const ListKey& key, const std::string& bytes);
  bool is_of_nobody(const RecordKey& key) const;
  void on_batch_record(const BatchKey& key, std::uint64_t registration);
  void on_generation(const GenerationKey& key, const Generation& generation);
  void look(const fabric::MemoryWord& now, std::optional<Rank> acted);
  void on_change(Line line, RoundWord before, RoundWord now, std::optional<Rank> acted);
  void check_conflict(Line line, bool by_source);
  std::vector<std::string> on_message(const fabric::Identity& from, const fabric::Identity& to,
                                      std::uint64_t connection, std::string bytes);
  bool is_over(std::uint64_t connection, const AgentMessage& message);
  void count_join(Line line, const AgentMessage& message);

  Cluster& cluster_;
  const Violate violate_;
  std::vector<Rank> told_;
  std::uint64_t steps_ = 0;
  std::map<std::pair<std::uint64_t, std::uint32_t>, RoundWord> words_;  // by connection and number
  std::map<Rank, std::set<std::int64_t>> open_;  // rounds that were open before
  std::map<Rank, std::set<std::int64_t>> open_now_;
  std::map<Line, RoundWord> line_words_;
  std::map<Line, std::uint64_t> last_offered_;  // when, by the word of the line
  std::map<Line, std::uint64_t> last_over_;
  std::map<Rank, std::uint64_t> last_conflict_;                       // of its own words
  std::map<std::pair<Rank, std::int64_t>, std::uint64_t> last_read_;  // by reader and round

  std::map<std::uint64_t, Life> lives_;           // by registration
  std::map<std::uint64_t, std::uint64_t> begun_;  // when its generation did, by registration
  std::map<Rank, std::int64_t> newest_;
  std::map<Life, std::pair<End, std::int64_t>> generations_;
  std::set<Rank> troubled_;
  std::set<Rank> lapsed_;
  std::map<Rank, std::uint64_t> deaths_;      // when it last died or lapsed
  std::map<Life, std::uint64_t> life_begun_;  // when it registered
  std::map<Life, std::int64_t> left_;         // with the round that it was answered for
  std::map<Rank, std::uint64_t> last_left_;   // when

  std::map<std::uint64_t, std::map<std::string, std::size_t>> joins_;  // by serial, per source
  std::map<std::uint64_t, std::uint64_t> replayed_;                    // by connection
  std::map<std::uint64_t, std::vector<AgentMessage>> old_;             // by connection
  std::map<std::uint64_t, std::uint64_t> newest_serial_;               // by connection
  // And by generation.
  std::map<std::pair<std::uint64_t, std::int64_t>, std::uint64_t> newest_of_;
};

}  // namespace tensorbus::bus::simulation
