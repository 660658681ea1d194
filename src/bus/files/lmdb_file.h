// An LMDB file that belongs to one agent: found safely, locked, and written by nobody else.
#pragma once

#include <lmdb.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "os/io/fd.h"
#include "wire/field.h"

namespace tensorbus::bus {

// What every file of an agent begins with, under a key of its own. Of another version only the kind
// is read.
struct LmdbHeader {
  static constexpr std::uint64_t current = 3;

  std::string kind;
  std::uint64_t version = 0;
  std::string boot;  // of the machine, when it was written
  friend bool operator==(const LmdbHeader&, const LmdbHeader&) = default;
};
constexpr wire::Title title_of(const LmdbHeader*) { return {"header"}; }
template <typename Archive>
void fields(Archive& a, LmdbHeader& header) {
  a("kind", header.kind);
  a("version", header.version);
  if (header.version != LmdbHeader::current) return a.leave_the_rest();
  a("boot", header.boot);
}

// Paths like /tmp/agent_rank0_state.lmdb can be guessed, so nothing that lies there is trusted:
// what an agent takes must be a regular file of ours with one link, whole, and made by an agent for
// the same purpose; everything else is an Error(failed) that says what to do, and is left as it is.
// Committed entries survive the death of the process, not of the machine: a file from before the
// last boot starts empty. Owned by one thread; keys have any length.
class LmdbFile {
 public:
  static constexpr std::size_t usual_bytes = 256 * 1024 * 1024;

  // `kind` says what the file is for, `bytes` how much it can hold.
  LmdbFile(std::string path, std::string kind, std::size_t bytes = usual_bytes);
  ~LmdbFile();
  LmdbFile(const LmdbFile&) = delete;
  LmdbFile& operator=(const LmdbFile&) = delete;

  const std::string& path() const noexcept { return path_; }

  // One transaction: all changes or none. A change without a value erases. Error(queue_full) if the
  // file is full, Error(failed) if the disk is; both pass.
  struct Change {
    std::string key;
    std::optional<std::string> value;
  };
  void write(const std::vector<Change>& changes);
  // The same, also in a full file: the changes erase more than they write.
  void make_room(const std::vector<Change>& changes);
  std::optional<std::string> get(const std::string& key);
  // Entries whose keys start with `prefix`, in order of their keys.
  std::vector<std::pair<std::string, std::string>> scan(const std::string& prefix);

  // The file is of no more use: it goes when this object does.
  void remove_at_close() noexcept { remove_ = true; }

 private:
  void open_environment();
  void close_environment() noexcept;
  void check_header();
  int try_to_write(const std::vector<Change>& changes);
  int write_when_full(const std::vector<Change>& changes);
  [[noreturn]] void fail(const std::string& what, int error) const;

  const std::string path_;
  const std::string kind_;
  const std::size_t bytes_;
  os::Fd file_;  // keeps the lock
  MDB_env* environment_ = nullptr;
  MDB_dbi table_ = 0;
  bool remove_ = false;
};

// To look at what an agent has written, with the checks that it makes itself: whoever maps a file
// of another user can be killed by it (SIGBUS when it is cut). Opened with O_NOFOLLOW and
// O_NONBLOCK; map what the descriptor names (/proc/self/fd), not the path again. Throws
// Error(failed).
void check_lmdb_file(int file, const std::string& path);

// For messages about an agent that does not answer: one entry of the agent's file, without locks
// and whatever is wrong with the file (then nothing).
std::optional<std::string> look_into_lmdb_file(const std::string& path, const std::string& kind,
                                               const std::string& key) noexcept;

// The last key that begins so, in the same way.
std::optional<std::string> last_key_in_lmdb_file(const std::string& path, const std::string& kind,
                                                 const std::string& prefix) noexcept;

// All of a file that an agent may be writing to: as the file was at some moment, unless the agent
// writes a lot meanwhile. Throws Error(failed).
struct LmdbContent {
  LmdbHeader header;
  std::vector<std::pair<std::string, std::string>> entries;  // in order of their keys
};
LmdbContent read_lmdb_file(const std::string& path);

}  // namespace tensorbus::bus
