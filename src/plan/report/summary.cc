#include "plan/report/summary.h"

#include <algorithm>
#include <set>

namespace tensorbus::plan {
namespace {

// One chunk for everything, so that runs are counted as the tensors give them.
constexpr std::int64_t uncut = std::int64_t{1} << 62;

std::size_t count_runs(const Stream& stream) {
  Strides source;
  Strides target;
  for (const Part& part : stream.parts) {
    source.resize(part.source_tensor + 1);
    target.resize(part.target_tensor + 1);
    source.back() = contiguous_strides(part.source_shape);
    target.back() = contiguous_strides(part.target_shape);
  }
  return compile(stream, &source, &target).runs.size();
}

void add(Summary& summary, const Stream& stream) {
  for (const Rank source : stream.source.ranks) {
    Traffic& sent = summary.sources[source];
    sent.bytes += stream.payload_bytes;
    sent.pieces += stream.parts.size();
    Traffic& received = summary.targets[stream.reader];
    received.bytes += stream.payload_bytes;
    received.pieces += stream.parts.size();
    summary.bytes_between[{source, stream.reader}] += stream.payload_bytes;
    summary.moved_bytes += stream.payload_bytes;
  }
  summary.pieces += stream.parts.size();
  summary.runs += count_runs(stream);
}

}  // namespace

Summary summarise(const Model& model, const SummaryProgress& progress) {
  Summary summary;
  std::vector<Plan> batch;
  std::set<Rank> readers;
  for (const ModelTensor& tensor : model) {
    const Plan& plan = tensor.plan;
    batch.push_back(plan);
    for (const Rank rank : plan.source().mesh().ranks()) summary.sources[rank];
    for (const Rank rank : plan.target().mesh().ranks()) summary.targets[rank];
    summary.tensor_bytes +=
        element_count(plan.shape()) * static_cast<std::int64_t>(item_bytes(plan.types().source));
  }
  summary.tensors = model.size();
  for (const auto& entry : summary.targets) readers.insert(entry.first);
  std::size_t done = 0;
  for (const Rank reader : readers) {
    for (const Stream& stream : read_streams(batch, reader, uncut)) add(summary, stream);
    if (progress) progress(++done, readers.size());
  }
  for (const auto& [ranks, bytes] : summary.bytes_between) {
    ++summary.sources[ranks.first].peers;
    ++summary.targets[ranks.second].peers;
  }
  return summary;
}

double imbalance(const std::map<Rank, Traffic>& side) {
  std::int64_t total = 0;
  std::int64_t most = 0;
  for (const auto& [rank, traffic] : side) {
    total += traffic.bytes;
    most = std::max(most, traffic.bytes);
  }
  if (total == 0) return 0;
  return static_cast<double>(most) * static_cast<double>(side.size()) / static_cast<double>(total);
}

double seconds_over(const Summary& summary, double link_bytes_per_second) {
  std::int64_t most = 0;
  for (const auto& [rank, traffic] : summary.sources) most = std::max(most, traffic.bytes);
  for (const auto& [rank, traffic] : summary.targets) most = std::max(most, traffic.bytes);
  return static_cast<double>(most) / link_bytes_per_second;
}

}  // namespace tensorbus::plan
