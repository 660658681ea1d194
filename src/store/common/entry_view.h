// A key and its value where they lie.
#pragma once

#include <string_view>

namespace tensorbus::store {

struct EntryView {
  std::string_view key;
  std::string_view value;
};

}  // namespace tensorbus::store
