// The timelines that processes wrote, joined.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tensorbus::program {

using TraceEvent = nlohmann::json;

// One process's file.
struct Timeline {
  std::string boot;            // of its machine
  std::int64_t offset_ns = 0;  // from its clock to the wall clock's
  std::vector<TraceEvent> events;
};

// Error(invalid_argument) if there is none.
std::vector<Timeline> read_timelines(const std::string& folder);
// From the first event on, in microseconds; processes are numbered from 1 on.
void put_on_one_clock(std::vector<Timeline>& timelines);
// From a publish to each pull of it, from a send to each recv, from a request to its answer.
std::vector<TraceEvent> arrows_between(const std::vector<Timeline>& timelines);

}  // namespace tensorbus::program
