// The lists of tensors that an agent has seen in the store. Each is read once, when a record that
// refers to it is first looked at.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "bus/directory/records.h"

namespace tensorbus::bus {

class TensorLists {
 public:
  void apply(const ListKey& key, const std::optional<std::string>& value);
  // Null: not all parts of the list are there. A list that somebody still holds is known without
  // its parts.
  TensorListPtr find(const TensorListId& id);
  // All parts of the list are in the store, and are what the id names.
  bool is_stored(const TensorListId& id);

 private:
  struct Stored {
    std::map<std::uint32_t, std::string> parts;
    // Looked at since a part has changed, by how many parts; null: the bytes are others than those
    // of the key.
    std::map<std::uint32_t, TensorListPtr> read{};
  };

  TensorListPtr read(const TensorListId& id);

  std::map<ListHash, Stored> stored_;
  std::map<ListHash, std::weak_ptr<const TensorList>> known_;
};

}  // namespace tensorbus::bus
