#include "bus/files/heartbeat.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "bus/files/lmdb_file.h"
#include "bus/files/lmdb_state.h"
#include "wire/message.h"

namespace tensorbus::bus {

std::string encode(const Heartbeat& beat) { return wire::write(beat); }
Heartbeat decode_heartbeat(std::string_view bytes) { return wire::read<Heartbeat>(bytes); }

std::string describe_heartbeat(const std::string& state_path) {
  const auto bytes = look_into_lmdb_file(state_path, LmdbState::kind, "heartbeat");
  if (!bytes) return "There is no heartbeat in " + state_path + ".";
  try {
    const Heartbeat beat = decode_heartbeat(*bytes);
    const double age = static_cast<double>(wall_clock_ns() - beat.wall_clock_ns) / 1e9;
    return fmt::format("The last heartbeat in {} is {:.1f} s old{}.", state_path, age,
                       beat.command.empty() ? "" : ", in " + beat.command);
  } catch (const std::exception& error) {
    return fmt::format("The heartbeat in {} cannot be read: {}.", state_path, error.what());
  }
}

}  // namespace tensorbus::bus
