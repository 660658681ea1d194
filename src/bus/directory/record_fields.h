// The fields of records.
#pragma once

#include <algorithm>

#include "bus/channel/command_fields.h"
#include "bus/directory/records.h"
#include "fabric/core/identity_fields.h"

namespace tensorbus::bus {

template <typename Archive>
void fields(Archive& a, End& end) {
  a("pair", end.pair);
  a("side", end.side);
}

inline constexpr std::size_t most_tensors = 4'000'000;
inline constexpr std::int64_t most_parts_of_list = 4096;
// A list of tensors as a value that is written.
struct ListOfTensors {
  std::vector<TensorRecord> tensors;
  friend bool operator==(const ListOfTensors&, const ListOfTensors&) = default;
};
inline constexpr std::uint8_t record_version = 6;
constexpr wire::Title title_of(const AgentRecord*) { return {"agent record", record_version}; }
constexpr wire::Title title_of(const PairMember*) { return {"pair record", record_version}; }
constexpr wire::Title title_of(const BatchMember*) { return {"batch record", record_version}; }
constexpr wire::Title title_of(const VersionRecord*) { return {"version record", record_version}; }
constexpr wire::Title title_of(const ShelfRecord*) { return {"shelf record", record_version}; }
constexpr wire::Title title_of(const ListOfTensors*) { return {"tensor list", record_version}; }
constexpr wire::Title title_of(const Generation*) { return {"generation record", record_version}; }

template <typename Archive>
void fields(Archive& a, AgentRecord& record) {
  a("incarnation", record.incarnation);
  a("address", record.address);
}

template <typename Archive>
void fields(Archive& a, PairMember& member) {
  a("incarnation", member.incarnation);
  a("attempt", member.attempt);
  a.message("failed", member.failed, wire::longest_reason);
  a("address", member.address);
  a("world_size", member.world_size);
  a("remote", member.remote);
  a("layout", member.layout);
}

template <typename Archive>
void fields(Archive& a, TensorRecord& tensor) {
  a("end", tensor.end);
  a("name", tensor.name);
  a("dtype", tensor.dtype);
  a("shape", tensor.shape);
  a("global_shape", tensor.global_shape);
  a("layout", tensor.layout);
  a("start", tensor.start);
  a.check([&] {
    element_count(tensor.shape);
    if (tensor.global_shape) element_count(*tensor.global_shape);
  });
  a.require(is_right_box(tensor), "a box");
  a.require(tensor.end < wire::most_items && tensor.layout.value_or(0) < wire::most_items,
            "a position");
}

template <typename Archive>
void fields(Archive& a, ListOfTensors& list) {
  a.list("tensors", list.tensors, most_tensors);
  for (const TensorRecord& tensor : list.tensors) {
    a.require(!tensor.layout || !tensor.name.empty(), "a tensor's own layout");
  }
}

template <typename Archive>
void fields(Archive& a, TensorListId& id) {
  a("hash", id.hash);
  a.number("parts", id.parts, 0, most_parts_of_list);
}

template <typename Archive>
void fields(Archive& a, BatchMember& member) {
  a("incarnation", member.incarnation);
  a("registration", member.registration);
  a.message("failed", member.failed, wire::longest_reason);
  a("refused", member.refused);
  a("ends", member.ends);
  a.require(!member.ends.empty() && std::ranges::is_sorted(member.ends), "ends");
  a("remotes", member.remotes);
  a.require(member.remotes.size() == member.ends.size(), "an end faces no side");
  a("tensors", member.tensors.id);
  a("chunk_bytes", member.chunk_bytes);
  a("verify", member.verify);
  a("layouts", member.layouts);
  a("versioned", member.versioned);
  a("unfit", member.unfit);
}

template <typename Archive>
void fields(Archive& a, VersionRecord& record) {
  a("registration", record.registration);
  a("version", record.version);
}

template <typename Archive>
void fields(Archive& a, ShelfRecord& record) {
  a.natural("generation", record.generation);
  a("place", record.place);
  a("member", record.member);
}

template <typename Archive>
void fields(Archive& a, Sender& sender) {
  a("incarnation", sender.incarnation);
  a("registration", sender.registration);
}

template <typename Archive>
void fields(Archive& a, Generation& generation) {
  a.natural("number", generation.number);
  a("senders", generation.senders);
  for (const auto& [rank, sender] : generation.senders)
    a.require(rank >= 0, "there is no such rank");
  a("ended", generation.ended);
  a("left", generation.left);
  a.message("why", generation.why, wire::longest_reason);
  a.natural("after", generation.after);
  a("version", generation.version);
  a("back_soon", generation.back_soon);
}

}  // namespace tensorbus::bus
