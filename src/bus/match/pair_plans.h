// Plans of the tensors of a pair: those that are spread alike share what planning knows of them.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <variant>

#include "bus/match/pair.h"
#include "bus/match/side_tensors.h"

namespace tensorbus::bus {

class PairPlans {
 public:
  // Without `facing` nobody knows who is near. Both are kept.
  PairPlans(const Side& side, const Side* facing) : side_(side), facing_(facing) {}

  // To ranks of the facing side, or whoever stands in `to`.
  plan::Plan make(const SideTensor& from, const plan::Spread& to, Dtype type);
  // Null if neither side has boxes.
  const plan::Holdings* holdings(const SideTensor& from, const plan::Spread& to);
  // The same text at both ends if both have made the same plans.
  std::string text() const { return plans_ + known_text_; }

 private:
  struct Known {
    std::size_t number = 0;
    plan::Spread from;
    plan::Spread to;
    std::optional<Shape> shape;  // boxes are known for one
    std::variant<plan::Tables, plan::Holdings> how;
  };
  const Known& between(const SideTensor& from, const plan::Spread& to);

  const Side& side_;
  const Side* const facing_;
  std::deque<Known> known_;  // which stay where they are
  std::string plans_;
  std::string known_text_;
};

}  // namespace tensorbus::bus
