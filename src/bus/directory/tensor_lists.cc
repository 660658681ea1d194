#include "bus/directory/tensor_lists.h"

#include "base/log.h"

namespace tensorbus::bus {

void TensorLists::apply(const ListKey& key, const std::optional<std::string>& value) {
  Stored& stored = stored_[key.hash];
  if (value) {
    std::string& part = stored.parts[key.part];
    if (!part.empty() && part == *value) return;
    part = *value;
  } else {
    stored.parts.erase(key.part);
  }
  stored.read.clear();
  if (stored.parts.empty()) stored_.erase(key.hash);
  std::erase_if(known_, [](const auto& each) { return each.second.expired(); });
}

TensorListPtr TensorLists::find(const TensorListId& id) {
  if (const auto known = known_.find(id.hash); known != known_.end()) {
    if (auto list = known->second.lock()) return list;
  }
  TensorListPtr list = read(id);
  if (list != nullptr) known_[id.hash] = list;
  return list;
}

bool TensorLists::is_stored(const TensorListId& id) { return read(id) != nullptr; }

TensorListPtr TensorLists::read(const TensorListId& id) {
  const auto found = stored_.find(id.hash);
  if (found == stored_.end() || found->second.parts.size() < id.parts) return nullptr;
  Stored& stored = found->second;
  if (const auto read = stored.read.find(id.parts); read != stored.read.end()) return read->second;
  std::string bytes;
  for (std::uint32_t number = 0; number < id.parts; ++number) {
    const auto part = stored.parts.find(number);
    if (part == stored.parts.end()) return nullptr;
    bytes += part->second;
  }
  TensorListPtr& read = stored.read[id.parts];
  try {
    read = read_list(id.hash, bytes);
  } catch (const std::exception& error) {
    log::warn("bus: the list of tensors {} is ignored: {}", to_text(ListKey{id.hash, 0}),
              error.what());
  }
  return read;
}

}  // namespace tensorbus::bus
