#include "bus/files/queue_journal.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "bus/files/queue_fields.h"
#include "os/io/semaphore.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

std::string session_key(std::uint64_t session) { return fmt::format("session/{:016x}", session); }
std::string command_key(std::uint64_t position, CommandId id) {
  return fmt::format("command/{:016x}/{:016x}/{}", position, id.session, id.sequence);
}
std::string semaphore_key(const std::string& name) { return "semaphore" + name; }

QueueJournal::Session decode_session(const std::string& bytes, const std::string& key) {
  return wire::read<QueueJournal::Session>(bytes, {key});
}

std::uint64_t number_after(const std::string& key, std::string_view prefix) {
  return std::stoull(key.substr(prefix.size()), nullptr, 16);
}

}  // namespace

QueueJournal::QueueJournal(const std::string& path, std::size_t bytes) : file_(path, kind, bytes) {
  try {
    restore();
  } catch (const std::exception& error) {
    throw Error(Code::failed,
                path + " is damaged (" + error.what() + "); move it away to start empty");
  }
}

void QueueJournal::restore() {
  for (const auto& [key, value] : file_.scan("session/")) {
    sessions_.emplace(number_after(key, "session/"), decode_session(value, key));
  }
  std::vector<LmdbFile::Change> ended;
  for (const auto& [key, value] : file_.scan("command/")) {
    const Command command = decode_command(value);
    log::info("{} \"{}\" was not over when the last agent ended", type_of(command),
              context_of(command));
    ended.push_back({key, std::nullopt});
  }
  for (const auto& [key, value] : file_.scan("semaphore/")) {
    os::unlink_semaphore(key.substr(std::string_view("semaphore").size()));
    ended.push_back({key, std::nullopt});
  }
  if (!ended.empty()) file_.write(ended);
}

void QueueJournal::add_session(std::uint64_t session, const Session& value) {
  write({{session_key(session), wire::write(value)}});
  sessions_[session] = value;
}

void QueueJournal::remove_session(std::uint64_t session) {
  unwritten_.push_back({session_key(session), std::nullopt});
  for (auto at = positions_.lower_bound({session, 0});
       at != positions_.end() && at->first.session == session;) {
    unwritten_.push_back({command_key(at->second, at->first), std::nullopt});
    queue_.erase(at->second);
    at = positions_.erase(at);
  }
  for (auto at = semaphores_.begin(); at != semaphores_.end();) {
    if (at->second != session) {
      ++at;
      continue;
    }
    os::unlink_semaphore(at->first);
    unwritten_.push_back({semaphore_key(at->first), std::nullopt});
    at = semaphores_.erase(at);
  }
  sessions_.erase(session);
}

void QueueJournal::accept(CommandId id, const Command& command, std::string_view bytes) {
  Session& session = sessions_.at(id.session);
  Session moved = session;
  moved.last_accepted = id.sequence;
  Entry entry{id, std::string(type_of(command)), context_of(command)};
  write({{command_key(next_position_, id), std::string(bytes)},
         {session_key(id.session), wire::write(moved)}});
  session = moved;
  positions_.emplace(id, next_position_);
  queue_.emplace(next_position_++, std::move(entry));
}

void QueueJournal::finish(CommandId id) {
  const auto found = positions_.find(id);
  if (found == positions_.end()) return;
  const std::uint64_t position = found->second;
  queue_.erase(position);
  positions_.erase(found);
  unwritten_.push_back({command_key(position, id), std::nullopt});
}

void QueueJournal::flush() {
  if (!unwritten_.empty()) write({});
}

void QueueJournal::write(std::vector<LmdbFile::Change> changes) {
  changes.insert(changes.begin(), unwritten_.begin(), unwritten_.end());
  file_.write(changes);
  unwritten_.clear();
}

QueueState QueueJournal::state() const {
  QueueState state;
  state.size = queue_.size();
  if (!queue_.empty()) {
    const Entry& first = queue_.begin()->second;
    state.first = first.id;
    state.first_type = first.type;
    state.first_context = first.context;
  }
  return state;
}

void QueueJournal::guard_semaphore(std::uint64_t session, const std::string& name) {
  // Nobody makes an agent remove what is not a command's.
  if (!name.starts_with("/command_") || name.find('/', 1) != std::string::npos) {
    throw Error(Code::invalid_argument, "\"" + name + "\" is not the name of a semaphore of ours");
  }
  write({{semaphore_key(name), wire::write(session, guarding_session)}});
  semaphores_[name] = session;
}

void QueueJournal::release_semaphore(std::uint64_t session, const std::string& name) {
  const auto found = semaphores_.find(name);
  if (found == semaphores_.end() || found->second != session) return;
  semaphores_.erase(found);
  unwritten_.push_back({semaphore_key(name), std::nullopt});
}

std::optional<std::uint64_t> last_accepted(const std::string& path, std::uint64_t session) noexcept
    try {
  const std::string key = session_key(session);
  const auto bytes = look_into_lmdb_file(path, QueueJournal::kind, key);
  if (!bytes) return std::nullopt;
  return decode_session(*bytes, key).last_accepted;
} catch (const std::exception&) {
  return std::nullopt;
}

}  // namespace tensorbus::bus
