// Intervals as Python slices.
#pragma once

#include "bindings.h"
#include "tensorbus/layout.h"

namespace tensorbus::python {

// One slice, which indexes a tensor directly, or a tuple of them to be concatenated.
inline nb::object as_slices(const Intervals& intervals) {
  const auto slice = [](Interval interval) {
    return nb::slice(nb::int_(interval.begin), nb::int_(interval.end), nb::none());
  };
  if (intervals.empty()) return slice({0, 0});
  if (intervals.size() == 1) return slice(intervals.front());
  nb::list slices;
  for (const Interval& interval : intervals) slices.append(slice(interval));
  return nb::tuple(slices);
}

}  // namespace tensorbus::python
