// Which elements of a tensor may differ from those of an earlier version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tensorbus::delta {

// A bit for every element, in the order in which a dense tensor has them in memory. Bits beyond the
// last element are 0.
class Bitmap {
 public:
  static constexpr std::int64_t word_bits = 64;

  explicit Bitmap(std::int64_t elements = 0);

  std::int64_t size() const noexcept { return size_; }
  std::int64_t count() const noexcept;
  bool test(std::int64_t element) const noexcept;
  void set(std::int64_t element) noexcept;
  void clear() noexcept;

  // Adds what has changed in another version. Error if that bitmap is of another size.
  Bitmap& operator|=(const Bitmap& other);

  // The bits of 64 elements from `first` on, which is below the size.
  std::uint64_t bits_from(std::int64_t first) const noexcept {
    const std::uint64_t* word = words_.data() + first / word_bits;
    const int shift = static_cast<int>(first % word_bits);
    return shift == 0 ? word[0] : word[0] >> shift | word[1] << (word_bits - shift);
  }

  // Whoever writes the words leaves the bits beyond the last element 0.
  std::span<std::uint64_t> words() noexcept { return {words_.data(), words_.size() - 1}; }
  std::span<const std::uint64_t> words() const noexcept {
    return {words_.data(), words_.size() - 1};
  }
  // How many words there are for so many elements.
  static std::int64_t words_for(std::int64_t elements);
  // The bytes of a bitmap for so many elements.
  static std::size_t bytes_for(std::int64_t elements);

  friend bool operator==(const Bitmap&, const Bitmap&) = default;

 private:
  std::int64_t size_;
  std::vector<std::uint64_t> words_;  // and one more, so that bits_from needs not ask
};

// Of all tensors of a rank, in their order.
using Changes = std::vector<Bitmap>;

// What has changed since the base of `into`, after a version that changed `more`. Error if the two
// are not of the same tensors.
void merge(Changes& into, const Changes& more);

std::int64_t count(const Changes& changes) noexcept;
// About how many, from looking at a sixteenth; exactly, of small tensors.
std::int64_t estimated_count(const Changes& changes) noexcept;

}  // namespace tensorbus::delta
