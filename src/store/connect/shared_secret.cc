#include "base/secret.h"
#include "tensorbus/secret.h"

namespace tensorbus {

std::string shared_secret(Store& store, const std::string& key, Deadline deadline) {
  const std::string keys[] = {key};
  if (const auto known = store.get(keys, deadline).front()) return *known;
  const std::string fresh = to_hex(view(random_id())) + to_hex(view(random_id()));
  const Swap swap = store.compare_and_set(key, std::nullopt, fresh, deadline);
  if (swap.swapped) return fresh;
  if (!swap.value) throw Error(Code::failed, "somebody removes the secret \"" + key + "\"");
  return *swap.value;
}

}  // namespace tensorbus
