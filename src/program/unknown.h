// Words of a command line that the program does not know.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tensorbus::program {

// What to say about the first command or option that is none, with the one that was probably meant.
// `words` are without the program's name.
std::optional<std::string> unknown_word(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace tensorbus::program
