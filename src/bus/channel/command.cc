#include "bus/channel/command.h"

#include "base/overloaded.h"
#include "bus/channel/packed.h"

namespace tensorbus::bus {
namespace {

constexpr std::uint64_t version = 2;
constexpr std::size_t longest_reason = 64 * 1024;
constexpr std::size_t longest_message = 64 * 1024;

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

Json to_json(const Placement& placement) {
  return std::visit(Overloaded{
                        [](const Replicate&) { return Json::array({0U}); },
                        [](const Shard& shard) {
                          return Json::array({1U, shard.dim});
                        },
                        [](const StridedShard& shard) {
                          return Json::array({2U, shard.dim, shard.split_factor});
                        },
                        [](const Partial& partial) {
                          return Json::array({3U, static_cast<unsigned>(partial.op)});
                        },
                    },
                    placement);
}

Json to_json(const SideLayout& layout) {
  Json placements = Json::array();
  for (const Placement& placement : layout.placements) placements.push_back(to_json(placement));
  return Json::array(
      {layout.mesh, std::move(placements), or_null(layout.coordinate), layout.mesh_id});
}

Json to_json(const BatchItem& item) {
  return Json::array({item.pair, item.name, static_cast<unsigned>(item.dtype), item.shape,
                      item.strides, or_null(item.global_shape), or_null(item.layout)});
}

Json to_json(const InitPair& init) {
  return Json::array({init.pair, init.local, init.remote, init.world_size,
                      init.layout ? to_json(*init.layout) : Json()});
}

Json to_json(const RegisterBatch& batch) {
  Json items = Json::array();
  for (const BatchItem& item : batch.items) items.push_back(to_json(item));
  Json layouts = Json::array();
  for (const SideLayout& layout : batch.layouts) layouts.push_back(to_json(layout));
  return Json::array(
      {batch.batch, batch.registration, or_null(batch.role), std::move(items),
       or_null(batch.chunk_bytes), static_cast<unsigned>(batch.verify), std::move(layouts),
       batch.versioned
           ? Json::array({static_cast<unsigned>(batch.versioned->direction), batch.versioned->last})
           : Json(),
       batch.pairs, batch.refused});
}

Json to_json(const Transfer& transfer) {
  return Json::array({transfer.batch, static_cast<unsigned>(transfer.direction),
                      or_null(transfer.role), transfer.ticket, or_null(transfer.version),
                      transfer.min_readers});
}

Json to_json(const QuerySignal& query) {
  return Json::array({query.batch, query.wait, or_null(query.round), or_null(query.role)});
}

Json to_json(const QueryVersions& query) { return Json::array({query.batch, or_null(query.role)}); }

Json to_json(const CloseBatch& close) { return Json::array({close.batch, close.registration}); }

auto text() {
  return [](Fields& in) { return in.string(); };
}
auto number() {
  return [](Fields& in) { return in.integer(); };
}
auto numbers() {
  return [](Fields& in) { return in.integers(); };
}

std::string name_in(Fields& in) {
  std::string name = in.string();
  if (name.empty()) in.refuse("a name is empty");
  return name;
}

Placement placement_from(const Json& json) {
  Fields in(json, "placement");
  const std::uint64_t kind = in.natural(3);
  Placement placement = Replicate{};
  if (kind == 1) placement = Shard{in.integer()};
  if (kind == 2) {
    const std::int64_t dim = in.integer();
    placement = StridedShard{dim, in.integer()};
    if (std::get<StridedShard>(placement).split_factor < 1) in.refuse("a split factor below 1");
  }
  if (kind == 3) {
    placement =
        Partial{static_cast<ReduceOp>(in.natural(static_cast<std::uint64_t>(ReduceOp::product)))};
  }
  in.end();
  return placement;
}

SideLayout layout_from(const Json& json) {
  Fields in(json, "layout");
  SideLayout layout;
  layout.mesh = in.integers();
  for (const Json& placement : in.list(64)) layout.placements.push_back(placement_from(placement));
  layout.coordinate = in.optional(numbers());
  layout.mesh_id = in.integer();
  in.end();
  return layout;
}

BatchItem item_from(const Json& json) {
  Fields in(json, "tensor of a batch");
  BatchItem item;
  item.pair = name_in(in);
  item.name = in.string();
  item.dtype = all_dtypes()[in.natural(all_dtypes().size() - 1)];
  item.shape = in.integers();
  item.strides = in.integers();
  item.global_shape = in.optional(numbers());
  item.layout = in.optional([](Fields& fields) { return fields.natural(); });
  in.end();
  element_count(item.shape);
  if (item.strides.size() != item.shape.size()) in.refuse("strides do not fit the shape");
  return item;
}

InitPair init_pair_from(const Json& json) {
  Fields in(json, "init_pair");
  InitPair init;
  init.pair = name_in(in);
  init.local = name_in(in);
  init.remote = name_in(in);
  init.world_size = in.integer();
  init.layout = in.optional([](Fields& fields) { return layout_from(fields.any()); });
  in.end();
  return init;
}

Versioned versioned_from(const Json& json) {
  Fields in(json, "versions of a batch");
  Versioned versioned;
  versioned.direction = static_cast<Direction>(in.natural(1));
  versioned.last = in.integer();
  in.end();
  return versioned;
}

RegisterBatch register_batch_from(const Json& json) {
  Fields in(json, "register_batch");
  RegisterBatch batch;
  batch.batch = name_in(in);
  batch.registration = in.natural();
  batch.role = in.optional(text());
  for (const Json& item : in.list()) batch.items.push_back(item_from(item));
  batch.chunk_bytes = in.optional(number());
  batch.verify = static_cast<Verify>(in.natural(static_cast<std::uint64_t>(Verify::full)));
  for (const Json& layout : in.list()) batch.layouts.push_back(layout_from(layout));
  batch.versioned = in.optional([](Fields& fields) { return versioned_from(fields.any()); });
  const Json& pairs = in.list();
  Fields names(pairs, "pairs of a batch");
  while (batch.pairs.size() < pairs.size()) batch.pairs.push_back(name_in(names));
  batch.refused = in.string(longest_reason);
  in.end();
  for (const BatchItem& item : batch.items) {
    if (item.layout && (*item.layout >= batch.layouts.size() || item.name.empty())) {
      in.refuse("a tensor's own layout");
    }
  }
  return batch;
}

Transfer transfer_from(const Json& json) {
  Fields in(json, "transfer");
  Transfer transfer;
  transfer.batch = name_in(in);
  transfer.direction = static_cast<Direction>(in.natural(1));
  transfer.role = in.optional(text());
  transfer.ticket = in.natural();
  transfer.version = in.optional(number());
  transfer.min_readers = static_cast<std::int64_t>(in.natural(INT64_MAX));
  in.end();
  return transfer;
}

QuerySignal query_signal_from(const Json& json) {
  Fields in(json, "query_signal");
  QuerySignal query;
  query.batch = name_in(in);
  query.wait = in.boolean();
  query.round = in.optional(number());
  query.role = in.optional(text());
  in.end();
  return query;
}

QueryVersions query_versions_from(const Json& json) {
  Fields in(json, "query_versions");
  QueryVersions query;
  query.batch = name_in(in);
  query.role = in.optional(text());
  in.end();
  return query;
}

CloseBatch close_batch_from(const Json& json) {
  Fields in(json, "close_batch");
  CloseBatch close;
  close.batch = name_in(in);
  close.registration = in.natural();
  in.end();
  return close;
}

void check_version(Fields& in) {
  const std::uint64_t found = in.natural();
  if (found != version) {
    in.refuse("its version is " + std::to_string(found) + ", ours " + std::to_string(version) +
              "; use one release of tensorbus for clients and agents");
  }
}

}  // namespace

std::string_view to_string(Direction direction) noexcept {
  return direction == Direction::send ? "send" : "recv";
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
  return std::visit(Overloaded{
                        [](const InitPair&) { return "init_pair"; },
                        [](const RegisterBatch&) { return "register_batch"; },
                        [](const Transfer&) { return "transfer"; },
                        [](const QuerySignal&) { return "query_signal"; },
                        [](const CloseBatch&) { return "close_batch"; },
                        [](const QueryVersions&) { return "query_versions"; },
                    },
                    command);
}

const std::string& context_of(const Command& command) noexcept {
  return std::visit(Overloaded{
                        [](const InitPair& init) -> const std::string& { return init.pair; },
                        [](const auto& other) -> const std::string& { return other.batch; },
                    },
                    command);
}

std::string encode(const Command& command) {
  Json body = std::visit([](const auto& each) { return to_json(each); }, command);
  return pack(Json::array({version, command.index(), std::move(body)}));
}

Command decode_command(std::string_view bytes) {
  const Json json = unpack(bytes, "command");
  Fields in(json, "command");
  check_version(in);
  const std::uint64_t kind = in.natural(std::variant_size_v<Command> - 1);
  const Json& body = in.any();
  in.end();
  switch (kind) {
    case 0:
      return init_pair_from(body);
    case 1:
      return register_batch_from(body);
    case 2:
      return transfer_from(body);
    case 3:
      return query_signal_from(body);
    case 4:
      return close_batch_from(body);
    default:
      return query_versions_from(body);
  }
}

std::string encode(const Outcome& outcome) {
  Json readers = Json::array();
  for (const auto& [rank, how] : outcome.readers) {
    readers.push_back(Json::array({rank, static_cast<unsigned>(how)}));
  }
  Json paths = Json::array();
  for (const auto& [path, bytes] : outcome.bytes_by_path) {
    paths.push_back(Json::array({path, bytes}));
  }
  Json versions = Json::array();
  for (const auto& [side, ranks] : outcome.versions) {
    for (const auto& [rank, number] : ranks) versions.push_back(Json::array({side, rank, number}));
  }
  return pack(Json::array({version, static_cast<unsigned>(outcome.status.code),
                           outcome.status.message.substr(0, longest_message), outcome.round,
                           std::move(readers), outcome.lost, outcome.signal, std::move(paths),
                           outcome.version, std::move(versions), outcome.stale, outcome.bytes}));
}

Outcome decode_outcome(std::string_view bytes) {
  const Json json = unpack(bytes, "outcome");
  Fields in(json, "outcome");
  check_version(in);
  Outcome outcome;
  outcome.status.code = static_cast<Code>(in.natural(static_cast<std::uint64_t>(Code::withdrawn)));
  outcome.status.message = in.string(longest_message);
  outcome.round = in.integer();
  for (const Json& each : in.list()) {
    Fields reader(each, "outcome of a reader");
    const Rank rank = reader.integer();
    outcome.readers[rank] =
        static_cast<ReaderOutcome>(reader.natural(static_cast<std::uint64_t>(ReaderOutcome::lost)));
    reader.end();
  }
  outcome.lost = in.integers(1'000'000);
  outcome.signal = in.boolean();
  for (const Json& each : in.list(64)) {
    Fields path(each, "path of an outcome");
    const std::string name = path.string();
    outcome.bytes_by_path[name] = path.integer();
    path.end();
  }
  outcome.version = in.integer();
  for (const Json& each : in.list()) {
    Fields version_of(each, "version of an outcome");
    const std::string side = version_of.string();
    const Rank rank = version_of.integer();
    outcome.versions[side][rank] = version_of.integer();
    version_of.end();
  }
  outcome.stale = in.boolean();
  outcome.bytes = in.integer();
  in.end();
  return outcome;
}

}  // namespace tensorbus::bus
