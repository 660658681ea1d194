// Threads and sockets do not survive a fork; whoever owns some must notice that it is in a child.
#pragma once

namespace tensorbus::os {

// Grows in each forked child. Compare with the value kept at construction.
unsigned fork_generation() noexcept;

}  // namespace tensorbus::os
