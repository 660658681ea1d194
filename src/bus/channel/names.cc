#include "bus/channel/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

void check_length(const std::string& what, const std::string& name) {
  if (name.size() <= longest_name) return;
  throw Error(Code::invalid_argument, fmt::format("{} has {} bytes; at most {} are possible", what,
                                                  name.size(), longest_name));
}

void check_name(const std::string& what, const std::string& name) {
  if (name.empty()) throw Error(Code::invalid_argument, what + " is empty");
  check_length(what, name);
}

}  // namespace

void check_names(const InitPair& pair) {
  check_name("the pair's name", pair.pair);
  check_name("the local name", pair.local);
  if (!pair.alone || !pair.remote.empty()) check_name("the remote name", pair.remote);
}

void check_names(const RegisterBatch& batch) {
  check_name("the batch's id", batch.batch);
  if (batch.role) check_length("the role", *batch.role);
  for (std::size_t at = 0; at < batch.items.size(); ++at) {
    const BatchItem& item = batch.items[at];
    if (std::max(item.name.size(), item.pair.size()) <= longest_name) continue;
    check_length(fmt::format("batch \"{}\": the name of tensor {}", batch.batch, at), item.name);
    check_length(fmt::format("batch \"{}\": the pair of tensor {}", batch.batch, at), item.pair);
  }
}

}  // namespace tensorbus::bus
