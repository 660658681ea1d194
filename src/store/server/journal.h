// The server's memory across restarts: every change is appended before it is answered.
//
// A process may die at any byte of a write, so an incomplete last record is dropped (nobody was
// told of it). Anything else that does not check out is an error: a journal is never half believed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "os/process/unshared_fd.h"
#include "store/protocol/protocol.h"

namespace tensorbus::store {

struct JournalRecord {
  Op op{};
  std::string_view session;   // empty: nobody will ask again (torch's clients, the server itself)
  std::uint64_t id = 0;       // with the session: which request it was
  std::uint64_t settled = 0;  // replies of its kind below this id are needed no more
  std::string_view body;
};

class Journal {
 public:
  // Opens or creates; one process at a time. Replays what is there, oldest first.
  Journal(const std::string& path, const std::function<void(const JournalRecord&)>& replay);

  void append(const JournalRecord& record);
  // Hands all that was appended to the operating system. Throws Error(failed) if the system
  // refuses.
  void flush();

  // How much of the file is still needed, for a journal that was replayed: the file may hold the
  // rewriting of years.
  void set_live_size(std::size_t size) noexcept { compacted_size_ = size; }
  bool wants_compaction() const noexcept;
  // Replaces the file by what `write_all` appends. If there is no room for both, the old file
  // stays, with a warning, until its size has doubled again.
  void compact(const std::function<void()>& write_all);

  std::size_t size() const noexcept { return size_ + pending_.size(); }
  // What a record takes in the file.
  static std::size_t size_of(const JournalRecord& record) noexcept;

 private:
  std::string new_path() const { return path_ + ".new"; }
  void replace_file();
  void replay(const std::function<void(const JournalRecord&)>& replay);

  std::string path_;
  os::UnsharedFd file_;  // its lock must not outlive us in a child
  std::string pending_;
  std::size_t size_ = 0;
  std::size_t compacted_size_ = 0;
};

}  // namespace tensorbus::store
