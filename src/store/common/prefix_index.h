// Values that concern only keys that begin in a certain way, by that beginning: a key finds its
// values at the price of its own length, whatever else there is.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace tensorbus::store {

template <typename Item>
class PrefixIndex {
 public:
  bool empty() const noexcept { return items_.empty(); }

  void add(std::string_view prefix, Item item) {
    const auto [place, fresh] = items_.try_emplace(std::string(prefix));
    if (fresh) ++lengths_[prefix.size()];
    place->second.insert(item);
  }

  void remove(std::string_view prefix, Item item) {
    const auto place = items_.find(prefix);
    place->second.erase(item);
    if (!place->second.empty()) return;
    items_.erase(place);
    const auto length = lengths_.find(prefix.size());
    if (--length->second == 0) lengths_.erase(length);
  }

  // All values whose prefix the key has.
  template <typename Visit>
  void visit(std::string_view key, Visit visit) const {
    for (const auto& [length, _] : lengths_) {
      if (length > key.size()) return;
      const auto place = items_.find(key.substr(0, length));
      if (place == items_.end()) continue;
      for (const Item& item : place->second) visit(item);
    }
  }

 private:
  std::map<std::string, std::set<Item>, std::less<>> items_;
  std::map<std::size_t, std::size_t> lengths_;  // of the prefixes there are: how many have it
};

}  // namespace tensorbus::store
