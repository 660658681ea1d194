// Requests that come again and again: how they are told apart, and which of them the servers know.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "push_pull/job/wire.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::push_pull {

// All that tells one request from another: keys, and of each tensor where it lies and its form. Of
// what lies in the memory nothing is remembered, so a tensor that was freed and one that was made
// in its place, of the same form, are the same.
class Likeness {
 public:
  // Many tensors take longer to compare than is saved.
  static bool is_worth_it(std::span<const Item> pushes, std::span<const Item> pulls) noexcept {
    return pushes.size() + pulls.size() <= 16;
  }

  void take(std::span<const Item> pushes, std::span<const Item> pulls) {
    words_.resize(1 + words_for(pushes) + words_for(pulls));
    std::uint64_t* at = words_.data();
    *at++ = pushes.size();
    for (const Item& item : pushes) at = put(at, item);
    for (const Item& item : pulls) at = put(at, item);
    hash_ = 0;
    for (const std::uint64_t word : words_) {
      hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15;
      hash_ ^= hash_ >> 32;
    }
  }
  std::uint64_t hash() const noexcept { return hash_; }
  friend bool operator==(const Likeness&, const Likeness&) = default;

 private:
  static std::size_t words_for(std::span<const Item> items) noexcept {
    std::size_t words = 0;
    for (const Item& item : items) {
      words += 3 + item.tensor.shape.size() + item.tensor.strides.size();
    }
    return words;
  }
  static std::uint64_t* put(std::uint64_t* at, const Item& item) noexcept {
    const TensorView& tensor = item.tensor;
    *at++ = static_cast<std::uint64_t>(item.key);
    *at++ = reinterpret_cast<std::uintptr_t>(tensor.data);
    *at++ = tensor.shape.size() << 16 | (tensor.elsewhere ? 512U : 0U) |
            (tensor.read_only ? 256U : 0U) | static_cast<std::uint64_t>(tensor.dtype);
    for (const std::int64_t extent : tensor.shape) *at++ = static_cast<std::uint64_t>(extent);
    for (const std::int64_t stride : tensor.strides) *at++ = static_cast<std::uint64_t>(stride);
    return at;
  }

  std::uint64_t hash_ = 0;
  std::vector<std::uint64_t> words_;
};

// A request that the servers know, for the caller that sends it again: the number of the request,
// and since when the request has that number.
struct Standing {
  std::uint64_t number = 0;  // 0: they do not know it
  std::uint64_t since = 0;
};

// The requests that the servers know, each with a number from 1 to wire::most_standing. There are a
// few places for every remainder of the hash: a look for a request that is not there is soon over.
template <typename Kept>
class Recurring {
 public:
  static constexpr int often = 8;

  struct KnownRequest {
    Likeness likeness;
    Kept* request = nullptr;
    std::uint64_t used = 0;  // when last
    std::uint64_t since = 0;
  };

  // Without a comparison, if the request still has the number.
  Kept* find(const Standing& standing) noexcept {
    if (standing.number == 0) return nullptr;
    KnownRequest& known = places_[standing.number - 1];
    if (known.request == nullptr || known.since != standing.since) return nullptr;
    known.used = ++now_;
    return known.request;
  }
  Kept* find(const Likeness& likeness) noexcept {
    for (KnownRequest& known : places_of(likeness)) {
      if (known.request == nullptr || known.likeness != likeness) continue;
      known.used = ++now_;
      return known.request;
    }
    return nullptr;
  }
  // Whether the request has come often enough to be worth a place, as far as that is remembered.
  bool comes_often(const Likeness& likeness) noexcept {
    Sighting& sighting = seen_[likeness.hash() % seen_.size()];
    if (sighting.hash != likeness.hash()) sighting = {likeness.hash(), 0};
    return ++sighting.times >= often;
  }
  // Where the request may be put: a free place, or the one that was not used for the longest time
  // among requests that `may_go`. Null if there is none.
  template <typename MayGo>
  KnownRequest* place_for(const Likeness& likeness, MayGo may_go) noexcept {
    KnownRequest* best = nullptr;
    for (KnownRequest& known : places_of(likeness)) {
      if (known.request == nullptr) return &known;
      if (may_go(*known.request) && (best == nullptr || known.used < best->used)) best = &known;
    }
    return best;
  }
  // Nobody else has the place.
  void put(KnownRequest& place, const Likeness& likeness, Kept& request) {
    ++now_;
    place = {likeness, &request, now_, now_};
    ++size_;
  }
  void remove(std::uint64_t number) noexcept {
    places_[number - 1].request = nullptr;
    --size_;
  }
  std::uint64_t number_of(const KnownRequest& place) const noexcept {
    return static_cast<std::uint64_t>(&place - places_.data()) + 1;
  }
  Standing standing(std::uint64_t number) const noexcept {
    return {number, places_[number - 1].since};
  }
  std::size_t size() const noexcept { return size_; }

 private:
  static constexpr std::size_t alike = 8;  // places

  struct Sighting {
    std::uint64_t hash = 0;
    int times = 0;
  };

  std::span<KnownRequest> places_of(const Likeness& likeness) noexcept {
    const std::size_t group = likeness.hash() % (places_.size() / alike);
    return std::span(places_).subspan(group * alike, alike);
  }

  std::vector<KnownRequest> places_ = std::vector<KnownRequest>(wire::most_standing);
  std::array<Sighting, wire::most_standing> seen_{};
  std::uint64_t now_ = 0;
  std::size_t size_ = 0;
};

}  // namespace tensorbus::push_pull
