#include "bus/directory/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "bus/channel/packed.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

constexpr std::int64_t version = 3;
constexpr std::size_t longest_message = 64 * 1024;
constexpr std::size_t most_tensors = 4'000'000;

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

Json to_json(const Placement& placement) {
  if (const auto* shard = std::get_if<Shard>(&placement)) return Json::array({"S", shard->dim});
  if (const auto* strided = std::get_if<StridedShard>(&placement)) {
    return Json::array({"SS", strided->dim, strided->split_factor});
  }
  if (const auto* partial = std::get_if<Partial>(&placement)) {
    return Json::array({"P", std::string(to_string(partial->op))});
  }
  return Json::array({"R"});
}

Placement placement_from(const Json& json) {
  Fields fields(json, "placement");
  const std::string kind = fields.string();
  Placement placement;
  if (kind == "S") {
    placement = Shard{fields.integer()};
  } else if (kind == "SS") {
    const std::int64_t dim = fields.integer();
    placement = StridedShard{dim, fields.integer()};
  } else if (kind == "P") {
    placement = Partial{parse_reduce_op(fields.string())};
  } else if (kind == "R") {
    placement = Replicate{};
  } else {
    fields.refuse("there is no placement \"" + kind + "\"");
  }
  fields.end();
  return placement;
}

Json to_json(const SideLayout& layout) {
  Json placements = Json::array();
  for (const Placement& placement : layout.placements) placements.push_back(to_json(placement));
  return Json::array({layout.mesh, placements,
                      layout.coordinate ? Json(*layout.coordinate) : Json(nullptr),
                      layout.mesh_id});
}

SideLayout layout_from(const Json& json) {
  Fields fields(json, "layout");
  SideLayout layout;
  layout.mesh = fields.integers();
  for (const Json& placement : fields.list(64))
    layout.placements.push_back(placement_from(placement));
  layout.coordinate = fields.optional([](Fields& each) { return each.integers(); });
  layout.mesh_id = fields.integer();
  fields.end();
  return layout;
}

Fields open(const Json& json, std::string_view what) {
  Fields fields(json, what);
  if (const std::int64_t found = fields.integer(); found != version) {
    fields.refuse(fmt::format("its version is {}, ours is {}; use the same release everywhere",
                              found, version));
  }
  return fields;
}

Shape shape_from(Fields& fields) {
  Shape shape = fields.integers();
  element_count(shape);
  return shape;
}

}  // namespace

std::string to_string(const End& end) {
  return fmt::format("side \"{}\" of pair \"{}\"", end.side, end.pair);
}

std::string to_text(const RecordKey& key) {
  if (const auto* agent = std::get_if<AgentKey>(&key)) return fmt::format("agent/{}", agent->rank);
  if (const auto* caller = std::get_if<CallerKey>(&key))
    return fmt::format("caller/{}", caller->id);
  if (const auto* pair = std::get_if<PairKey>(&key)) {
    return fmt::format("pair/{}/{}/{}", escape(pair->end.pair), escape(pair->end.side), pair->rank);
  }
  if (const auto* batch = std::get_if<BatchKey>(&key)) {
    return fmt::format("batch/{}/{}/{}", escape(batch->batch), escape(batch->side), batch->rank);
  }
  if (const auto* at = std::get_if<VersionKey>(&key)) {
    return fmt::format("version/{}/{}/{}", escape(at->batch.batch), escape(at->batch.side),
                       at->batch.rank);
  }
  const auto& generation = std::get<GenerationKey>(key);
  return fmt::format("generation/{}/{}/{}", escape(generation.batch), escape(generation.group.pair),
                     escape(generation.group.side));
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
  return std::nullopt;
}

std::string encode(const AgentRecord& record) {
  return pack(Json::array({version, record.incarnation, binary(fabric::encode(record.address))}));
}

AgentRecord decode_agent_record(std::string_view bytes) {
  const Json json = unpack(bytes, "agent record");
  Fields fields = open(json, "agent record");
  AgentRecord record;
  record.incarnation = fields.natural();
  record.address = fabric::decode_address(fields.bytes());
  fields.end();
  return record;
}

std::string encode(const PairMember& member) {
  return pack(Json::array({version, member.incarnation, member.attempt, member.failed,
                           binary(fabric::encode(member.address)), member.world_size, member.remote,
                           member.layout ? to_json(*member.layout) : Json(nullptr)}));
}

PairMember decode_pair_member(std::string_view bytes) {
  const Json json = unpack(bytes, "pair record");
  Fields fields = open(json, "pair record");
  PairMember member;
  member.incarnation = fields.natural();
  member.attempt = fields.natural();
  member.failed = fields.string(longest_message);
  member.address = fabric::decode_address(fields.bytes());
  member.world_size = fields.integer();
  member.remote = fields.string();
  member.layout = fields.optional([](Fields& each) { return layout_from(each.any()); });
  fields.end();
  return member;
}

std::string encode(const BatchMember& member) {
  Json ends = Json::array();
  for (std::size_t at = 0; at < member.ends.size(); ++at) {
    ends.push_back({member.ends[at].pair, member.ends[at].side, member.remotes[at]});
  }
  Json tensors = Json::array();
  for (const TensorRecord& tensor : member.tensors) {
    tensors.push_back({tensor.end, tensor.name, static_cast<unsigned>(tensor.dtype), tensor.shape,
                       tensor.global_shape ? Json(*tensor.global_shape) : Json(nullptr),
                       tensor.layout ? Json(*tensor.layout) : Json(nullptr)});
  }
  Json layouts = Json::array();
  for (const SideLayout& layout : member.layouts) layouts.push_back(to_json(layout));
  Json unfit = Json::array();
  for (const auto& [rank, registration] : member.unfit) unfit.push_back({rank, registration});
  return pack(Json::array(
      {version, member.incarnation, member.registration, member.failed.substr(0, longest_message),
       member.refused, std::move(ends), std::move(tensors), member.chunk_bytes,
       static_cast<unsigned>(member.verify), std::move(layouts),
       member.versioned ? Json::array({static_cast<unsigned>(member.versioned->direction),
                                       member.versioned->last})
                        : Json(nullptr),
       std::move(unfit)}));
}

BatchMember decode_batch_member(std::string_view bytes) {
  const Json json = unpack(bytes, "batch record");
  Fields fields = open(json, "batch record");
  BatchMember member;
  member.incarnation = fields.natural();
  member.registration = fields.natural();
  member.failed = fields.string(longest_message);
  member.refused = fields.boolean();
  for (const Json& each : fields.list()) {
    Fields end(each, "batch record");
    std::string pair = end.string();
    std::string side = end.string();
    member.ends.push_back({std::move(pair), std::move(side)});
    member.remotes.push_back(end.string());
    end.end();
  }
  if (member.ends.empty() || !std::ranges::is_sorted(member.ends)) fields.refuse("ends");
  for (const Json& each : fields.list(most_tensors)) {
    Fields of(each, "tensor of a batch record");
    TensorRecord tensor;
    tensor.end = of.natural(member.ends.size() - 1);
    tensor.name = of.string();
    tensor.dtype = static_cast<Dtype>(of.natural(all_dtypes().size() - 1));
    tensor.shape = shape_from(of);
    tensor.global_shape = of.optional(shape_from);
    tensor.layout = of.optional([](Fields& each_of) { return each_of.natural(); });
    of.end();
    member.tensors.push_back(std::move(tensor));
  }
  member.chunk_bytes = fields.integer();
  member.verify = static_cast<Verify>(fields.natural(2));
  for (const Json& each : fields.list()) member.layouts.push_back(layout_from(each));
  member.versioned = fields.optional([](Fields& of) {
    Fields versioned(of.any(), "batch record");
    const auto direction = static_cast<Direction>(versioned.natural(1));
    const std::int64_t last = versioned.integer();
    versioned.end();
    return Versioned{direction, last};
  });
  for (const Json& each : fields.list()) {
    Fields of(each, "batch record");
    const Rank rank = of.integer();
    member.unfit.insert({rank, of.natural()});
    of.end();
  }
  fields.end();
  for (const TensorRecord& tensor : member.tensors) {
    if (!tensor.layout) continue;
    if (*tensor.layout >= member.layouts.size() || tensor.name.empty()) fields.refuse("a layout");
  }
  return member;
}

std::string encode(const VersionRecord& record) {
  return pack(Json::array({version, record.registration, record.version}));
}

VersionRecord decode_version_record(std::string_view bytes) {
  const Json json = unpack(bytes, "version record");
  Fields fields = open(json, "version record");
  VersionRecord record;
  record.registration = fields.natural();
  record.version = fields.integer();
  fields.end();
  return record;
}

std::string encode(const Generation& generation) {
  Json senders = Json::array();
  for (const auto& [rank, sender] : generation.senders) {
    senders.push_back({rank, sender.incarnation, sender.registration});
  }
  return pack(Json::array({version, generation.number, std::move(senders), generation.ended,
                           generation.left, generation.why, generation.after, generation.version}));
}

Generation decode_generation(std::string_view bytes) {
  const Json json = unpack(bytes, "generation record");
  Fields fields = open(json, "generation record");
  Generation generation;
  generation.number = static_cast<std::int64_t>(fields.natural(INT64_MAX));
  for (const Json& each : fields.list()) {
    Fields sender(each, "generation record");
    const auto rank = static_cast<Rank>(sender.natural(INT64_MAX));
    const std::uint64_t incarnation = sender.natural();
    generation.senders[rank] = {incarnation, sender.natural()};
    sender.end();
  }
  generation.ended = fields.boolean();
  generation.left = fields.integer();
  generation.why = fields.string(longest_message);
  generation.after = static_cast<std::int64_t>(fields.natural(INT64_MAX));
  generation.version = fields.integer();
  fields.end();
  return generation;
}

}  // namespace tensorbus::bus
