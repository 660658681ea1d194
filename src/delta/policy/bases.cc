#include "delta/policy/bases.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/refuse.h"

namespace tensorbus::delta {

void Bases::hold(Reader reader, std::optional<std::int64_t> version) {
  readers_[reader] = {version, std::nullopt};
  if (version) pin(*version);
  drop_unpinned();
  make_room();
}

void Bases::expect(Reader reader, std::int64_t version) {
  readers_[reader].expects = version;
  pin(version);
  drop_unpinned();
  make_room();
}

void Bases::limit(std::size_t most_bytes) {
  most_bytes_ = most_bytes;
  make_room();
}

// Nothing has changed since the newest: it can become a base whenever somebody wants it.
void Bases::pin(std::int64_t version) {
  if (version != newest_ || since_.contains(version)) return;
  if (bytes_each() > most_bytes_) {
    ++dropped_for_room_;
    return;
  }
  since_.emplace(version, nothing());
}

void Bases::leave(Reader reader) {
  readers_.erase(reader);
  drop_unpinned();
}

void Bases::publish(std::int64_t version, const Changes& changes) {
  check_rises(version);
  for (auto& [base, since] : since_) merge(since, changes);
  begin(version);
}

void Bases::publish_uncompared(std::int64_t version) {
  check_rises(version);
  since_.clear();
  begin(version);
}

void Bases::check_rises(std::int64_t version) const {
  if (version > newest_) return;
  refuse("version " + std::to_string(version) + " was published after " + std::to_string(newest_));
}

void Bases::begin(std::int64_t version) {
  newest_ = version;
  if (wanted()) pin(version);
  drop_unpinned();
  make_room();
}

std::optional<Bases::Since> Bases::since(std::int64_t held) const {
  const auto after = since_.upper_bound(held);
  if (after == since_.begin()) return std::nullopt;
  const auto& [base, changes] = *std::prev(after);
  return Since{base, &changes};
}

std::size_t Bases::bytes_each() const {
  std::size_t bytes = 0;
  for (const std::int64_t elements : elements_) bytes += Bitmap::bytes_for(elements);
  return bytes;
}

Changes Bases::nothing() const { return {elements_.begin(), elements_.end()}; }

// The newest is what everybody pulls next.
bool Bases::is_pinned(std::int64_t base) const {
  return std::ranges::any_of(readers_, [&](const auto& reader) {
    const auto& [holds, expects] = reader.second;
    return base == newest_ || holds == base || expects == base;
  });
}

// Whoever holds a version that is no base, because there was no room, is served from an older one.
void Bases::drop_unpinned() {
  std::erase_if(since_, [&](const auto& entry) { return !is_pinned(entry.first); });
}

// Patches from the base with the most changes save least.
void Bases::make_room() {
  while (!since_.empty() && bytes() > most_bytes_) {
    since_.erase(std::ranges::max_element(since_, {},
                                          [](const auto& entry) { return count(entry.second); }));
    ++dropped_for_room_;
  }
}

}  // namespace tensorbus::delta
