// Asking for cache lines before they are needed.
#pragma once

namespace tensorbus {

inline void prefetch_to_read(const void* at) noexcept { __builtin_prefetch(at, 0); }

// Takes the line from the core that has it. By hand: without a newer baseline the compiler would
// only read the line, and the store would have to ask for it again. Does nothing on processors that
// lack the instruction.
inline void prefetch_to_write(const void* at) noexcept {
#ifdef __x86_64__
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}

}  // namespace tensorbus
