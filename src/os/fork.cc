#include "os/fork.h"

#include <pthread.h>

#include <atomic>

namespace tensorbus::os {
namespace {

std::atomic<unsigned> generation{0};

[[maybe_unused]] const int registered =
    ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

unsigned fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

}  // namespace tensorbus::os
