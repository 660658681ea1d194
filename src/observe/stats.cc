#include "tensorbus/stats.h"

#include <algorithm>

#include "observe/registry.h"

namespace tensorbus {
namespace {

Series to_series(const observe::Family& family, const observe::Sample& sample) {
  Series series;
  series.labels.insert(sample.labels.begin(), sample.labels.end());
  series.value = sample.value;
  if (family.kind == observe::MetricKind::histogram) {
    series.value = sample.distribution.sum;
    series.count = sample.distribution.count;
  }
  return series;
}

}  // namespace

Stats stats(const std::map<std::string, std::string>& of) {
  const observe::Families families = observe::registry().collect();
  Stats found;
  for (const auto& [name, family] : families.all()) {
    for (const observe::Sample& sample : family.samples) {
      Series series = to_series(family, sample);
      if (!std::ranges::includes(series.labels, of)) continue;
      for (const auto& [label, _] : of) series.labels.erase(label);
      found[name].push_back(std::move(series));
    }
  }
  return found;
}

}  // namespace tensorbus
