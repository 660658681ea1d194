#include "bus/host/free_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "bus/directory/records.h"

namespace tensorbus::bus {

Rank free_rank(Store& store, const std::string& space, Deadline deadline) {
  const KeyScope scope(space, component_of_records);
  while (true) {
    // A counter and no search: two agents that come at once get two numbers.
    const Rank rank = first_free_rank - 1 + store.add(scope.full("ranks"), 1, deadline);
    if (!store.exists(scope.full(to_text(AgentKey{rank})), deadline)) return rank;
  }
}

void check_order_does_not_matter(const InitPair& pair) {
  if (!pair.layout || pair.layout->coordinate || pair.world_size == 1) return;
  const bool alike = std::ranges::all_of(pair.layout->placements, [](const Placement& placement) {
    return std::holds_alternative<Replicate>(placement);
  });
  if (alike) return;
  throw Error(
      Code::invalid_argument,
      fmt::format("pair \"{}\": the ranks of side \"{}\" fill the mesh in ascending order, but "
                  "this rank was given none and got one by chance; give rank= (or "
                  "AGENT_RANK), or a mesh that says where each rank stands",
                  pair.pair, pair.local));
}

}  // namespace tensorbus::bus
