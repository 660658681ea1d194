#include "bus/simulation/halt.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>

namespace tensorbus::bus {

std::function<void(Step)> halt_where_told(std::string path) {
  return [path = std::move(path)](Step step) {
    std::string name;
    if (!std::getline(std::ifstream(path), name) || name != to_string(step)) return;
    if (::unlink(path.c_str()) == 0) ::raise(SIGSTOP);
  };
}

}  // namespace tensorbus::bus
