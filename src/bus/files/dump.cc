#include "bus/files/dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "bus/files/heartbeat.h"
#include "bus/files/lmdb_state.h"
#include "bus/files/queue_fields.h"

namespace tensorbus::bus {
namespace {

// The session as an agent would find it: a command that lies in the file shows that it was
// accepted.
QueueJournal::Session session_in(const LmdbContent& content, std::string_view key,
                                 std::string_view value) {
  auto session = wire::read<QueueJournal::Session>(value);
  for (const auto& [other, bytes] : content.entries) {
    const auto id = command_of_key(other);
    if (!id || !key.ends_with(fmt::format("/{:016x}", id->session))) continue;
    session.last_accepted = std::max(session.last_accepted, id->sequence);
  }
  return session;
}

void put_entry(wire::Printer& out, const LmdbContent& content, std::string_view key,
               std::string_view value) {
  const bool of_state = content.header.kind == LmdbState::kind;
  if (of_state && key == "heartbeat") return out.put(decode_heartbeat(value));
  if (of_state || key.starts_with("command/")) return out.put(decode_command(value));
  if (key.starts_with("session/")) return out.put(session_in(content, key, value));
  out("session", wire::read<std::uint64_t>(value, guarding_session));
}

}  // namespace

std::string dump_agent_file(const std::string& path) {
  const LmdbContent content = read_lmdb_file(path);
  wire::Printer out;
  out.put(content.header);
  for (const auto& [key, value] : content.entries) {
    out.line(key);
    out.indented([&, &name = key, &bytes = value] {
      try {
        put_entry(out, content, name, bytes);
      } catch (const Error& error) {
        out("cannot be read", std::string(error.what()));
      }
    });
  }
  return std::move(out).take();
}

}  // namespace tensorbus::bus
