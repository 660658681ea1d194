// Which side of a program is meant, for those who know the strides of one side only.
#pragma once

namespace tensorbus::plan {

enum class BoundSide : bool { source, target };

}  // namespace tensorbus::plan
