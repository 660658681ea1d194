#include "delta/patch/patch.h"

#include <xxhash.h>

namespace tensorbus::delta {

PatchPlaces places_of(const PatchPartHeader& header) noexcept {
  PatchPlaces places;
  places.entries = places.presence + presence_bytes(static_cast<std::int64_t>(header.elements));
  places.indices = rounded_up(places.entries + header.blocks * sizeof(std::uint16_t), 8);
  places.values = rounded_up(places.indices + header.index_bytes, values_alignment);
  places.end = rounded_up(places.values + header.values * header.item_bytes, values_alignment);
  return places;
}

std::uint64_t checksum_of(std::span<const std::byte> patch) noexcept {
  const std::uint64_t header = XXH3_64bits(patch.data(), offsetof(PatchHeader, checksum));
  const std::span<const std::byte> rest = patch.subspan(sizeof(PatchHeader));
  return XXH3_64bits_withSeed(rest.data(), rest.size(), header);
}

}  // namespace tensorbus::delta
