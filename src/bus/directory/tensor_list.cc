#include "bus/directory/tensor_list.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/refuse.h"
#include "bus/directory/record_fields.h"

namespace tensorbus::bus {
namespace {

// etcd takes no more than 1.5 MB.
constexpr std::size_t most_of_a_part = 1'000'000;

ListHash hash_of(const std::string& bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  ListHash hash;
  static_assert(sizeof canonical.digest == sizeof hash);
  std::memcpy(hash.data(), canonical.digest, hash.size());
  return hash;
}

}  // namespace

TensorList::TensorList(std::vector<TensorRecord> tensors) : all_(std::move(tensors)) {
  for (std::size_t at = 0; at < all_.size(); ++at) {
    by_end_[all_[at].end].push_back(at);
    ends_ = std::max(ends_, all_[at].end + 1);
    if (all_[at].layout) layouts_ = std::max(layouts_, *all_[at].layout + 1);
  }
  const auto name = [&](std::size_t at) -> const std::string& { return all_[at].name; };
  for (auto& [end, positions] : by_end_) std::ranges::stable_sort(positions, {}, name);
}

const std::vector<std::size_t>& TensorList::of_end(std::size_t end) const {
  static const std::vector<std::size_t> none;
  const auto found = by_end_.find(end);
  return found == by_end_.end() ? none : found->second;
}

SharedTensors::SharedTensors(std::vector<TensorRecord> tensors) {
  if (tensors.empty()) return;
  id = write_list(tensors).id;
  list = std::make_shared<const TensorList>(std::move(tensors));
}

const TensorList& SharedTensors::get() const noexcept {
  static const TensorList none;
  return list == nullptr ? none : *list;
}

WrittenList write_list(const std::vector<TensorRecord>& tensors) {
  const std::string bytes = wire::write(ListOfTensors{tensors});
  WrittenList written;
  written.id.hash = hash_of(bytes);
  for (std::size_t at = 0; at < bytes.size(); at += most_of_a_part) {
    written.parts.push_back(bytes.substr(at, most_of_a_part));
  }
  written.id.parts = static_cast<std::uint32_t>(written.parts.size());
  return written;
}

TensorListPtr read_list(const ListHash& hash, const std::string& bytes) {
  if (hash_of(bytes) != hash) refuse("these are not the bytes that its key names");
  return std::make_shared<const TensorList>(wire::read<ListOfTensors>(bytes).tensors);
}

}  // namespace tensorbus::bus
