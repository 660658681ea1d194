#include "bus/registration/reader_groups.h"

#include <fmt/format.h>

#include <utility>

namespace tensorbus::bus {

Serving& ReaderGroups::serving(const GroupPtr& sources, const GroupPtr& targets) {
  std::unique_ptr<Serving>& known = servings_[targets->name];
  if (known == nullptr || !known->is_between(sources, targets)) {
    known = std::make_unique<Serving>(sources, targets, rank_);
  }
  return *known;
}

std::optional<ReaderGroups::Served> ReaderGroups::serve(const Catalog& catalog,
                                                        const GroupPtr& sources,
                                                        const Subscribe& wish,
                                                        const KnownFailures& known,
                                                        const GroupPtr& expected) {
  const BatchKey key{wish.batch, wish.side, wish.reader};
  const auto reader = catalog.registration(key);
  if (reader == nullptr || reader->registration != wish.registration) return std::nullopt;
  const GroupPtr group = group_of(catalog, key, *reader, known, expected);
  if (group == nullptr) return std::nullopt;
  Serving& all = serving(sources, group);
  if (const Status status = may_send(*sources, *group); !status.ok()) throw Error(status);
  if (all.fingerprint(wish.reader) != wish.fingerprint) return std::nullopt;
  Served served{reader, all.to(wish.reader)};
  if (served.streams.size() != wish.streams.size()) {
    throw Error(Code::failed,
                fmt::format("rank {} reads {} streams from rank {}, not {}", wish.reader,
                            served.streams.size(), rank_, wish.streams.size()));
  }
  for (plan::Stream& stream : served.streams) stream.chunk_bytes = reader->chunk_bytes;
  return served;
}

GroupPtr ReaderGroups::group_of(const Catalog& catalog, const BatchKey& key,
                                const BatchMember& reader, const KnownFailures& known,
                                const GroupPtr& expected) {
  Known& here = groups_[reader.ends];
  if (GroupPtr found = here.search.find(catalog, key.batch, reader.ends, known).group) {
    take_group(found, expected);
    if (found != expected) here.last = found;
    return found;
  }
  // Other readers of the same side may have done their part and left; this reader made its plan
  // when the others were there.
  for (const GroupPtr& group : {expected, here.last}) {
    if (group == nullptr) continue;
    const auto then = group->members.find(key.rank);
    if (then != group->members.end() && *then->second == reader) return group;
  }
  return nullptr;
}

}  // namespace tensorbus::bus
