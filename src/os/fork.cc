#include "os/fork.h"

#include <pthread.h>

#include <atomic>
#include <string>

#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

std::atomic<unsigned> generation{0};

[[maybe_unused]] const int registered =
    ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

unsigned fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

void check_not_forked(unsigned made_in, std::string_view what) {
  if (made_in == fork_generation()) return;
  throw Error(Code::failed, "this " + std::string(what) +
                                " was made before a fork; make another one in the child process");
}

}  // namespace tensorbus::os
