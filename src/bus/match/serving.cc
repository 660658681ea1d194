#include "bus/match/serving.h"

#include <algorithm>
#include <utility>

namespace tensorbus::bus {

Serving::Serving(GroupPtr sources, GroupPtr targets, Rank source)
    : sources_(std::move(sources)), targets_(std::move(targets)), source_(source) {
  check_tensors(*sources_, *targets_);
}

Serving::Alike& Serving::alike(Rank reader) {
  std::vector<std::string> pairs;
  for (const auto& [end, side] : targets_->sides) {
    if (std::ranges::find(side.ranks, reader) == side.ranks.end()) continue;
    pairs.push_back(end.pair);
    if (!side.layout) pairs.push_back(std::to_string(reader));
  }
  const auto [found, fresh] = alike_.try_emplace(std::move(pairs));
  Alike& alike = found->second;
  if (!fresh) return alike;
  const Passage passage = make_passage(*sources_, *targets_, reader);
  alike.fingerprint = passage.fingerprint;
  for (plan::Stream& stream : plan::serve_streams(passage.plans, source_)) {
    alike.streams[stream.reader].push_back(std::move(stream));
  }
  return alike;
}

const std::vector<plan::Stream>& Serving::to(Rank reader) {
  static const std::vector<plan::Stream> none;
  const Alike& all = alike(reader);
  const auto found = all.streams.find(reader);
  return found == all.streams.end() ? none : found->second;
}

std::vector<Rank> Serving::readers(bool versioned) {
  const bool all = versioned && source_ == first_source(*sources_);
  std::vector<Rank> readers;
  for (const auto& [reader, member] : targets_->members) {
    if (all || !to(reader).empty()) readers.push_back(reader);
  }
  return readers;
}

}  // namespace tensorbus::bus
