#include "bus/directory/catalog.h"

#include <algorithm>
#include <functional>

#include "base/log.h"
#include "base/overloaded.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

template <typename Map, typename Key>
typename Map::mapped_type find_or_null(const Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : found->second;
}

}  // namespace

std::optional<RecordKey> Catalog::apply(const Changed& changed) {
  const std::optional<RecordKey> key = parse_key(changed.key);
  if (!key) return std::nullopt;
  const std::optional<std::string>& value = changed.value;
  const auto read = [&](auto decode) {
    using Decoded = decltype(decode(*value));
    if (!value) return std::shared_ptr<Decoded>();
    try {
      return std::make_shared<Decoded>(decode(*value));
    } catch (const std::exception& error) {
      log::warn("bus: the record {} is ignored: {}", changed.key, error.what());
      return std::shared_ptr<Decoded>();
    }
  };
  ++revision_;
  std::visit(Overloaded{
                 [&](const PairKey& pair) { put(pair, read(decode_pair_member)); },
                 [&](const BatchKey& batch) { put(batch, read(decode_batch_member)); },
                 [&](const GenerationKey& generation) {
                   if (value) {
                     generations_[generation] = {read(decode_generation), *value};
                   } else {
                     generations_.erase(generation);
                   }
                 },
                 [&](const VersionKey& version) {
                   if (const auto record = read(decode_version_record)) {
                     versions_[version.batch] = *record;
                   } else {
                     versions_.erase(version.batch);
                   }
                 },
                 [&](const ShelfKey& shelf) { put(shelf, read(decode_shelf_record)); },
                 [&](const ListKey& list) {
                   lists_.apply(list, value);
                   if (refers_to(list.hash)) lists_changed_ = revision_;
                 },
                 [](const OneOf<AgentKey, CallerKey> auto&) {},  // the fabric admits them
             },
             *key);
  return key;
}

void Catalog::put(const PairKey& key, std::shared_ptr<const PairMember> record) {
  pairs_changed_[key.end] = revision_;
  if (record != nullptr) {
    pairs_[key.end][key.rank] = std::move(record);
  } else if (const auto found = pairs_.find(key.end); found != pairs_.end()) {
    found->second.erase(key.rank);
    if (!found->second.empty()) return;
    pairs_.erase(found);
    pairs_changed_.erase(key.end);
  }
}

void Catalog::put(const BatchKey& key, std::shared_ptr<BatchMember> record) {
  remove(key);
  count_reference(nullptr, record.get());
  if (record == nullptr) return;
  Batch& batch = batches_[key.batch];
  for (const End& end : record->ends) {
    batch.by_end[end][{key.rank, key.side}] = record;
    batch.changed[end] = revision_;
  }
  if (!record->failed.empty()) ++batch.failed;
  batch.all[{key.rank, key.side}] = std::move(record);
}

void Catalog::remove(const BatchKey& key) {
  const auto found = batches_.find(key.batch);
  if (found == batches_.end()) return;
  Batch& batch = found->second;
  const auto record = find_or_null(batch.all, std::pair(key.rank, key.side));
  if (record == nullptr) return;
  count_reference(record.get(), nullptr);
  for (const End& end : record->ends) {
    batch.by_end[end].erase({key.rank, key.side});
    batch.changed[end] = revision_;
  }
  if (!record->failed.empty()) --batch.failed;
  batch.all.erase({key.rank, key.side});
  if (batch.all.empty()) batches_.erase(found);
}

void Catalog::put(const ShelfKey& key, const std::shared_ptr<ShelfRecord>& record) {
  shelves_changed_ = revision_;
  const auto before = shelves_.find(key.batch);
  count_reference(before == shelves_.end() ? nullptr : before->second.member.get(),
                  record == nullptr ? nullptr : &record->member);
  if (before != shelves_.end()) shelves_.erase(before);
  if (record == nullptr) return;
  shelves_[key.batch] = {record->generation, {record, &record->place}, {record, &record->member}};
}

void Catalog::count_reference(const BatchMember* before, const BatchMember* after) {
  if (after != nullptr && after->tensors.id.parts > 0) ++references_[after->tensors.id.hash];
  if (before == nullptr || before->tensors.id.parts == 0) return;
  const auto found = references_.find(before->tensors.id.hash);
  if (--found->second == 0) references_.erase(found);
}

std::shared_ptr<BatchMember> Catalog::complete(const std::shared_ptr<BatchMember>& member) const {
  if (member == nullptr || member->tensors.known()) return member;
  const TensorListPtr list = lists_.find(member->tensors.id);
  // A list that does not fit is as good as none.
  if (list != nullptr && list->ends() <= member->ends.size() &&
      list->layouts() <= member->layouts.size()) {
    member->tensors.list = list;
  }
  return member;
}

const Catalog::PairMembers& Catalog::members(const End& end) const {
  static const PairMembers none;
  const auto found = pairs_.find(end);
  return found == pairs_.end() ? none : found->second;
}

std::shared_ptr<const PairMember> Catalog::member(const PairKey& key) const {
  return find_or_null(members(key.end), key.rank);
}

const Catalog::BatchMembers& Catalog::registered(const std::string& batch, const End& end) const {
  static const BatchMembers none;
  const auto found = batches_.find(batch);
  if (found == batches_.end()) return none;
  const auto covering = found->second.by_end.find(end);
  return covering == found->second.by_end.end() ? none : covering->second;
}

std::shared_ptr<const BatchMember> Catalog::registration(const std::string& batch, const End& end,
                                                         Rank rank) const {
  const BatchMembers& members = registered(batch, end);
  const auto found = members.lower_bound({rank, ""});
  if (found == members.end() || found->first.first != rank) return nullptr;
  return complete(found->second);
}

std::shared_ptr<const BatchMember> Catalog::registration(const BatchKey& key) const {
  const auto members = batches_.find(key.batch);
  if (members == batches_.end()) return nullptr;
  return complete(find_or_null(members->second.all, std::pair(key.rank, key.side)));
}

template <typename Matches>
const BatchMember* Catalog::find_any(const std::string& batch, Rank rank, Matches matches) const {
  const auto members = batches_.find(batch);
  if (members == batches_.end()) return nullptr;
  const BatchMembers& all = members->second.all;
  for (auto each = all.lower_bound({rank, ""}); each != all.end() && each->first.first == rank;
       ++each) {
    if (each->second->failed.empty() && matches(*each->second)) return each->second.get();
  }
  return nullptr;
}

const BatchMember* Catalog::find(const std::string& batch, Rank rank, const Sender& sender) const {
  return find_any(batch, rank, [&](const BatchMember& member) {
    return Sender{member.incarnation, member.registration} == sender;
  });
}

bool Catalog::has(const std::string& batch, Rank rank, const Sender& sender) const {
  return find(batch, rank, sender) != nullptr;
}

bool Catalog::has(const std::string& batch, Rank rank, std::uint64_t registration) const {
  const auto is_it = [&](const BatchMember& member) { return member.registration == registration; };
  return find_any(batch, rank, is_it) != nullptr;
}

bool Catalog::has_failed(const std::string& batch) const {
  const auto members = batches_.find(batch);
  return members != batches_.end() && members->second.failed > 0;
}

Catalog::Revision Catalog::revision(const std::string& batch, const End& end) const {
  Revision revision{lists_changed_, 0, 0};
  if (const auto pair = pairs_changed_.find(end); pair != pairs_changed_.end()) {
    revision[1] = pair->second;
  }
  const auto members = batches_.find(batch);
  if (members == batches_.end()) return revision;
  const auto changed = members->second.changed.find(end);
  if (changed != members->second.changed.end()) revision[2] = changed->second;
  return revision;
}

std::optional<Rank> Catalog::first_shelf_with(const std::string& batch, std::int64_t generation,
                                              const TensorListId& list) const {
  std::optional<Rank> first;
  for (auto each = shelves_.lower_bound({batch, "", 0});
       each != shelves_.end() && each->first.batch == batch; ++each) {
    const auto& [key, shelf] = *each;
    if (shelf.generation != generation || shelf.member->tensors.id != list) continue;
    first = std::min(first.value_or(key.rank), key.rank);
  }
  return first;
}

template <typename Wanted>
RegistrationIds Catalog::registrations(const std::string& batch, Wanted wanted) const {
  RegistrationIds found;
  const auto members = batches_.find(batch);
  if (members == batches_.end()) return found;
  for (const auto& [key, member] : members->second.all) {
    if (wanted(key.first, *member)) found.insert({key.first, member->registration});
  }
  return found;
}

RegistrationIds Catalog::failed(const std::string& batch) const {
  if (!has_failed(batch)) return {};
  return registrations(batch,
                       [](Rank, const BatchMember& member) { return !member.failed.empty(); });
}

RegistrationIds Catalog::refused(const std::string& batch) const {
  return registrations(batch, [](Rank, const BatchMember& member) { return member.refused; });
}

RegistrationIds Catalog::outlived(const std::string& batch, Rank rank,
                                  std::uint64_t registration) const {
  if (!has_failed(batch)) return {};
  return registrations(batch, [&](Rank whose, const BatchMember& member) {
    if (member.failed.empty() || member.unfit.contains(registration)) return false;
    const auto is_of_rank = [&](const auto& entry) { return entry.second == rank; };
    return (whose == rank && member.registration != registration) ||
           std::ranges::any_of(member.unfit, is_of_rank);
  });
}

std::shared_ptr<const Generation> Catalog::generation(const GenerationKey& key) const {
  const auto found = generations_.find(key);
  return found == generations_.end() ? nullptr : found->second.generation;
}

Versions Catalog::versions(const std::string& batch) const {
  Versions versions;
  if (const auto members = batches_.find(batch); members != batches_.end()) {
    for (const auto& [key, member] : members->second.all) {
      if (member->versioned) versions[key.second][key.first] = member->versioned->last;
    }
  }
  for (auto each = versions_.lower_bound({batch, "", 0});
       each != versions_.end() && each->first.batch == batch; ++each) {
    // The version record of an earlier registration says nothing of this one.
    const auto member = registration(each->first);
    if (member == nullptr || member->registration != each->second.registration) continue;
    versions[each->first.side][each->first.rank] = each->second.version;
  }
  return versions;
}

std::vector<std::int64_t> Catalog::shelved_generations(const std::string& batch) const {
  std::set<std::int64_t, std::greater<>> generations;
  for (auto each = shelves_.lower_bound({batch, "", 0});
       each != shelves_.end() && each->first.batch == batch; ++each) {
    generations.insert(each->second.generation);
  }
  return {generations.begin(), generations.end()};
}

Catalog Catalog::shelved(const std::string& batch, std::int64_t generation) const {
  Catalog catalog;
  for (auto each = shelves_.lower_bound({batch, "", 0});
       each != shelves_.end() && each->first.batch == batch; ++each) {
    const auto& [key, shelf] = *each;
    if (shelf.generation != generation) continue;
    for (const End& end : shelf.member->ends) catalog.put(PairKey{end, key.rank}, shelf.place);
    catalog.put(key, complete(shelf.member));
  }
  return catalog;
}

std::set<std::string> Catalog::batches_at(const End& end) const {
  std::set<std::string> names;
  for (const auto& [name, batch] : batches_) {
    if (!registered(name, end).empty()) names.insert(name);
  }
  for (const auto& [key, shelf] : shelves_) {
    if (std::ranges::find(shelf.member->ends, end) != shelf.member->ends.end()) {
      names.insert(key.batch);
    }
  }
  return names;
}

std::set<std::string> Catalog::published() const {
  std::set<std::string> names;
  for (const auto& [key, shelf] : shelves_) names.insert(key.batch);
  return names;
}

std::vector<Content> Catalog::contents(const std::string& batch) const {
  for (const std::int64_t generation : shelved_generations(batch)) {
    std::map<std::string, Content> found;
    std::int64_t missing = 1;  // of the side's ranks, if there were none
    std::int64_t there = 0;
    for (auto each = shelves_.lower_bound({batch, "", 0});
         each != shelves_.end() && each->first.batch == batch; ++each) {
      const Shelved& shelf = each->second;
      if (shelf.generation != generation || !complete(shelf.member)->tensors.known()) continue;
      missing = shelf.place->world_size - ++there;
      for (const TensorRecord& tensor : shelf.member->tensors) {
        const Shape& whole = tensor.global_shape ? *tensor.global_shape : tensor.shape;
        found.try_emplace(tensor.name, Content{tensor.name, tensor.dtype, whole});
      }
    }
    if (missing > 0) continue;
    std::vector<Content> contents;
    for (auto& [name, content] : found) contents.push_back(std::move(content));
    return contents;
  }
  return {};
}

std::optional<std::string> Catalog::raw_generation(const GenerationKey& key) const {
  const auto found = generations_.find(key);
  if (found == generations_.end()) return std::nullopt;
  return found->second.bytes;
}

}  // namespace tensorbus::bus
