#include "bus/match/group_search.h"

#include <algorithm>

namespace tensorbus::bus {

const GroupFinding& GroupSearch::find(const Catalog& catalog, const std::string& batch,
                                      const std::vector<End>& ends, const KnownFailures& known) {
  if (is_current(catalog, batch, ends, known)) return found_;
  visited_.clear();
  const GroupPtr before = found_.group;
  found_ = find_group(catalog, batch, ends, known, Search::in_short);
  take_group(found_.group, before);
  ends_ = ends;
  known_ = known.size();
  for (const End& end : found_.visited) visited_[end] = catalog.revision(batch, end);
  return found_;
}

bool GroupSearch::is_current(const Catalog& catalog, const std::string& batch,
                             const std::vector<End>& ends, const KnownFailures& known) const {
  return !visited_.empty() && ends == ends_ && known.size() == known_ &&
         std::ranges::all_of(visited_, [&](const auto& each) {
           return catalog.revision(batch, each.first) == each.second;
         });
}

}  // namespace tensorbus::bus
