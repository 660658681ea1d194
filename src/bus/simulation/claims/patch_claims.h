// What agents of a simulated cluster say of patches, and whether it is so: what readers hold, what
// sources offer to them, when patches are applied, and what all that takes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "bus/round/messages.h"
#include "bus/simulation/simulation.h"

namespace tensorbus::bus::simulation {

class PatchClaims {
 public:
  // The pull that a user waits for.
  struct OnePull {
    std::uint64_t since = 0;        // in steps of the world
    std::uint64_t dense_reads = 0;  // of the rank before
    friend bool operator==(const OnePull&, const OnePull&) = default;
  };
  struct Needs {
    std::function<void(const std::string& invariant, const std::string& what)> violate;
    // How a reader's tensors differ from this version; empty: they do not.
    std::function<std::string(Rank reader, std::int64_t generation, std::int64_t version)> lacks;
    // For patches and what they are made of; none: any.
    std::function<std::optional<std::int64_t>()> most_bytes;
    // No connection was lost yet: whoever has said nothing else still reads what it was offered.
    std::function<bool()> calm;
    // Nothing: the user waits for none.
    std::function<std::optional<OnePull>(Rank reader)> pull;
  };
  PatchClaims(Cluster& cluster, Needs needs) : cluster_(cluster), world_(std::move(needs)) {}

  void on_said(Rank from, Rank to, const AgentMessage& message);
  void on_step(Rank rank, Step step);
  void after_step(std::optional<Rank> acted);
  // Everybody has left.
  void at_rest();
  // How often this rank has begun to read all of a version.
  std::uint64_t dense_reads(Rank rank) const;

 private:
  // The last pull of a reader for which it asked.
  struct Asked {
    std::uint64_t serial = 0;
    std::int64_t generation = 0;
    std::int64_t version = 0;
    std::set<Rank> sources{};
    std::map<Rank, std::int64_t> held{};  // what each source was told
    std::set<Rank> offered{};
    std::optional<OnePull> pull{};  // that waits for an answer
    TimePoint since{};
    std::uint64_t turns = 0;  // of the reader's agent, since it should have lost patience
  };
  // By source, generation and checksum: the region of the patch, and who reads it.
  struct Patch {
    std::uint64_t region = 0;
    std::set<std::uint64_t> readers{};  // by serial
  };
  using PatchKey = std::pair<Rank, std::uint64_t>;

  void on_ask(Rank reader, Rank source, const AgentMessage& message, const AskPatch& ask);
  void on_answer(Rank source, Rank reader, const AgentMessage& message, const Patched& answer);
  void check_same(Rank source, std::uint64_t serial, const OfferedPatch& offered);
  void release(Rank source, std::uint64_t serial);
  void check_applying(Rank reader);
  // Of all patches that can be read, by owner.
  std::map<Rank, std::int64_t> patch_bytes() const;

  Cluster& cluster_;
  const Needs world_;
  std::map<Rank, Asked> asked_;  // by reader
  std::map<PatchKey, Patch> patches_;
  std::map<Rank, std::uint64_t> dense_reads_;
  bool offered_now_ = false;
  bool delayed_ = false;  // what is said may have been said later than it was meant
};

}  // namespace tensorbus::bus::simulation
