#include "bus/files/queue_journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/log.h"
#include "bus/files/queue_fields.h"
#include "os/io/semaphore.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

constexpr std::string_view session_prefix = "session/";
constexpr std::string_view command_prefix = "command/";

std::string session_key(std::uint64_t session) {
  return fmt::format("{}{:016x}", session_prefix, session);
}
// Of all commands of a session, in the order of their acceptance.
std::string commands_key(std::uint64_t session) {
  return fmt::format("{}{:016x}/", command_prefix, session);
}
std::string command_key(CommandId id) {
  return fmt::format("{}{:016x}", commands_key(id.session), id.sequence);
}
std::string semaphore_key(const std::string& name) { return "semaphore" + name; }

QueueJournal::Session decode_session(const std::string& bytes, const std::string& key) {
  return wire::read<QueueJournal::Session>(bytes, {key});
}

std::optional<std::uint64_t> number_from(std::string_view digits) noexcept {
  std::uint64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, number, 16);
  if (digits.size() != 16 || read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return number;
}

[[noreturn]] void refuse_key(const std::string& key) {
  throw Error(Code::failed, "it has the key \"" + key + "\"");
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

// What ends here is shown by the sessions' records in the same transaction.
void QueueJournal::restore() {
  for (const auto& [key, value] : file_.scan(std::string(session_prefix))) {
    const auto session = number_from(std::string_view(key).substr(session_prefix.size()));
    if (!session) refuse_key(key);
    sessions_.emplace(*session, decode_session(value, key));
  }
  std::vector<LmdbFile::Change> ended;
  for (const auto& [key, value] : file_.scan(std::string(command_prefix))) {
    restore_command(key, value);
    ended.push_back({key, std::nullopt});
  }
  for (const auto& [key, value] : file_.scan("semaphore/")) {
    os::unlink_semaphore(key.substr(std::string_view("semaphore").size()));
    ended.push_back({key, std::nullopt});
  }
  if (ended.empty()) return;
  for (const auto& [session, known] : sessions_) {
    ended.push_back({session_key(session), wire::write(known)});
  }
  file_.make_room(ended);
}

void QueueJournal::restore_command(const std::string& key, const std::string& bytes) {
  const Command command = decode_command(bytes);
  const auto id = command_of_key(key);
  if (!id) refuse_key(key);
  log::info("{} \"{}\" ended with the last agent, or just before", type_of(command),
            context_of(command));
  const auto session = sessions_.find(id->session);
  if (session == sessions_.end()) return;
  session->second.last_accepted = std::max(session->second.last_accepted, id->sequence);
}

void QueueJournal::add_session(std::uint64_t session, const Session& value) {
  write({{session_key(session), wire::write(value)}});
  sessions_[session] = value;
}

void QueueJournal::remove_session(std::uint64_t session) {
  unwritten_.push_back({session_key(session), std::nullopt});
  for (auto at = positions_.lower_bound({session, 0});
       at != positions_.end() && at->first.session == session; at = positions_.erase(at)) {
    queue_.erase(at->second);
    over_.insert(at->first);
  }
  std::erase_if(over_, [&](CommandId id) {
    if (id.session != session) return false;
    unwritten_.push_back({command_key(id), std::nullopt});
    return true;
  });
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
  QueuedCommand queued{id, std::string(type_of(command)), context_of(command)};
  try {
    journal_accepted(id, bytes);
  } catch (const Error& error) {
    if (error.code() != Code::queue_full || flushed()) throw;
    flush();  // makes room
    journal_accepted(id, bytes);
  }
  session.last_accepted = id.sequence;
  positions_.emplace(id, next_position_);
  queue_.emplace(next_position_++, std::move(queued));
}

// What is over and the last of another session stays, because it shows that session's number.
void QueueJournal::journal_accepted(CommandId id, std::string_view bytes) {
  const auto goes = [&](CommandId each) { return each.session == id.session || !is_last(each); };
  std::vector<LmdbFile::Change> changes;
  for (const CommandId each : over_) {
    if (goes(each)) changes.push_back({command_key(each), std::nullopt});
  }
  changes.push_back({command_key(id), std::string(bytes)});
  write(std::move(changes));
  std::erase_if(over_, goes);
}

bool QueueJournal::is_last(CommandId id) const {
  return sessions_.at(id.session).last_accepted == id.sequence;
}

void QueueJournal::finish(CommandId id) {
  const auto found = positions_.find(id);
  if (found == positions_.end()) return;
  queue_.erase(found->second);
  positions_.erase(found);
  over_.insert(id);
}

void QueueJournal::flush() {
  if (flushed()) return;
  std::vector<LmdbFile::Change> changes = unwritten_;
  for (const CommandId id : over_) {
    changes.push_back({command_key(id), std::nullopt});
    if (is_last(id))
      changes.push_back({session_key(id.session), wire::write(sessions_.at(id.session))});
  }
  file_.make_room(changes);
  unwritten_.clear();
  over_.clear();
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
    const QueuedCommand& first = queue_.begin()->second;
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

std::optional<CommandId> command_of_key(std::string_view key) noexcept {
  constexpr std::size_t digits = 16;
  if (!key.starts_with(command_prefix)) return std::nullopt;
  key.remove_prefix(command_prefix.size());
  if (key.size() != 2 * digits + 1 || key[digits] != '/') return std::nullopt;
  const auto session = number_from(key.substr(0, digits));
  const auto sequence = number_from(key.substr(digits + 1));
  if (!session || !sequence) return std::nullopt;
  return CommandId{*session, *sequence};
}

// Looks at the command first: the agent that comes next takes the command away and writes the
// session's record.
std::optional<std::uint64_t> last_accepted(const std::string& path, std::uint64_t session) noexcept
    try {
  const auto command = last_key_in_lmdb_file(path, QueueJournal::kind, commands_key(session));
  const auto shown = command ? command_of_key(*command) : std::nullopt;
  const std::string key = session_key(session);
  const auto record = look_into_lmdb_file(path, QueueJournal::kind, key);
  if (!record) return std::nullopt;
  return std::max(decode_session(*record, key).last_accepted, shown ? shown->sequence : 0);
} catch (const std::exception&) {
  return std::nullopt;
}

}  // namespace tensorbus::bus
