// The files of an agent for people.
#pragma once

#include <string>

namespace tensorbus::bus {

// Every entry of a state or command queue as lines of names and values; also while its agent runs.
// Error(failed) if the file is no such file of ours.
std::string dump_agent_file(const std::string& path);

}  // namespace tensorbus::bus
