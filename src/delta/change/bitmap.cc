#include "delta/change/bitmap.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/refuse.h"

namespace tensorbus::delta {

std::int64_t Bitmap::words_for(std::int64_t elements) {
  if (elements < 0) refuse("a bitmap of " + std::to_string(elements) + " elements");
  return elements / word_bits + (elements % word_bits != 0 ? 1 : 0);
}

Bitmap::Bitmap(std::int64_t elements)
    : size_(elements), words_(static_cast<std::size_t>(words_for(elements) + 1)) {}

std::size_t Bitmap::bytes_for(std::int64_t elements) {
  return static_cast<std::size_t>(words_for(elements) + 1) * sizeof(std::uint64_t);
}

std::int64_t Bitmap::count() const noexcept {
  std::int64_t sum = 0;
  for (const std::uint64_t word : words_) sum += std::popcount(word);
  return sum;
}

bool Bitmap::test(std::int64_t element) const noexcept { return (bits_from(element) & 1) != 0; }

void Bitmap::set(std::int64_t element) noexcept {
  words_[static_cast<std::size_t>(element / word_bits)] |= std::uint64_t{1} << element % word_bits;
}

void Bitmap::clear() noexcept { std::ranges::fill(words_, 0); }

Bitmap& Bitmap::operator|=(const Bitmap& other) {
  if (size_ != other.size_) {
    refuse("a bitmap of " + std::to_string(size_) + " elements was given one of " +
           std::to_string(other.size_));
  }
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  return *this;
}

void merge(Changes& into, const Changes& more) {
  if (into.size() != more.size()) {
    refuse("changes of " + std::to_string(into.size()) + " tensors were given those of " +
           std::to_string(more.size()));
  }
  for (std::size_t i = 0; i < into.size(); ++i) into[i] |= more[i];
}

namespace {

std::int64_t count_words(std::span<const std::uint64_t> words) noexcept {
  std::int64_t sum = 0;
  for (const std::uint64_t word : words) sum += std::popcount(word);
  return sum;
}

}  // namespace

std::int64_t estimated_count(const Changes& changes) noexcept {
  constexpr std::size_t stretch = 64;  // words, 4,096 elements
  constexpr std::size_t one_in = 16;
  constexpr std::size_t small = std::size_t{1} << 14;
  std::int64_t sum = 0;
  for (const Bitmap& bitmap : changes) {
    const auto words = bitmap.words();
    if (words.size() <= small) {
      sum += count_words(words);
      continue;
    }
    std::int64_t seen = 0;
    std::size_t looked_at = 0;
    for (std::size_t at = 0; at + stretch <= words.size(); at += one_in * stretch) {
      seen += count_words(words.subspan(at, stretch));
      looked_at += stretch;
    }
    const double all = static_cast<double>(words.size()) / static_cast<double>(looked_at);
    sum += static_cast<std::int64_t>(static_cast<double>(seen) * all);
  }
  return sum;
}

std::int64_t count(const Changes& changes) noexcept {
  std::int64_t sum = 0;
  for (const Bitmap& bitmap : changes) sum += bitmap.count();
  return sum;
}

}  // namespace tensorbus::delta
