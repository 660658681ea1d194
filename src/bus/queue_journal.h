// The command queue of a daemon as a file: sessions, accepted commands, semaphores to remove.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "bus/channel.h"
#include "bus/lmdb_file.h"

namespace tensorbus::bus {

class QueueJournal {
 public:
  static constexpr const char* kind = "command queue";

  struct Session {
    std::uint64_t last_accepted = 0;
    std::int64_t pid = 0;
    std::uint64_t start_time = 0;  // of the process; 0: not known
  };

  // Reads what the last agent left: its sessions live on until they are removed, its commands and
  // semaphores are ended.
  explicit QueueJournal(const std::string& path);

  const std::map<std::uint64_t, Session>& sessions() const noexcept { return sessions_; }
  void add_session(std::uint64_t session, const Session& value);
  // With its commands; removes its semaphores from the system.
  void remove_session(std::uint64_t session);

  // Journaled when it returns.
  void accept(CommandId id, const Command& command, std::string_view bytes);
  void finish(CommandId id);
  bool holds(CommandId id) const { return positions_.contains(id); }
  QueueState state() const;

  void guard_semaphore(std::uint64_t session, const std::string& name);
  void release_semaphore(std::uint64_t session, const std::string& name);

  void remove_at_close() noexcept { file_.remove_at_close(); }

 private:
  struct Entry {
    CommandId id;
    std::string type;
    std::string context;
  };
  void restore();

  LmdbFile file_;
  std::map<std::uint64_t, Session> sessions_;
  std::map<std::uint64_t, Entry> queue_;  // by position
  std::map<CommandId, std::uint64_t> positions_;
  std::uint64_t next_position_ = 0;
  std::map<std::string, std::uint64_t> semaphores_;  // name -> session
};

}  // namespace tensorbus::bus
