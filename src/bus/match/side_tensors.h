// The tensors of one side of a pair: what all its ranks together say of them. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bus/directory/records.h"
#include "bus/match/pair.h"
#include "tensorbus/layout.h"

namespace tensorbus::bus {

using Registrations = std::map<Rank, std::shared_ptr<const BatchMember>>;

// The items of one end of a registration, in the order in which both sides count them: by name, or
// as they were given.
std::vector<std::size_t> items_of(const BatchMember& member, const End& end);

struct SideTensor {
  std::string name;
  std::string label;  // for messages
  Dtype dtype = Dtype::float32;
  Shape shape;  // of the whole tensor
  Layout layout;
};

struct SideTensors {
  std::vector<SideTensor> shared;                      // with a layout
  std::map<Rank, std::vector<SideTensor>> one_to_one;  // without: each rank has its own

  const std::vector<SideTensor>& of(Rank rank) const {
    return one_to_one.empty() ? shared : one_to_one.at(rank);
  }
};

// A tensor has the side's layout, and then every rank of the side has a part of it; or one of its
// own, and then every rank of that has. Throws Error(invalid_argument) that lists whatever the
// ranks disagree about.
SideTensors tensors_of(const Registrations& members, const Side& side);

// Throws Error(invalid_argument) that lists whatever does not fit between two sides of a pair.
void check_tensors(const End& one_end, const std::vector<SideTensor>& one, const End& other_end,
                   const std::vector<SideTensor>& other);

}  // namespace tensorbus::bus
