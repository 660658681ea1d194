// A picture of who sends what to whom.
#pragma once

#include <string>

#include "plan/report/summary.h"

namespace tensorbus::plan {

// Source ranks on the left, target ranks on the right, a band for what moves between them, as thick
// as its bytes. For one tensor each rank shows which part of the tensor it holds, and a target
// paints that part in the colours of its sources. Many ranks are drawn as groups of neighbours.
std::string to_svg(const Model& model, const Summary& summary);

}  // namespace tensorbus::plan
