#include <fmt/format.h>

#include <charconv>

#include "program/commands.h"

namespace tensorbus::program {
namespace {

template <typename Number>
std::optional<Number> parse(const std::string& text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, number);
  if (failure != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace

CLI::Validator whole_number(std::int64_t least) {
  return {[least](const std::string& text) {
            const auto number = parse<std::int64_t>(text);
            if (number && *number >= least) return std::string();
            return fmt::format("expected a whole number >= {}, not \"{}\"", least, text);
          },
          ""};
}

CLI::Validator positive_number() {
  return {[](const std::string& text) {
            const auto number = parse<double>(text);
            if (number && *number > 0) return std::string();
            return fmt::format("expected a number > 0, not \"{}\"", text);
          },
          ""};
}

}  // namespace tensorbus::program
