// The pairs that the workers of one agent take part in: who asked for them, what the other ranks
// are told, and when both sides are complete.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bus/agent/own_state.h"
#include "bus/agent/sessions.h"
#include "bus/channel/channel.h"
#include "bus/match/pair.h"
#include "bus/registration/awaited.h"
#include "bus/round/context.h"

namespace tensorbus::bus {

class Pairs {
 public:
  Pairs(Context& context, Sessions& sessions, OwnState& state)
      : context_(context), sessions_(sessions), state_(state) {}
  Pairs(const Pairs&) = delete;
  Pairs& operator=(const Pairs&) = delete;

  void init(const Submission& submission, const InitPair& pair);
  // False: none of these pairs has such a command.
  bool cancel(CommandId id, const Status& reason);
  // Publishes again what a client that is back had asked an earlier agent for.
  void restore(std::uint64_t session);
  // Whether the agent's file goes on saying that a client asked for a pair. Kept: a client that
  // outlives this agent asks the next one.
  enum class Asking : std::uint8_t { forgotten, kept };
  void end_session(std::uint64_t session, const Status& why, Asking asking);
  // The store does not take what others must know of it.
  void refused(const End& end, const Status& why);
  // The store has forgotten what this agent published.
  void publish_all() const;

  // Which side of a pair is meant; `role` says it where this rank has both. Throws
  // Error(invalid_argument).
  End local_end(const std::string& pair, const std::optional<std::string>& role) const;
  // The side that an end faces. Nothing: the pair is not complete yet. Throws
  // Error(invalid_argument) if nobody waits for the pair.
  std::optional<std::string> remote_of(const End& end) const;

  // Records of pairs have changed.
  void note_change() noexcept { changed_ = true; }
  // True: pairs may be complete that were not.
  bool step();
  // What the command that waits for this end waits for; nothing if none does.
  Awaited awaited(const End& end) const;
  // Ends commands whose time is over.
  void expire();
  TimePoint wake_at() const;

 private:
  struct Here {
    InitPair pair;
    std::set<std::uint64_t> sessions;
    std::uint64_t session = 0;  // who asked last
    std::uint64_t attempt = 0;  // 0: nothing is published
    bool established = false;   // both sides were complete
    bool lasts = false;         // were so once: the record stays when a later wait ends
    KnownFailures known;
    std::vector<std::pair<CommandId, Deadline>> waiting;
  };

  void check(const InitPair& pair, const End& end) const;
  void publish(const Here& here, const std::string& failed) const;
  void withdraw(const End& end) const;
  void assess(const End& end);
  void fail(const End& end, const Status& why, bool tell);
  void expire(Here& here);
  void drop(const End& end, std::uint64_t session, Asking asking);

  Context& context_;
  Sessions& sessions_;
  OwnState& state_;
  std::map<End, Here> pairs_;
  bool changed_ = false;
};

}  // namespace tensorbus::bus
