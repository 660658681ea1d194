// What a model costs to move: bytes, peers and runs of every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/report/model.h"

namespace tensorbus::plan {

struct Traffic {
  std::int64_t bytes = 0;  // that cross the wire
  std::size_t peers = 0;
  std::size_t pieces = 0;
};

struct Summary {
  std::map<Rank, Traffic> sources;  // every rank of the layouts, also those with nothing to move
  std::map<Rank, Traffic> targets;
  std::map<std::pair<Rank, Rank>, std::int64_t> bytes_between;  // (source, target)
  std::int64_t tensor_bytes = 0;  // of the global tensors, in the source's types
  std::int64_t moved_bytes = 0;
  std::size_t tensors = 0;
  std::size_t pieces = 0;
  std::size_t runs = 0;  // of contiguous local tensors, before they are cut into chunks
};

// `progress` is told of each rank that reads: how many are done, of how many.
using SummaryProgress = std::function<void(std::size_t, std::size_t)>;
Summary summarise(const Model& model, const SummaryProgress& progress = nullptr);

// The most loaded rank against the mean; 1 is perfect, 0 means that nothing moves.
double imbalance(const std::map<Rank, Traffic>& side);

// When each rank has a full-duplex link of its own, the busiest decides.
double seconds_over(const Summary& summary, double link_bytes_per_second);

std::string human_bytes(std::int64_t bytes);

// A table for people; without a link speed it does not give a time.
std::string to_table(const Model& model, const Summary& summary, double link_bytes_per_second = 0);

// With the pieces of every target when the model is one tensor.
std::string to_json(const Model& model, const Summary& summary, double link_bytes_per_second = 0);

}  // namespace tensorbus::plan
