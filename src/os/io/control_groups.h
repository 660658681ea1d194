// The control groups that limit this process, in both versions of control groups.
#pragma once

#include <functional>
#include <istream>
#include <string>

namespace tensorbus::os {

enum class GroupVersion { one, two };

// Visits the folders of a process' groups, and of all groups above them: every one may have a limit
// of its own. `membership` is what /proc/self/cgroup says, `root` where groups are mounted,
// `controller` what is limited ("memory").
void for_each_group(
    std::istream& membership, const std::string& root, const std::string& controller,
    const std::function<void(const std::string& folder, GroupVersion version)>& visit);

}  // namespace tensorbus::os
