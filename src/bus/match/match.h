// The registrations of a batch, matched: who sends the batch together, what its tensors are, and
// who reads what from whom. Pure: from records to plans, the same at every rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bus/directory/catalog.h"
#include "bus/match/pair.h"
#include "bus/match/side_tensors.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus {

// Ranks that send a batch in step: those whose ends are linked, because one rank has registered
// tensors of both. A group is named by its smallest end.
struct Group {
  End name;
  std::map<End, Side> sides;
  Registrations members;

  // What the ranks of one side of the group say of their tensors; made when somebody first asks,
  // since making takes ranks x tensors. Throws as tensors_of().
  const SideTensors& tensors(const Side& side) const;
  // The same registrations of the same ranks.
  bool is(const Group& other) const { return members == other.members && sides == other.sides; }

 private:
  mutable std::map<End, SideTensors> tensors_;
};
using GroupPtr = std::shared_ptr<const Group>;

struct GroupFinding {
  GroupPtr group;
  std::string missing;      // if there is none yet
  bool in_short = false;    // ranks are missing, and nobody has looked which
  std::set<End> visited{};  // what was looked at
};
// `known`: registrations whose failure this rank knows of; the ranks of those have to try again.
// Throws Error(invalid_argument) when ranks disagree or one of them failed.
GroupFinding find_group(const Catalog& catalog, const std::string& batch,
                        const std::vector<End>& ends, const KnownFailures& known = {},
                        Search search = Search::whole);
// `known` stays, as `group`, if both are the same registrations of the same ranks.
void take_group(GroupPtr& group, const GroupPtr& known);

// What others are told of a registration that failed.
Status failure_of(const std::string& batch, Rank rank, const BatchMember& member);

// The ends that a registration faces.
std::vector<End> remote_ends(const BatchMember& member);

// Throws Error(invalid_argument) unless the tensors of both groups fit, for the pairs that they
// share; says which tensor does not.
void check_tensors(const Group& one, const Group& other);

// Whether the ranks of each of its sides say the same of their tensors.
bool agrees(const Group& group);
// Throws what they disagree about.
void check_agrees(const Group& group);

// Why this group cannot send to that one, or ok.
Status may_send(const Group& sources, const Group& targets);

// A side takes data from the side that it named; others may only read from it. Ok, or which.
Status are_named(const Group& sources, const Group& targets);

// Plans of all the senders' tensors, in the order that both ends count them: by pair, then by name
// or position. Tensors that the reader's side does not take are planned for nobody.
struct Passage {
  std::vector<plan::Plan> plans;
  std::uint64_t fingerprint = 0;  // equal where plans are
};
Passage make_passage(const Group& sources, const Group& targets, Rank reader);

// What messages call the senders' local tensors, in the order in which parts count them.
std::vector<std::string> labels_of(const Group& sources);

// The items of a registration as parts of these plans count local tensors; nothing for what is not
// at this rank.
using ItemOrder = std::vector<std::optional<std::size_t>>;
ItemOrder source_order(const Group& sources, const BatchMember& member);
ItemOrder target_order(const Group& sources, const Group& targets, const BatchMember& member);

inline Rank first_source(const Group& sources) {
  return sources.sides.begin()->second.ranks.front();
}

}  // namespace tensorbus::bus
