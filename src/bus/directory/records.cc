#include "bus/directory/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/overloaded.h"
#include "bus/directory/record_fields.h"

namespace tensorbus::bus {
namespace {

// Everything but letters, digits and a few signs as %XX, so that names cannot form other keys.
std::string escape(std::string_view name) {
  std::string text;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '-' || c == '.' || c == ':';
    if (plain) {
      text += c;
    } else {
      text += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return text;
}

std::optional<std::string> unescape(std::string_view text) {
  std::string name;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      name += text[at];
      continue;
    }
    unsigned value = 0;
    if (at + 2 >= text.size()) return std::nullopt;
    const char* first = text.data() + at + 1;
    if (std::from_chars(first, first + 2, value, 16).ptr != first + 2) return std::nullopt;
    name += static_cast<char>(value);
    at += 2;
  }
  return name;
}

std::optional<Rank> parse_rank(std::string_view text) {
  Rank rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc{} || end != text.data() + text.size() || rank < 0) return std::nullopt;
  return rank;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t slash = text.find('/');
    parts.push_back(text.substr(0, slash));
    if (slash == std::string_view::npos) return parts;
    text.remove_prefix(slash + 1);
  }
}

std::optional<RecordKey> parse_list_key(std::string_view hex, std::string_view part) {
  ListKey key;
  if (hex.size() != 2 * key.hash.size()) return std::nullopt;
  for (std::size_t at = 0; at < key.hash.size(); ++at) {
    std::uint8_t byte = 0;
    const char* first = hex.data() + 2 * at;
    if (std::from_chars(first, first + 2, byte, 16).ptr != first + 2) return std::nullopt;
    key.hash[at] = static_cast<char>(byte);
  }
  const auto number = parse_rank(part);
  if (!number || *number >= most_parts_of_list) return std::nullopt;
  key.part = static_cast<std::uint32_t>(*number);
  return key;
}

}  // namespace

std::string to_string(const End& end) {
  return fmt::format("side \"{}\" of pair \"{}\"", end.side, end.pair);
}

std::string to_text(const RecordKey& key) {
  const auto of_batch = [](std::string_view kind, const BatchKey& batch) {
    return fmt::format("{}/{}/{}/{}", kind, escape(batch.batch), escape(batch.side), batch.rank);
  };
  return std::visit(
      Overloaded{
          [](const AgentKey& agent) { return fmt::format("agent/{}", agent.rank); },
          [](const CallerKey& caller) { return fmt::format("caller/{}", caller.id); },
          [](const PairKey& pair) {
            return fmt::format("pair/{}/{}/{}", escape(pair.end.pair), escape(pair.end.side),
                               pair.rank);
          },
          [&](const BatchKey& batch) { return of_batch("batch", batch); },
          [&](const VersionKey& version) { return of_batch("version", version.batch); },
          [&](const ShelfKey& shelf) { return of_batch("shelf", shelf.batch); },
          [](const ListKey& list) {
            return fmt::format("tensors/{}/{}", to_hex(view(list.hash)), list.part);
          },
          [](const GenerationKey& generation) {
            return fmt::format("generation/{}/{}/{}", escape(generation.batch),
                               escape(generation.group.pair), escape(generation.group.side));
          },
      },
      key);
}

std::optional<RecordKey> parse_key(std::string_view key) {
  const auto parts = split(key);
  if (parts.size() == 2 && parts[0] == "agent") {
    if (const auto rank = parse_rank(parts[1])) return AgentKey{*rank};
    return std::nullopt;
  }
  if (parts.size() == 2 && parts[0] == "caller") {
    if (const auto id = parse_rank(parts[1])) return CallerKey{*id};
    return std::nullopt;
  }
  if (parts.size() == 3 && parts[0] == "tensors") return parse_list_key(parts[1], parts[2]);
  if (parts.size() != 4) return std::nullopt;
  const auto first = unescape(parts[1]);
  const auto second = unescape(parts[2]);
  if (!first || !second) return std::nullopt;
  if (parts[0] == "generation") {
    const auto third = unescape(parts[3]);
    if (!third) return std::nullopt;
    return GenerationKey{*first, {*second, *third}};
  }
  const auto rank = parse_rank(parts[3]);
  if (!rank) return std::nullopt;
  if (parts[0] == "pair") return PairKey{{*first, *second}, *rank};
  if (parts[0] == "batch") return BatchKey{*first, *second, *rank};
  if (parts[0] == "version") return VersionKey{{*first, *second, *rank}};
  if (parts[0] == "shelf") return ShelfKey{{*first, *second, *rank}};
  return std::nullopt;
}

std::string encode(const AgentRecord& record) { return wire::write(record); }
std::string encode(const PairMember& member) { return wire::write(member); }
std::string encode(const BatchMember& member) { return wire::write(member); }
std::string encode(const VersionRecord& record) { return wire::write(record); }
std::string encode(const ShelfRecord& record) { return wire::write(record); }
std::string encode(const Generation& generation) { return wire::write(generation); }

AgentRecord decode_agent_record(std::string_view bytes) { return wire::read<AgentRecord>(bytes); }
PairMember decode_pair_member(std::string_view bytes) { return wire::read<PairMember>(bytes); }
BatchMember decode_batch_member(std::string_view bytes) { return wire::read<BatchMember>(bytes); }
VersionRecord decode_version_record(std::string_view bytes) {
  return wire::read<VersionRecord>(bytes);
}
ShelfRecord decode_shelf_record(std::string_view bytes) { return wire::read<ShelfRecord>(bytes); }
Generation decode_generation(std::string_view bytes) { return wire::read<Generation>(bytes); }

namespace {

template <typename Record>
std::string printed_as(std::string_view bytes) {
  return wire::print(wire::read<Record>(bytes));
}

struct PrintRecord {
  std::string_view bytes;
  std::string operator()(const AgentKey&) const { return printed_as<AgentRecord>(bytes); }
  std::string operator()(const CallerKey&) const { return printed_as<AgentRecord>(bytes); }
  std::string operator()(const PairKey&) const { return printed_as<PairMember>(bytes); }
  std::string operator()(const BatchKey&) const { return printed_as<BatchMember>(bytes); }
  std::string operator()(const GenerationKey&) const { return printed_as<Generation>(bytes); }
  std::string operator()(const VersionKey&) const { return printed_as<VersionRecord>(bytes); }
  std::string operator()(const ShelfKey&) const { return printed_as<ShelfRecord>(bytes); }
  std::string operator()(const ListKey&) const { return printed_as<ListOfTensors>(bytes); }
};

}  // namespace

std::string print_record(const RecordKey& key, std::string_view bytes) {
  return std::visit(PrintRecord{bytes}, key);
}

}  // namespace tensorbus::bus
