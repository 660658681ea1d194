// The four calls of a round trip of 64 bytes on one thread, so that a profiler can count them:
// every poll finds what it looks for. Prints the least time of a trip, too, which needs a quiet
// core and says nothing of two. Callgrind of valgrind 3.19 does not know pidfd_open(): it needs a
// program in which syscall() answers that one with any descriptor.
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "rows.h"
#include "trips.h"

namespace tensorbus::bench {
namespace {

int run(int argc, char** argv) {
  const bool prepared = argc > 1 && std::string_view(argv[1]) == "prepared";
  const int count = argc > 2 ? std::stoi(argv[2]) : 500;
  Trips trips(prepared);
  double least = 1e9;
  for (int round = 0; round < 60; ++round) {
    const TimePoint start = now();
    trips.round_trips(count);
    least = std::min(least, seconds_since(start) / count * 1e9);
  }
  fmt::print("{} trips of {} bytes{}: at least {:.0f} ns each\n", 60 * count, Trips::bytes,
             prepared ? ", prepared" : "", least);
  return 0;
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) { return tensorbus::bench::run(argc, argv); }
