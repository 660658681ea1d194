// What a registration says of its tensors. Ranks that say the same share one list: the list is
// stored once, under keys that are made of its bytes.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/secret.h"
#include "tensorbus/dtype.h"
#include "tensorbus/layout.h"

namespace tensorbus::bus {

struct TensorRecord {
  std::size_t end = 0;  // position in BatchMember::ends
  std::string name;
  Dtype dtype = Dtype::float32;
  Shape shape;
  std::optional<Shape> global_shape;
  std::optional<std::size_t> layout{};  // its own, a position in BatchMember::layouts
  std::optional<Shape> start{};         // of a box: where it begins in the whole
  friend bool operator==(const TensorRecord&, const TensorRecord&) = default;
};

using ListHash = Id16;

struct TensorListId {
  ListHash hash{};
  std::uint32_t parts = 0;  // the records that hold it; 0: it is empty, and none does
  friend auto operator<=>(const TensorListId&, const TensorListId&) = default;
};

// Immutable, and shared by the records of all ranks that refer to it.
class TensorList {
 public:
  TensorList() = default;
  explicit TensorList(std::vector<TensorRecord> tensors);

  const std::vector<TensorRecord>& all() const noexcept { return all_; }
  // The positions of the tensors of one end, in the order in which both sides count them: by name,
  // or as they were given.
  const std::vector<std::size_t>& of_end(std::size_t end) const;
  // How many ends and layouts a record that refers to the list must have.
  std::size_t ends() const noexcept { return ends_; }
  std::size_t layouts() const noexcept { return layouts_; }

 private:
  std::vector<TensorRecord> all_;
  std::map<std::size_t, std::vector<std::size_t>> by_end_;
  std::size_t ends_ = 0;
  std::size_t layouts_ = 0;
};
using TensorListPtr = std::shared_ptr<const TensorList>;

// The tensors of a registration: always by the id of their list, and once the list is known by the
// list.
struct SharedTensors {
  TensorListId id{};
  TensorListPtr list{};

  SharedTensors() = default;
  SharedTensors(std::vector<TensorRecord> tensors);

  // False: other records have to come first.
  bool known() const noexcept { return list != nullptr || id.parts == 0; }
  const TensorList& get() const noexcept;
  const std::vector<TensorRecord>& all() const noexcept { return get().all(); }
  std::size_t size() const noexcept { return all().size(); }
  const TensorRecord& operator[](std::size_t at) const { return all()[at]; }
  auto begin() const noexcept { return all().begin(); }
  auto end() const noexcept { return all().end(); }
  // Equal bytes are equal lists.
  friend bool operator==(const SharedTensors& a, const SharedTensors& b) { return a.id == b.id; }
};

// A list as it lies in the store: in so many records that each of them is small enough for every
// store.
struct WrittenList {
  TensorListId id;
  std::vector<std::string> parts;
};
WrittenList write_list(const std::vector<TensorRecord>& tensors);
// All parts, one after the other. Throws Error(invalid_argument) unless these are the bytes of that
// hash.
TensorListPtr read_list(const ListHash& hash, const std::string& bytes);

}  // namespace tensorbus::bus
