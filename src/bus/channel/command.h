// What a worker asks of its agent and what the worker is told: plain values that are sent,
// journaled and compared.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "delta/policy/decision.h"
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
  // The pair is complete with its own side: the side that faces it may come later or have gone, and
  // need not be named.
  bool alone = false;
  friend bool operator==(const InitPair&, const InitPair&) = default;
};

// A local tensor of a batch. The memory travels beside the command (see loan.h).
struct BatchItem {
  std::string pair;
  std::string name;  // all of a pair have one, or none
  Dtype dtype = Dtype::float32;
  Shape shape;
  Shape strides;                      // in elements
  std::optional<Shape> global_shape;  // of a DTensor
  // The tensor's own layout, a position in RegisterBatch::layouts; none: the pair's. A tensor with
  // a layout of its own needs a name.
  std::optional<std::size_t> layout{};
  // Of a box: where the box begins in the whole, of which global_shape is the shape. What reaches
  // beyond the whole is neither sent nor received. A box needs a name, which several boxes may
  // share.
  std::optional<Shape> start{};
  // Of what is sent with versions: the memory that is lent is a copy that the worker makes for
  // every send, in this type or a narrower one. Before the worker knows which, it lends no memory.
  bool staged = false;
  friend bool operator==(const BatchItem&, const BatchItem&) = default;
};

// Of a batch that goes one way and whose rounds are versions of its tensors.
struct Versioned {
  Direction direction = Direction::send;  // of this rank
  std::int64_t last = 0;                  // that it sent or has read; 0: none yet
  bool subset = false;  // recv: senders may have tensors that this side does not take
  // A batch with a shelf has no rounds: senders publish, readers pull when they like. How many
  // versions a sender keeps; 0 of a reader. None: there is no shelf.
  std::optional<std::int64_t> keep{};
  // Of a shelf. A sender lends memory in which it says what a version has changed: after all
  // tensors of all slots, for each tensor a bit for each element. A reader promises that nobody
  // else writes to its tensors, so that what it holds can be patched.
  bool delta = false;
  friend bool operator==(const Versioned&, const Versioned&) = default;
};

// `first`: rounds in full until the reader has read one.
enum class Verify : std::uint8_t { off, first, sample, full };
std::string_view to_string(Verify verify) noexcept;

struct RegisterBatch {
  std::string batch;
  // Each registration has a new number; a dropped handler closes its own only. The same number
  // again is no new registration: a client passes its memory once more after its agent restarted,
  // or other memory to receive into or to send from.
  std::uint64_t registration = 0;
  std::optional<std::string> role;  // the local name meant, where an agent has both of a pair
  std::vector<BatchItem> items;
  std::optional<std::int64_t> chunk_bytes;
  Verify verify = Verify::off;
  std::vector<SideLayout> layouts{};
  std::optional<Versioned> versioned{};
  // Pairs that the batch takes part in, whether or not it has a tensor of theirs.
  std::vector<std::string> pairs{};
  // Why there is nothing to register: the other ranks are told, and the command fails.
  std::string refused{};
  friend bool operator==(const RegisterBatch&, const RegisterBatch&) = default;
};

struct Transfer {
  std::string batch;
  Direction direction = Direction::send;
  std::optional<std::string> role;
  // send: lends the memory while the batch's send gate has not passed it.
  std::uint64_t ticket = 0;
  // send: the version that is sent; none: the last plus one. recv: the version that is wanted;
  // none: whatever comes next.
  std::optional<std::int64_t> version{};
  // send of a versioned batch: the round begins when so many readers have joined. All senders give
  // the same number.
  std::int64_t min_readers = 0;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// Asks for a slot of the shelf to put the next version into: the outcome has its version and its
// slot. The version's number is used up whatever becomes of the slot.
struct Publish {
  std::string batch;
  std::optional<std::string> role;
  std::optional<std::int64_t> version;  // above all others; none: the last plus one
  // For readers that hold every slot, in milliseconds. Then the oldest slot is withdrawn from them,
  // or they are waited for until the deadline.
  std::int64_t patience = 0;
  bool withdraw = false;
  // Whether readers get patches, and how many bytes all that patches need may have; none: any.
  delta::Mode deltas = delta::Mode::off;
  std::optional<std::int64_t> delta_memory{};
  friend bool operator==(const Publish&, const Publish&) = default;
};

// The slot that a Publish gave holds the version now; or, if the version is not whole, nothing.
// `compared`: what it changes was written down, too.
struct Shelve {
  std::string batch;
  std::optional<std::string> role;
  std::int64_t version = 0;
  bool whole = true;
  bool compared = false;
  friend bool operator==(const Shelve&, const Shelve&) = default;
};

// How far a pull goes: a fetch does not touch the tensors, and the apply that follows it does the
// rest.
enum class PullPart : std::uint8_t { all, fetch, apply };
std::string_view to_string(PullPart part) noexcept;

// Reads a version of the shelf that all sources have: the newest, or one above `newer_than` (or of
// a later generation), or the very one. `together`: the same at all ranks of the side.
struct Pull {
  std::string batch;
  std::optional<std::string> role;
  std::optional<std::int64_t> version{};
  std::optional<std::int64_t> newer_than{};
  bool together = false;
  // The tensors are not what the last pull left: nothing of it can be patched.
  bool overwritten = false;
  PullPart part = PullPart::all;
  // Of a fetch: what no patch can do is read into other memory, as large as the tensors.
  bool scratch = false;
  // What was patched is compared with what the sources have then.
  Verify verify = Verify::off;
  friend bool operator==(const Pull&, const Pull&) = default;
};

// The newest version that a pull would find, or that this rank has published; 0: none.
struct QueryNewest {
  std::string batch;
  std::optional<std::string> role;
  friend bool operator==(const QueryNewest&, const QueryNewest&) = default;
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

// In which types the readers want what is staged for them; a worker asks before it copies for a
// send that has so many readers at least.
struct QueryStage {
  std::string batch;
  std::optional<std::string> role;
  std::int64_t min_readers = 0;
  friend bool operator==(const QueryStage&, const QueryStage&) = default;
};

// What the ranks of a side publish under a name: waits until all of them have had a version.
struct QueryContents {
  std::string batch;
  friend bool operator==(const QueryContents&, const QueryContents&) = default;
};

struct CloseBatch {
  std::string batch;
  std::uint64_t registration = 0;
  bool back_soon = false;  // it will be registered again: no end of what is published
  friend bool operator==(const CloseBatch&, const CloseBatch&) = default;
};

using Command =
    std::variant<InitPair, RegisterBatch, Transfer, QuerySignal, CloseBatch, QueryVersions, Publish,
                 Shelve, Pull, QueryNewest, QueryContents, QueryStage>;

// Which version each rank of each side last sent or has read.
using Versions = std::map<std::string, std::map<Rank, std::int64_t>>;

// A whole tensor of what is published, whoever has which part of it.
struct Content {
  std::string name;
  Dtype dtype = Dtype::float32;
  Shape shape;
  friend bool operator==(const Content&, const Content&) = default;
};

// "transfer", for names of semaphores and messages.
std::string_view type_of(const Command& command) noexcept;
// The pair or batch that it is about.
const std::string& context_of(const Command& command) noexcept;

// How a send ended at one reader.
enum class ReaderOutcome : std::uint8_t { read, failed, lost };
std::string_view to_string(ReaderOutcome outcome) noexcept;

// Why a pull will never get what it asked for.
enum class Absence : std::uint8_t {
  none,
  gone,   // the version was recycled or skipped
  ended,  // the senders have closed, nothing newer comes
};

// How a recv or pull spent its time, in nanoseconds, and whom it read from. For the agent's own
// records: it is not sent.
struct Timing {
  std::int64_t read = 0;
  std::int64_t verify = 0;
  std::int64_t commit = 0;
  std::vector<Rank> sources{};
  std::optional<Rank> slowest{};  // whose bytes came last
  friend bool operator==(const Timing&, const Timing&) = default;
};

// How a version got to a reader that promised to leave its tensors alone.
struct Update {
  delta::Why why = delta::Why::switched_off;  // `patch`, or why all of the version was read
  std::int64_t elements = 0;                  // of the reader's streams
  std::int64_t values = 0;                    // of them in the patches
  std::int64_t bytes = 0;                     // of the patches
  // Nanoseconds: until all sources had answered, until all patches were here, until they were
  // applied, and until the result was compared.
  std::int64_t asking = 0;
  std::int64_t fetching = 0;
  std::int64_t applying = 0;
  std::int64_t verifying = 0;
  bool verified = false;  // what was patched was compared with what the sources have
  friend bool operator==(const Update&, const Update&) = default;
};

// The one terminal answer to an accepted command.
struct Outcome {
  Status status{};
  std::int64_t round = 0;                               // Transfer: which one it was
  std::map<Rank, ReaderOutcome> readers{};              // send: who took part
  std::vector<Rank> lost{};                             // peer_lost: which ranks
  bool signal = false;                                  // QuerySignal
  std::map<std::string, std::int64_t> bytes_by_path{};  // recv: "mapped", "packed", "network", ...
  std::int64_t version = 0;                             // of a versioned batch
  Versions versions{};                                  // QueryVersions
  bool stale = false;               // send: nothing goes before all senders have registered again
  std::int64_t bytes = 0;           // send: what its readers have read
  std::int64_t slot = 0;            // Publish
  Absence absence = Absence::none;  // Pull
  std::int64_t copy_threads = 0;    // that a copy of this rank may take; 0: the agent does not say
  std::vector<Content> contents{};  // QueryContents
  std::vector<Dtype> stage{};       // QueryStage: of all tensors; none: their own types
  Timing timing{};                  // recv, Pull
  std::optional<std::int64_t> previous{};  // Publish: the slot to compare the version with
  std::optional<Update> update{};          // Pull, of a reader that promised
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// With a version. Decoding checks everything and throws Error(invalid_argument).
std::string encode(const Command& command);
Command decode_command(std::string_view bytes);

}  // namespace tensorbus::bus
