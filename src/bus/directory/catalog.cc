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
    using Record = decltype(decode(*value));
    if (!value) return std::shared_ptr<const Record>();
    try {
      return std::make_shared<const Record>(decode(*value));
    } catch (const std::exception& error) {
      log::warn("bus: the record {} is ignored: {}", changed.key, error.what());
      return std::shared_ptr<const Record>();
    }
  };
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
                 [&](const ShelfKey& shelf) {
                   shelves_.erase(shelf.batch);
                   const auto record = read(decode_shelf_record);
                   if (record == nullptr) return;
                   shelves_[shelf.batch] = {
                       record->generation, {record, &record->place}, {record, &record->member}};
                 },
                 [](const OneOf<AgentKey, CallerKey> auto&) {},  // the fabric admits them
             },
             *key);
  return key;
}

void Catalog::put(const PairKey& key, std::shared_ptr<const PairMember> record) {
  if (record != nullptr) {
    pairs_[key.end][key.rank] = std::move(record);
  } else if (const auto found = pairs_.find(key.end); found != pairs_.end()) {
    found->second.erase(key.rank);
    if (found->second.empty()) pairs_.erase(found);
  }
}

void Catalog::put(const BatchKey& key, std::shared_ptr<const BatchMember> record) {
  if (record != nullptr) {
    batches_[key.batch][{key.rank, key.side}] = std::move(record);
  } else if (const auto found = batches_.find(key.batch); found != batches_.end()) {
    found->second.erase({key.rank, key.side});
    if (found->second.empty()) batches_.erase(found);
  }
}

const Catalog::PairMembers& Catalog::members(const End& end) const {
  static const PairMembers none;
  const auto found = pairs_.find(end);
  return found == pairs_.end() ? none : found->second;
}

std::shared_ptr<const PairMember> Catalog::member(const PairKey& key) const {
  return find_or_null(members(key.end), key.rank);
}

std::shared_ptr<const BatchMember> Catalog::registration(const std::string& batch, const End& end,
                                                         Rank rank) const {
  const auto members = batches_.find(batch);
  if (members == batches_.end()) return nullptr;
  for (auto each = members->second.lower_bound({rank, ""});
       each != members->second.end() && each->first.first == rank; ++each) {
    for (const End& covered : each->second->ends) {
      if (covered == end) return each->second;
    }
  }
  return nullptr;
}

std::shared_ptr<const BatchMember> Catalog::registration(const BatchKey& key) const {
  const auto members = batches_.find(key.batch);
  if (members == batches_.end()) return nullptr;
  return find_or_null(members->second, std::pair(key.rank, key.side));
}

template <typename Wanted>
RegistrationIds Catalog::registrations(const std::string& batch, Wanted wanted) const {
  RegistrationIds found;
  const auto members = batches_.find(batch);
  if (members == batches_.end()) return found;
  for (const auto& [key, member] : members->second) {
    if (wanted(key.first, *member)) found.insert({key.first, member->registration});
  }
  return found;
}

RegistrationIds Catalog::failed(const std::string& batch) const {
  return registrations(batch,
                       [](Rank, const BatchMember& member) { return !member.failed.empty(); });
}

RegistrationIds Catalog::refused(const std::string& batch) const {
  return registrations(batch, [](Rank, const BatchMember& member) { return member.refused; });
}

RegistrationIds Catalog::outlived(const std::string& batch, Rank rank,
                                  std::uint64_t registration) const {
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
    for (const auto& [key, member] : members->second) {
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
    catalog.put(key, shelf.member);
  }
  return catalog;
}

std::vector<Content> Catalog::contents(const std::string& batch) const {
  for (const std::int64_t generation : shelved_generations(batch)) {
    std::map<std::string, Content> found;
    std::int64_t missing = 1;  // of the side's ranks, if there were none
    std::int64_t there = 0;
    for (auto each = shelves_.lower_bound({batch, "", 0});
         each != shelves_.end() && each->first.batch == batch; ++each) {
      const Shelved& shelf = each->second;
      if (shelf.generation != generation) continue;
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
