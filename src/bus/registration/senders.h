// Questions about the senders of a batch: what the record of their generation says of the
// registrations that are there now. Pure.
#pragma once

#include <optional>
#include <string>

#include "bus/directory/catalog.h"
#include "bus/match/match.h"

namespace tensorbus::bus {

// A rank's place in a generation, if this registration has one. `generation` may be null.
const Sender* place_in(const Generation* generation, Rank rank, const BatchMember& member);

std::string is_gone(Rank rank);

// The record speaks of just the registrations of this group.
bool is_of(const Group& group, const Generation& generation);

// The group has registrations of the last generation beside newer ones: of two contents.
bool is_mixed(const Group& group, const Generation* last);

// No registration of the group was in the last generation: the group can make the next one.
bool is_fresh(const Group& group, const Generation* last);

// What the ranks of the group say of their tensors agrees.
bool fit_together(const Group& group);

}  // namespace tensorbus::bus
