#include "bus/agent/list_keeper.h"

#include <algorithm>
#include <iterator>

namespace tensorbus::bus {

void ListKeeper::note_change(const ListKey& key, bool is_there) {
  const auto written = written_.find(key.hash);
  if (written == written_.end()) return;
  if (is_there) written->second.erase(key.part);
  if (!is_there || written->second.empty()) written_.erase(written);
}

void ListKeeper::step(const std::vector<Use>& uses) {
  for (const Use& use : uses) {
    const SharedTensors& tensors = use.member.tensors;
    if (tensors.id.parts == 0 || context_.catalog.is_stored(tensors.id)) continue;
    if (!written_.contains(tensors.id.hash) && is_due(use)) write(tensors);
  }
  if (!leased_.empty()) withdraw_unused(uses);
}

// The first rank of a side writes its list at once. Others wait until their side is complete, as
// nobody needs the list before: then all ranks see which of them is the lowest that refers to the
// list.
bool ListKeeper::is_due(const Use& use) const {
  const Catalog& catalog = context_.catalog;
  const TensorListId& list = use.member.tensors.id;
  if (use.shelf) {
    return catalog.first_shelf_with(use.key.batch, *use.shelf, list) == context_.rank;
  }
  return std::ranges::any_of(use.member.ends, [&](const End& end) {
    const auto& side = catalog.members(end);
    if (side.empty()) return false;
    if (side.begin()->first == context_.rank) return true;
    const auto& registered = catalog.registered(use.key.batch, end);
    if (std::ssize(registered) < side.begin()->second->world_size) return false;
    const auto first = std::ranges::find_if(registered, [&](const auto& each) {
      return each.second->failed.empty() && each.second->tensors.id == list;
    });
    return first != registered.end() && first->first.first == context_.rank;
  });
}

void ListKeeper::write(const SharedTensors& tensors) {
  WrittenList written = write_list(tensors.all());
  ListKey key{written.id.hash, 0};
  for (std::string& part : written.parts) {
    context_.directory.publish(to_text(key), std::move(part));
    written_[key.hash].insert(key.part++);
  }
  leased_[written.id.hash] = written.id.parts;
}

void ListKeeper::withdraw_unused(const std::vector<Use>& uses) {
  std::erase_if(leased_, [&](const auto& each) {
    const ListHash& hash = each.first;
    const auto is_of = [&](const Use& use) { return use.member.tensors.id.hash == hash; };
    if (context_.catalog.refers_to(hash) || std::ranges::any_of(uses, is_of)) return false;
    for (std::uint32_t part = 0; part < each.second; ++part) {
      context_.directory.withdraw(to_text(ListKey{hash, part}));
    }
    written_.erase(hash);
    return true;
  });
}

}  // namespace tensorbus::bus
