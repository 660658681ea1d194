#include "bus/agent/registering_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/refuse.h"
#include "bus/channel/names.h"
#include "delta/change/bitmap.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus {
namespace {

constexpr std::int64_t smallest_chunk = plan::part_alignment;
// One version to read while another is written.
constexpr std::size_t fewest_kept = 2;

// What streams are cut into: a wish, brought to what every fabric can do.
std::int64_t chunk_bytes(const std::optional<std::int64_t>& wish) {
  if (!wish) return plan::default_chunk_bytes;
  if (*wish < 1) refuse(fmt::format("a bucket size of {} bytes; it must be positive", *wish));
  const std::int64_t bytes = std::clamp(*wish, smallest_chunk, plan::default_chunk_bytes);
  return bytes / plan::part_alignment * plan::part_alignment;
}

// A shelf has memory for every tensor of every version that it keeps.
void check_loan(const Submission& submission, const RegisterBatch& command) {
  const auto& versioned = command.versioned;
  const bool publishes = versioned && versioned->keep && command.refused.empty() &&
                         versioned->direction == Direction::send;
  const std::size_t times = publishes ? static_cast<std::size_t>(*versioned->keep) : 1;
  const bool compares = publishes && versioned->delta;
  if (publishes && times < fewest_kept) {
    refuse(fmt::format("batch \"{}\": a shelf keeps at least {} versions", command.batch,
                       fewest_kept));
  }
  if (submission.loan == nullptr ||
      submission.loan->tensors().size() != (times + (compares ? 1 : 0)) * command.items.size()) {
    refuse(fmt::format("batch \"{}\": the memory of its tensors was not passed", command.batch));
  }
  if (publishes && submission.loan->lender() != nullptr) {
    refuse(fmt::format("batch \"{}\": the memory of a shelf lies in the pool", command.batch));
  }
  if (!compares) return;
  for (std::size_t i = 0; i < command.items.size(); ++i) {
    const TensorView& words = submission.loan->tensors()[times * command.items.size() + i];
    const std::int64_t count = delta::Bitmap::words_for(element_count(command.items[i].shape));
    if (words.dtype == Dtype::int64 && std::ranges::equal(words.shape, Shape{count}) &&
        std::ranges::equal(words.strides, Shape{1})) {
      continue;
    }
    refuse(
        fmt::format("batch \"{}\": there is no room for what its versions change", command.batch));
  }
}

// False: a pair that the command names is not complete yet.
bool add_ends(BatchMember& record, const RegisterBatch& command, const Pairs& pairs) {
  std::set<std::string> names(command.pairs.begin(), command.pairs.end());
  for (const BatchItem& item : command.items) names.insert(item.pair);
  std::map<End, std::string> ends;
  for (const std::string& name : names) {
    const End end = pairs.local_end(name, command.role);
    const std::optional<std::string> remote = pairs.remote_of(end);
    if (!remote) return false;
    ends[end] = *remote;
  }
  for (const auto& [end, remote] : ends) {
    record.ends.push_back(end);
    record.remotes.push_back(remote);
  }
  return true;
}

// All tensors of a pair have a name, or none; several boxes may share one.
class Names {
 public:
  explicit Names(const std::string& batch) : batch_(batch) {}

  void add(const BatchItem& item) {
    auto [entry, first] =
        names_.try_emplace(item.pair, !item.name.empty(), std::set<std::string>());
    if (entry->second.first == item.name.empty()) {
      refuse(
          fmt::format("batch \"{}\": of the tensors of pair \"{}\" some have a name and some "
                      "have none",
                      batch_, item.pair));
    }
    const bool again = !item.name.empty() && !entry->second.second.insert(item.name).second;
    if (again && !item.start) {
      refuse(fmt::format("batch \"{}\": two tensors of pair \"{}\" are named \"{}\"", batch_,
                         item.pair, item.name));
    }
  }

 private:
  const std::string& batch_;
  std::map<std::string, std::pair<bool, std::set<std::string>>> names_;  // by pair
};

void add_tensors(BatchMember& record, const RegisterBatch& command, const Pairs& pairs) {
  Names names(command.batch);
  std::vector<TensorRecord> tensors;
  for (const BatchItem& item : command.items) {
    const End end = pairs.local_end(item.pair, command.role);
    const auto at = std::ranges::lower_bound(record.ends, end) - record.ends.begin();
    element_count(item.shape);
    tensors.push_back({static_cast<std::size_t>(at), item.name, item.dtype, item.shape,
                       item.global_shape, item.layout, item.start});
    names.add(item);
  }
  record.tensors = std::move(tensors);
}

}  // namespace

std::optional<RegisteringRecord> record_of(const Submission& submission,
                                           const RegisterBatch& command, const Pairs& pairs,
                                           std::uint64_t incarnation) {
  check_names(command);
  if (command.items.empty() && command.pairs.empty()) {
    refuse(fmt::format("batch \"{}\" has no tensors", command.batch));
  }
  check_loan(submission, command);
  RegisteringRecord made;
  made.record.incarnation = incarnation;
  made.record.registration = command.registration;
  made.record.chunk_bytes = chunk_bytes(command.chunk_bytes);
  made.record.verify = command.verify;
  made.record.layouts = command.layouts;
  made.record.versioned = command.versioned;
  if (!add_ends(made.record, command, pairs)) return std::nullopt;
  const std::string& pair =
      command.items.empty() ? command.pairs.front() : command.items.front().pair;
  made.side = command.role.value_or(pairs.local_end(pair, command.role).side);
  if (command.refused.empty()) add_tensors(made.record, command, pairs);
  return made;
}

}  // namespace tensorbus::bus
