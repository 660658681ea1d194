// The tensors of one side of a pair: what all its ranks together say of them. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bus/directory/records.h"
#include "bus/match/pair.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus {

using Registrations = std::map<Rank, std::shared_ptr<const BatchMember>>;

// The items of one end of a registration, in the order in which both sides count them: by name, or
// as they were given.
const std::vector<std::size_t>& items_of(const BatchMember& member, const End& end);

struct SideTensor {
  std::string name;
  std::string label;  // for messages
  Dtype dtype = Dtype::float32;
  Shape shape;  // of the whole tensor
  plan::Spread spread;
  bool plain = false;     // its ranks said nothing of it but its own shape
  std::size_t items = 1;  // that a rank has of it at most

  const Layout* layout() const { return std::get_if<Layout>(&spread); }
  bool has_partial() const { return layout() != nullptr && layout()->has_partial(); }
};

struct SideTensors {
  std::vector<SideTensor> shared;                      // with a layout
  std::map<Rank, std::vector<SideTensor>> one_to_one;  // without: each rank has its own
  bool subset = false;                                 // the other side may have more than these

  const std::vector<SideTensor>& of(Rank rank) const {
    return one_to_one.empty() ? shared : one_to_one.at(rank);
  }
};

// A tensor has the side's layout, and then every rank of the side has a part of it; or a layout of
// its own, and then every rank of that layout has a part; or boxes, or is whole, at the ranks that
// have it. In a batch with versions a tensor without a layout of its own is of the last kind, too.
// Throws Error(invalid_argument) that lists whatever the ranks disagree about.
SideTensors tensors_of(const Registrations& members, const Side& side);

}  // namespace tensorbus::bus
