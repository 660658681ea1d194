// What a worker asks of its agent and what it is told: plain values that are sent, journaled and
// compared.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tensorbus/deadline.h"
#include "tensorbus/dtype.h"
#include "tensorbus/layout.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {

enum class Direction : std::uint8_t { send, recv };
std::string_view to_string(Direction direction) noexcept;

// A client draws its session once; its commands count from 1. A resend has the same id and is
// accepted once.
struct CommandId {
  std::uint64_t session = 0;
  std::uint64_t sequence = 0;
  friend auto operator<=>(const CommandId&, const CommandId&) = default;
};

// How one side spreads its tensors, as one of its ranks sees it. With a coordinate (a torch
// DeviceMesh) each rank says where it is; without, the ranks in ascending order fill the mesh.
struct SideLayout {
  Shape mesh;
  std::vector<Placement> placements;
  std::optional<std::vector<std::int64_t>> coordinate;
  // Of a tensor's own layout: ranks that say the same stand in one mesh. Several such meshes hold
  // the whole tensor each.
  std::int64_t mesh_id = 0;
  friend bool operator==(const SideLayout&, const SideLayout&) = default;
};

struct InitPair {
  std::string pair;
  std::string local;
  std::string remote;
  std::int64_t world_size = 0;
  std::optional<SideLayout> layout;  // none on both sides: index-wise, one to one
  friend bool operator==(const InitPair&, const InitPair&) = default;
};

// A local tensor of a batch. Its memory travels beside the command (see loan.h).
struct BatchItem {
  std::string pair;
  std::string name;  // all of a pair have one, or none
  Dtype dtype = Dtype::float32;
  Shape shape;
  Shape strides;                      // in elements
  std::optional<Shape> global_shape;  // of a DTensor
  // Its own, a position in RegisterBatch::layouts; none: the pair's. Needs a name.
  std::optional<std::size_t> layout{};
  friend bool operator==(const BatchItem&, const BatchItem&) = default;
};

// Of a batch that goes one way and whose rounds are versions of its tensors.
struct Versioned {
  Direction direction = Direction::send;  // of this rank
  std::int64_t last = 0;                  // that it sent or has read; 0: none yet
  friend bool operator==(const Versioned&, const Versioned&) = default;
};

enum class Verify : std::uint8_t { off, sample, full };
std::string_view to_string(Verify verify) noexcept;

struct RegisterBatch {
  std::string batch;
  // New for each; a dropped handler closes its own only. The same number again is no new
  // registration: a client passes its memory once more after its agent restarted, or other memory
  // to receive into.
  std::uint64_t registration = 0;
  std::optional<std::string> role;  // the local name meant, where an agent has both of a pair
  std::vector<BatchItem> items;
  std::optional<std::int64_t> chunk_bytes;
  Verify verify = Verify::off;
  std::vector<SideLayout> layouts{};
  std::optional<Versioned> versioned{};
  // That it takes part in whether or not it has a tensor of theirs.
  std::vector<std::string> pairs{};
  // Why there is nothing to register: the other ranks are told, and this fails.
  std::string refused{};
  friend bool operator==(const RegisterBatch&, const RegisterBatch&) = default;
};

struct Transfer {
  std::string batch;
  Direction direction = Direction::send;
  std::optional<std::string> role;
  // send: lends the memory while the batch's send gate has not passed it.
  std::uint64_t ticket = 0;
  // send: what it is; none: the last plus one. recv: the one wanted; none: whatever comes next.
  std::optional<std::int64_t> version{};
  // send of a versioned batch: it begins when so many readers have joined. The same at all senders.
  std::int64_t min_readers = 0;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

struct QuerySignal {
  std::string batch;
  bool wait = true;  // until the answer is true or the deadline has come
  std::optional<std::int64_t> round;
  std::optional<std::string> role;
  friend bool operator==(const QuerySignal&, const QuerySignal&) = default;
};

struct QueryVersions {
  std::string batch;
  std::optional<std::string> role;
  friend bool operator==(const QueryVersions&, const QueryVersions&) = default;
};

struct CloseBatch {
  std::string batch;
  std::uint64_t registration = 0;
  friend bool operator==(const CloseBatch&, const CloseBatch&) = default;
};

using Command =
    std::variant<InitPair, RegisterBatch, Transfer, QuerySignal, CloseBatch, QueryVersions>;

// Which version each rank of each side last sent or has read.
using Versions = std::map<std::string, std::map<Rank, std::int64_t>>;

// "transfer", for names of semaphores and messages.
std::string_view type_of(const Command& command) noexcept;
// The pair or batch that it is about.
const std::string& context_of(const Command& command) noexcept;

// How a send ended at one reader.
enum class ReaderOutcome : std::uint8_t { read, failed, lost };
std::string_view to_string(ReaderOutcome outcome) noexcept;

// The one terminal answer to an accepted command.
struct Outcome {
  Status status{};
  std::int64_t round = 0;                               // Transfer: which one it was
  std::map<Rank, ReaderOutcome> readers{};              // send: who took part
  std::vector<Rank> lost{};                             // peer_lost: which ranks
  bool signal = false;                                  // QuerySignal
  std::map<std::string, std::int64_t> bytes_by_path{};  // recv: "mapped", "packed", "network", ...
  std::int64_t version = 0;                             // Transfer of a versioned batch
  Versions versions{};                                  // QueryVersions
  bool stale = false;      // send: nothing goes before all senders have registered again
  std::int64_t bytes = 0;  // send: what its readers have read
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// With a version. Decoding checks everything and throws Error(invalid_argument).
std::string encode(const Command& command);
Command decode_command(std::string_view bytes);

}  // namespace tensorbus::bus
