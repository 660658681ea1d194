// A group that is looked for again and again, whenever records have changed.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bus/match/match.h"

namespace tensorbus::bus {

class GroupSearch {
 public:
  // As find_group() in short. Looks again only if something has changed at an end that the last
  // search came to, or another failure is known. The group that was found before stays if its
  // records are the same: what was made from that group is not made again.
  const GroupFinding& find(const Catalog& catalog, const std::string& batch,
                           const std::vector<End>& ends, const KnownFailures& known);

 private:
  bool is_current(const Catalog& catalog, const std::string& batch, const std::vector<End>& ends,
                  const KnownFailures& known) const;

  std::vector<End> ends_;
  std::size_t known_ = 0;                     // failures; none is ever forgotten
  std::map<End, Catalog::Revision> visited_;  // empty: there was no search yet
  GroupFinding found_;
};

}  // namespace tensorbus::bus
