// The fields of commands and outcomes, and of what they share with records.
#pragma once

#include "bus/channel/command.h"
#include "tensor/fields.h"
#include "wire/message.h"

namespace tensorbus::bus {

constexpr Direction last_of(Direction) { return Direction::recv; }
constexpr Verify last_of(Verify) { return Verify::full; }
constexpr ReaderOutcome last_of(ReaderOutcome) { return ReaderOutcome::lost; }
constexpr Absence last_of(Absence) { return Absence::ended; }
constexpr PullPart last_of(PullPart) { return PullPart::apply; }
constexpr std::string_view to_string(Absence absence) {
  constexpr std::array<std::string_view, 3> names{"none", "gone", "ended"};
  return names[static_cast<std::size_t>(absence)];
}

constexpr wire::Title title_of(const Command*) { return {"command", 7}; }
constexpr std::array<std::string_view, 12> kinds_of(const Command*) {
  return {"init_pair",   "register_batch", "transfer",       "query_signal",
          "close_batch", "query_versions", "publish",        "shelve",
          "pull",        "query_newest",   "query_contents", "query_stage"};
}

// Versions of one shelf.
inline constexpr std::int64_t most_kept = 64;
inline constexpr std::int64_t longest_patience = 1'000'000'000;  // milliseconds

template <typename Archive>
void required_name(Archive& a, const char* what, std::string& name) {
  a(what, name);
  a.require(!name.empty(), "a name is empty");
}

template <typename Archive>
void fields(Archive& a, CommandId& id) {
  a("session", id.session);
  a("sequence", id.sequence);
}

template <typename Archive>
void fields(Archive& a, SideLayout& layout) {
  a("mesh", layout.mesh);
  a.list("placements", layout.placements, wire::most_numbers);
  a("coordinate", layout.coordinate);
  a("mesh_id", layout.mesh_id);
}

template <typename Archive>
void fields(Archive& a, Versioned& versioned) {
  a("direction", versioned.direction);
  a("last", versioned.last);
  a("subset", versioned.subset);
  a("keep", versioned.keep);
  a.require(!versioned.keep || (*versioned.keep >= 0 && *versioned.keep <= most_kept),
            "a shelf of so many versions");
  a("delta", versioned.delta);
  a.require(!versioned.delta || versioned.keep, "deltas without a shelf");
}

template <typename Archive>
void fields(Archive& a, InitPair& init) {
  required_name(a, "pair", init.pair);
  required_name(a, "local", init.local);
  a("remote", init.remote);
  a("world_size", init.world_size);
  a("layout", init.layout);
  a("alone", init.alone);
  a.require(init.alone || !init.remote.empty(), "a name is empty");
}

// A box lies in a whole of as many dimensions, and its end can be counted.
template <typename Tensor>
bool is_right_box(const Tensor& tensor) {
  if (!tensor.start) return true;
  const std::size_t dims = tensor.shape.size();
  if (tensor.layout || tensor.name.empty() || !tensor.global_shape) return false;
  if (tensor.start->size() != dims || tensor.global_shape->size() != dims) return false;
  for (std::size_t dim = 0; dim < dims; ++dim) {
    const std::int64_t start = (*tensor.start)[dim];
    const std::int64_t size = tensor.shape[dim];
    if (start < 0 || size < 0 || start > INT64_MAX - size) return false;
  }
  return true;
}

template <typename Archive>
void fields(Archive& a, BatchItem& item) {
  required_name(a, "pair", item.pair);
  a("name", item.name);
  a("dtype", item.dtype);
  a("shape", item.shape);
  a.check([&] { element_count(item.shape); });
  a("strides", item.strides);
  a.require(item.strides.size() == item.shape.size(), "strides do not fit the shape");
  a("global_shape", item.global_shape);
  a("layout", item.layout);
  a("start", item.start);
  a.require(is_right_box(item), "a box");
  a("staged", item.staged);
}

// Tensors that have a layout of their own have a name, and the layout is there.
template <typename Archive, typename Tensors>
void check_layouts(Archive& a, const Tensors& tensors, std::size_t layouts) {
  for (const auto& tensor : tensors) {
    a.require(!tensor.layout || (*tensor.layout < layouts && !tensor.name.empty()),
              "a tensor's own layout");
  }
}

template <typename Archive>
void fields(Archive& a, RegisterBatch& batch) {
  required_name(a, "batch", batch.batch);
  a("registration", batch.registration);
  a("role", batch.role);
  a("items", batch.items);
  a("chunk_bytes", batch.chunk_bytes);
  a("verify", batch.verify);
  a("layouts", batch.layouts);
  check_layouts(a, batch.items, batch.layouts.size());
  a("versioned", batch.versioned);
  a("pairs", batch.pairs);
  for (const std::string& pair : batch.pairs) a.require(!pair.empty(), "a name is empty");
  a.text("refused", batch.refused, wire::longest_reason);
}

template <typename Archive>
void fields(Archive& a, Transfer& transfer) {
  required_name(a, "batch", transfer.batch);
  a("direction", transfer.direction);
  a("role", transfer.role);
  a("ticket", transfer.ticket);
  a("version", transfer.version);
  a.natural("min_readers", transfer.min_readers);
}

template <typename Archive>
void fields(Archive& a, Publish& publish) {
  required_name(a, "batch", publish.batch);
  a("role", publish.role);
  a("version", publish.version);
  a.number("patience", publish.patience, 0, longest_patience);
  a("withdraw", publish.withdraw);
  a("deltas", publish.deltas);
  a("delta_memory", publish.delta_memory);
  a.require(publish.delta_memory.value_or(0) >= 0, "less memory than none");
}

template <typename Archive>
void fields(Archive& a, Shelve& shelve) {
  required_name(a, "batch", shelve.batch);
  a("role", shelve.role);
  a("version", shelve.version);
  a("whole", shelve.whole);
  a("compared", shelve.compared);
}

template <typename Archive>
void fields(Archive& a, Pull& pull) {
  required_name(a, "batch", pull.batch);
  a("role", pull.role);
  a("version", pull.version);
  a("newer_than", pull.newer_than);
  a("together", pull.together);
  a("overwritten", pull.overwritten);
  a("part", pull.part);
  a("scratch", pull.scratch);
  a("verify", pull.verify);
}

template <typename Archive>
void fields(Archive& a, QueryNewest& query) {
  required_name(a, "batch", query.batch);
  a("role", query.role);
}

template <typename Archive>
void fields(Archive& a, QuerySignal& query) {
  required_name(a, "batch", query.batch);
  a("wait", query.wait);
  a("round", query.round);
  a("role", query.role);
}

template <typename Archive>
void fields(Archive& a, QueryVersions& query) {
  required_name(a, "batch", query.batch);
  a("role", query.role);
}

template <typename Archive>
void fields(Archive& a, QueryStage& query) {
  required_name(a, "batch", query.batch);
  a("role", query.role);
  a.natural("min_readers", query.min_readers);
}

template <typename Archive>
void fields(Archive& a, QueryContents& query) {
  required_name(a, "batch", query.batch);
}

template <typename Archive>
void fields(Archive& a, CloseBatch& close) {
  required_name(a, "batch", close.batch);
  a("registration", close.registration);
  a("back_soon", close.back_soon);
}

template <typename Archive>
void fields(Archive& a, Content& content) {
  required_name(a, "name", content.name);
  a("dtype", content.dtype);
  a("shape", content.shape);
  a.check([&] { element_count(content.shape); });
}

template <typename Archive>
void fields(Archive& a, Update& update) {
  a("why", update.why);
  a.natural("elements", update.elements);
  a.natural("values", update.values);
  a.natural("bytes", update.bytes);
  a.natural("asking", update.asking);
  a.natural("fetching", update.fetching);
  a.natural("applying", update.applying);
  a.natural("verifying", update.verifying);
  a("verified", update.verified);
}

template <typename Archive>
void fields(Archive& a, Outcome& outcome) {
  a("status", outcome.status);
  a("round", outcome.round);
  a("readers", outcome.readers);
  a.list("lost", outcome.lost, wire::most_items);
  a("signal", outcome.signal);
  a.list("bytes_by_path", outcome.bytes_by_path, 64);
  a("version", outcome.version);
  a("versions", outcome.versions);
  a("stale", outcome.stale);
  a("bytes", outcome.bytes);
  a("slot", outcome.slot);
  a("absence", outcome.absence);
  a("copy_threads", outcome.copy_threads);
  a("contents", outcome.contents);
  a.list("stage", outcome.stage, wire::most_items);
  a("previous", outcome.previous);
  a("update", outcome.update);
}

}  // namespace tensorbus::bus
