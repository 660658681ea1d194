// Which replica serves which reader.
//
// The candidates of a reader are the replicas on its own host if there are any, else all. Among the
// readers with the same candidates, in mesh order, the k-th takes candidate k mod their number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/tables.h"
#include "tensor/cut.h"

namespace tensorbus::plan {

// The targets that read one cell of the source: a product of cells per tensor dimension, with every
// coordinate of the mesh dimensions that do not shard.
class Readers {
 public:
  // `cells` ascend, one list per tensor dimension. References are kept.
  Readers(const Mesh& mesh, const std::vector<Cuts>& cuts,
          std::vector<const std::vector<std::int64_t>*> cells);

  bool contains(std::size_t target) const;
  // How many readers come before `target` in mesh order. Costs per mesh dimension, not per reader.
  std::size_t before(std::size_t target) const;

 private:
  static constexpr std::size_t replicated = static_cast<std::size_t>(-1);

  const Mesh& mesh_;
  const std::vector<Cuts>& cuts_;
  std::vector<const std::vector<std::int64_t>*> cells_;
  std::vector<std::size_t> sharded_dim_;  // per mesh dimension the tensor dimension, or replicated
  std::vector<std::int64_t> below_;  // per mesh dimension: cells of its tensor dimension below it
};

// The replica that `target`, one of `readers`, reads the cell at `base` from.
std::size_t choose(const Tables::Data& tables, std::size_t base, const Readers& readers,
                   std::size_t target);

// The targets among `readers`, all that read the cell at `base` in ascending order, that choose
// `replica`.
std::vector<std::size_t> choosers(const Tables::Data& tables, std::size_t base, std::size_t replica,
                                  const std::vector<std::size_t>& readers);

}  // namespace tensorbus::plan
