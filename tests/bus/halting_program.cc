// The tensorbus program whose agents stop themselves where a file says: --halt-file=PATH, the last
// argument.
#include <iostream>
#include <string_view>

#include "bus/simulation/halt.h"
#include "program/run.h"

int main(int argc, char** argv) {
  constexpr std::string_view option = "--halt-file=";
  const std::string_view last = argv[argc - 1];
  if (!last.starts_with(option)) {
    std::cerr << "usage: halting_program ARGUMENTS OF tensorbus... --halt-file=PATH\n";
    return 2;
  }
  return tensorbus::program::run_program(
      argc - 1, argv, tensorbus::bus::halt_where_told(std::string(last.substr(option.size()))));
}
