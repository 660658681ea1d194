// Whether the senders of a generation are as its record has them: asked at every change of any
// record, and answered from memory unless the change concerns them. Looking takes all of them, and
// there are as many changes as ranks.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "bus/directory/catalog.h"
#include "bus/match/match.h"

namespace tensorbus::bus {

class RollCall {
 public:
  // A sender of the generation that is registered otherwise now, or not at all.
  std::optional<Rank> who_left(const Catalog& catalog, const std::string& batch,
                               const std::shared_ptr<const Generation>& generation);
  // As bus::is_of().
  bool is_of(const GroupPtr& group, const std::shared_ptr<const Generation>& generation);

 private:
  bool is_unchanged(const Catalog& catalog, const std::string& batch) const;

  std::shared_ptr<const Generation> complete_;  // all its senders were there
  std::map<End, Catalog::Revision> then_;       // of all ends that those are registered for
  GroupPtr group_;                              // that was compared
  std::shared_ptr<const Generation> compared_;
  bool is_of_ = false;
};

}  // namespace tensorbus::bus
