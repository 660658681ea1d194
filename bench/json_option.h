// The one option that benchmark programs have.
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace tensorbus::bench {

// The file of `--json FILE`, or nothing. Ends the program if it was called in another way.
inline std::string json_option(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--json") return argv[2];
  if (argc == 1) return {};
  fmt::print(stderr, "usage: {} [--json FILE]\n", argv[0]);
  std::exit(2);
}

}  // namespace tensorbus::bench
