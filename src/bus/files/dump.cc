#include "bus/files/dump.h"

#include <string_view>

#include "bus/files/heartbeat.h"
#include "bus/files/lmdb_state.h"
#include "bus/files/queue_fields.h"

namespace tensorbus::bus {
namespace {

void put_entry(wire::Printer& out, bool of_state, std::string_view key, std::string_view value) {
  if (of_state && key == "heartbeat") return out.put(decode_heartbeat(value));
  if (of_state || key.starts_with("command/")) return out.put(decode_command(value));
  if (key.starts_with("session/")) return out.put(wire::read<QueueJournal::Session>(value));
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
        put_entry(out, content.header.kind == LmdbState::kind, name, bytes);
      } catch (const Error& error) {
        out("cannot be read", std::string(error.what()));
      }
    });
  }
  return std::move(out).take();
}

}  // namespace tensorbus::bus
