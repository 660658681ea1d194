// What a worker's registration says to the other ranks: checked, and brought into the form of a
// record.
#pragma once

#include <optional>
#include <string>

#include "bus/agent/pairs.h"
#include "bus/channel/channel.h"
#include "bus/directory/records.h"

namespace tensorbus::bus {

struct RegisteringRecord {
  BatchMember record;
  std::string side;  // of the pairs' local names, the one under which the batch is known here
};

// Nothing: a pair that the command names is not complete yet. Throws Error(invalid_argument) for
// what no pair could make good.
std::optional<RegisteringRecord> record_of(const Submission& submission,
                                           const RegisterBatch& command, const Pairs& pairs,
                                           std::uint64_t incarnation);

}  // namespace tensorbus::bus
