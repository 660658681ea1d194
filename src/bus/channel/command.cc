#include "bus/channel/command.h"

#include <array>

#include "bus/channel/command_fields.h"

namespace tensorbus::bus {

std::string_view to_string(Direction direction) noexcept {
  return direction == Direction::send ? "send" : "recv";
}

std::string_view to_string(Verify verify) noexcept {
  switch (verify) {
    case Verify::off:
      return "off";
    case Verify::first:
      return "first";
    case Verify::sample:
      return "sample";
    case Verify::full:
      return "full";
  }
  return "unknown";
}

std::string_view to_string(PullPart part) noexcept {
  constexpr std::array<std::string_view, 3> names{"all", "fetch", "apply"};
  return names[static_cast<std::size_t>(part)];
}

std::string_view to_string(ReaderOutcome outcome) noexcept {
  switch (outcome) {
    case ReaderOutcome::read:
      return "read";
    case ReaderOutcome::failed:
      return "failed";
    case ReaderOutcome::lost:
      return "lost";
  }
  return "unknown";
}

std::string_view type_of(const Command& command) noexcept {
  return wire::names_of_kinds<Command>()[command.index()];
}

const std::string& context_of(const Command& command) noexcept {
  const auto about = [](const auto& each) -> const std::string& {
    if constexpr (requires { each.batch; }) {
      return each.batch;
    } else {
      return each.pair;
    }
  };
  return std::visit(about, command);
}

std::string encode(const Command& command) { return wire::write(command); }
Command decode_command(std::string_view bytes) { return wire::read<Command>(bytes); }

}  // namespace tensorbus::bus
