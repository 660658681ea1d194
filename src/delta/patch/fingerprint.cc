#include "delta/patch/fingerprint.h"

#include <xxhash.h>

#include <vector>

namespace tensorbus::delta {
namespace {

void append(std::vector<std::int64_t>& numbers, const Shape& shape) {
  numbers.push_back(std::ssize(shape));
  numbers.insert(numbers.end(), shape.begin(), shape.end());
}

void append(std::vector<std::int64_t>& numbers, const plan::Part& part) {
  numbers.push_back(static_cast<std::int64_t>(part.source_tensor));
  numbers.push_back(static_cast<std::int64_t>(part.target_tensor));
  for (const Dtype dtype : {part.types.source, part.wire, part.types.target}) {
    numbers.push_back(static_cast<std::int64_t>(dtype));
  }
  append(numbers, part.source_shape);
  append(numbers, part.target_shape);
  for (const plan::Spans& spans : part.dims) {
    numbers.push_back(std::ssize(spans));
    for (const plan::Span& span : spans) {
      numbers.insert(numbers.end(), {span.source, span.target, span.length});
    }
  }
}

}  // namespace

std::uint64_t fingerprint_of(const plan::Stream& stream) {
  std::uint64_t hash = 0;
  std::vector<std::int64_t> numbers;
  for (const plan::Part& part : stream.parts) {
    numbers.clear();
    append(numbers, part);
    hash = XXH3_64bits_withSeed(numbers.data(), numbers.size() * sizeof(std::int64_t), hash);
  }
  return hash;
}

}  // namespace tensorbus::delta
