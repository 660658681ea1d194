#include "fabric/read/stream_cache.h"

#include <algorithm>

namespace tensorbus::fabric {
namespace {

bool same(const TensorForm& form, const TensorView& view) {
  return form.dtype == view.dtype && std::ranges::equal(form.shape, view.shape) &&
         std::ranges::equal(form.strides, view.strides);
}

bool same_object(const std::weak_ptr<const RemoteRegion>& known,
                 const std::shared_ptr<const RemoteRegion>& region) {
  return !known.owner_before(region) && !region.owner_before(known);
}

}  // namespace

ReadForms::ReadForms(const Read& read) {
  for (const Source& source : read.sources) {
    sources_.push_back({source.region, source.region->forms()});
  }
  targets_.reserve(read.targets.size());
  for (const TensorView& target : read.targets) targets_.push_back(form_of(target));
}

bool ReadForms::fits(const Read& read) const {
  const auto same_source = [](const Member& known, const Source& source) {
    return source.peer != nullptr && source.region != nullptr &&
           (same_object(known.region, source.region) || known.forms == source.region->forms());
  };
  const auto same_target = [](const TensorForm& form, const TensorView& target) {
    return !target.read_only && same(form, target);
  };
  return std::ranges::equal(sources_, read.sources, same_source) &&
         std::ranges::equal(targets_, read.targets, same_target);
}

}  // namespace tensorbus::fabric
