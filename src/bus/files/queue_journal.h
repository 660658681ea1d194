// The command queue of a daemon as a file: sessions, accepted commands, semaphores to remove.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bus/channel/channel.h"
#include "bus/files/lmdb_file.h"

namespace tensorbus::bus {

// What a session has had accepted last is shown by the key of that command, while the file has it,
// else by the session's record: a command is journaled as one entry, and its session is written
// only when the command goes before a later one came.
class QueueJournal {
 public:
  static constexpr const char* kind = "command queue";

  struct Session {
    std::uint64_t last_accepted = 0;
    std::int64_t pid = 0;
    std::uint64_t start_time = 0;  // of the process; 0: not known
    friend bool operator==(const Session&, const Session&) = default;
  };

  // Reads what the last agent left: its sessions live on until they are removed, its commands and
  // semaphores are ended.
  explicit QueueJournal(const std::string& path, std::size_t bytes = LmdbFile::usual_bytes);

  const std::map<std::uint64_t, Session>& sessions() const noexcept { return sessions_; }
  void add_session(std::uint64_t session, const Session& value);
  // Removes a session with its commands, and its semaphores from the system. Journaled like
  // finish().
  void remove_session(std::uint64_t session);

  // The command is journaled when accept() returns, with the ends of other commands that cost
  // nothing more.
  void accept(CommandId id, const Command& command, std::string_view bytes);
  // The end is journaled by a flush() that works, or before.
  void finish(CommandId id);
  void flush();
  bool flushed() const noexcept { return unwritten_.empty() && over_.empty(); }
  bool holds(CommandId id) const { return positions_.contains(id); }
  QueueState state() const;

  void guard_semaphore(std::uint64_t session, const std::string& name);
  // Journaled like finish().
  void release_semaphore(std::uint64_t session, const std::string& name);

  void remove_at_close() noexcept { file_.remove_at_close(); }

 private:
  struct QueuedCommand {
    CommandId id;
    std::string type;
    std::string context;
  };
  void restore();
  void restore_command(const std::string& key, const std::string& bytes);
  void journal_accepted(CommandId id, std::string_view bytes);
  bool is_last(CommandId id) const;
  // After what is unwritten.
  void write(std::vector<LmdbFile::Change> changes);

  LmdbFile file_;
  std::map<std::uint64_t, Session> sessions_;
  std::map<std::uint64_t, QueuedCommand> queue_;  // by position
  std::map<CommandId, std::uint64_t> positions_;
  std::uint64_t next_position_ = 0;
  std::set<CommandId> over_;                         // still in the file
  std::vector<LmdbFile::Change> unwritten_;          // sessions and semaphores that are gone
  std::map<std::string, std::uint64_t> semaphores_;  // name -> session
};

// The command that a key of the file names; nothing if the key names none.
std::optional<CommandId> command_of_key(std::string_view key) noexcept;

// For a client whose agent has ended: the last command of this session that it had accepted.
// Nothing if the file does not tell.
std::optional<std::uint64_t> last_accepted(const std::string& path, std::uint64_t session) noexcept;

}  // namespace tensorbus::bus
