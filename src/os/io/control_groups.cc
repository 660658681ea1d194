#include "os/io/control_groups.h"

namespace tensorbus::os {

void for_each_group(
    std::istream& membership, const std::string& root, const std::string& controller,
    const std::function<void(const std::string& folder, GroupVersion version)>& visit) {
  const auto climb = [&](const std::string& mount, std::string group, GroupVersion version) {
    while (true) {
      visit(mount + group, version);
      if (group.empty()) return;
      group.erase(group.rfind('/'));
    }
  };
  // "0::/group" of version 2, "4:memory:/group" of version 1.
  for (std::string line; std::getline(membership, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(":/", first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers == ",,") {
      climb(root, group, GroupVersion::two);
    } else if (controllers.find("," + controller + ",") != std::string::npos) {
      climb(root + "/" + controller, group, GroupVersion::one);
    }
  }
}

}  // namespace tensorbus::os
