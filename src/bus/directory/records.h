// What agents publish in the store, and under which keys.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "bus/channel/command.h"
#include "bus/directory/tensor_list.h"
#include "fabric/core/identity.h"

namespace tensorbus::bus {

// Where records lie in the store: the second part of their full keys.
inline constexpr const char* component_of_records = "bus";
// What agents show of themselves: no agent watches it.
inline constexpr const char* component_of_status = "status";

// One end of a pair: a name that ranks gather under.
struct End {
  std::string pair;
  std::string side;
  friend auto operator<=>(const End&, const End&) = default;
};
std::string to_string(const End& end);  // side "trainer" of pair "weights"

// An agent that runs. Leased.
struct AgentRecord {
  std::uint64_t incarnation = 0;
  fabric::Address address;
  friend bool operator==(const AgentRecord&, const AgentRecord&) = default;
};

// A rank that stands for an end. Leased: the record is gone when the agent is, and withdrawn when
// its worker is gone.
struct PairMember {
  std::uint64_t incarnation = 0;  // of this agent and this worker
  std::uint64_t attempt = 0;      // new for every init_pair
  std::string failed;             // why that attempt failed; the others' must, too
  fabric::Address address;
  std::int64_t world_size = 0;
  std::string remote;
  std::optional<SideLayout> layout;
  friend bool operator==(const PairMember&, const PairMember&) = default;
};

// RegistrationIds of batches, as (rank, number).
using RegistrationIds = std::set<std::pair<Rank, std::uint64_t>>;

// A rank's registration of a batch. Leased. Small: what all ranks of a side say alike, their
// tensors, is in a record of its own.
struct BatchMember {
  std::uint64_t incarnation = 0;
  std::uint64_t registration = 0;
  std::string failed;
  bool refused = false;              // failed on its own, and not because others did not fit
  std::vector<End> ends;             // ascending
  std::vector<std::string> remotes;  // the side that each end faces
  SharedTensors tensors;
  std::int64_t chunk_bytes = 0;
  Verify verify = Verify::off;
  std::vector<SideLayout> layouts{};
  std::optional<Versioned> versioned{};  // as it was when it registered
  // If this registration failed: the ranks whose registrations it did not fit, by the numbers of
  // those.
  std::map<std::uint64_t, Rank> unfit{};
  friend bool operator==(const BatchMember&, const BatchMember&) = default;
};

struct Sender {
  std::uint64_t incarnation = 0;
  std::uint64_t registration = 0;
  friend bool operator==(const Sender&, const Sender&) = default;
};

// The senders of a batch that count their rounds together. Stays in the store; changed by
// compare-and-set only.
struct Generation {
  std::int64_t number = 0;
  std::map<Rank, Sender> senders;
  bool ended = false;
  Rank left = 0;             // who ended it
  std::string why;           // for messages
  std::int64_t after = 0;    // rounds up to this one go on: `left` had been answered for them
  std::int64_t version = 0;  // the last one that was known when it began; its sends count on
  // Of an end, or before it of the end of the generation before: `left` registers again, and
  // readers wait for the next generation.
  bool back_soon = false;
  friend bool operator==(const Generation&, const Generation&) = default;
};

struct PairKey {
  End end;
  Rank rank = 0;
  friend auto operator<=>(const PairKey&, const PairKey&) = default;
};
struct BatchKey {
  std::string batch;
  std::string side;  // tells apart two registrations of one rank
  Rank rank = 0;
  friend auto operator<=>(const BatchKey&, const BatchKey&) = default;
};
struct GenerationKey {
  std::string batch;
  End group;  // the smallest of the senders' ends
  friend auto operator<=>(const GenerationKey&, const GenerationKey&) = default;
};
struct AgentKey {
  Rank rank = 0;
  friend auto operator<=>(const AgentKey&, const AgentKey&) = default;
};
// A process that asks whether its rank is free, and is no agent yet; the key holds an AgentRecord.
// Leased.
struct CallerKey {
  std::int64_t id = 0;
  friend auto operator<=>(const CallerKey&, const CallerKey&) = default;
};
// The version that a reader had last read under this registration when it lost its senders. Leased.
struct VersionRecord {
  std::uint64_t registration = 0;
  std::int64_t version = 0;
  friend bool operator==(const VersionRecord&, const VersionRecord&) = default;
};
struct VersionKey {
  BatchKey batch;
  friend auto operator<=>(const VersionKey&, const VersionKey&) = default;
};
// A rank's shelf of a generation, of which all ranks have a version: what readers find, whatever
// has become of the worker that filled it. Leased.
struct ShelfRecord {
  std::int64_t generation = 0;
  PairMember place;    // of the rank in its side, as they were then
  BatchMember member;  // and its registration
  friend bool operator==(const ShelfRecord&, const ShelfRecord&) = default;
};
struct ShelfKey {
  BatchKey batch;
  friend auto operator<=>(const ShelfKey&, const ShelfKey&) = default;
};
// A part of a list of tensors: bytes that belong to nobody. Leased by one of the agents whose
// records refer to the list; these agents see to it that the list is there (list_keeper.h).
struct ListKey {
  ListHash hash{};
  std::uint32_t part = 0;
  friend auto operator<=>(const ListKey&, const ListKey&) = default;
};
using RecordKey = std::variant<AgentKey, PairKey, BatchKey, GenerationKey, VersionKey, CallerKey,
                               ShelfKey, ListKey>;

// Names may hold any character.
std::string to_text(const RecordKey& key);
// Nothing for keys that are not ours.
std::optional<RecordKey> parse_key(std::string_view key);

// With a version. Decoding checks everything and throws Error(invalid_argument).
std::string encode(const AgentRecord& record);
AgentRecord decode_agent_record(std::string_view bytes);
std::string encode(const VersionRecord& record);
VersionRecord decode_version_record(std::string_view bytes);
std::string encode(const ShelfRecord& record);
ShelfRecord decode_shelf_record(std::string_view bytes);
std::string encode(const PairMember& member);
std::string encode(const BatchMember& member);
std::string encode(const Generation& generation);
PairMember decode_pair_member(std::string_view bytes);
BatchMember decode_batch_member(std::string_view bytes);
Generation decode_generation(std::string_view bytes);
// Lines for people, of what lies under the key. Throws like decoding.
std::string print_record(const RecordKey& key, std::string_view bytes);

}  // namespace tensorbus::bus
