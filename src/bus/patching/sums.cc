#include "bus/patching/sums.h"

#include <utility>

namespace tensorbus::bus {
namespace {

// Neither shelves nor targets that are patched are in a device's memory.
constexpr device::Copiers* no_devices = nullptr;

}  // namespace

void SumMaker::ask(std::uint64_t serial, const AskSums& ask, const Streams& streams,
                   std::span<const TensorView> tensors) {
  leave(serial);
  Job& job = jobs_.emplace_back(Job{serial, ask.version, {}});
  for (const auto& stream : streams) {
    job.digests.push_back(std::make_unique<Digest>(*stream, Digest::End::source, ask.verify,
                                                   tensors, nullptr, no_devices));
    job.digests.back()->begin(ask.version);
  }
}

void SumMaker::leave(std::uint64_t serial) {
  std::erase_if(jobs_, [&](const Job& job) { return job.serial == serial; });
}

std::optional<SumMaker::Done> SumMaker::step() {
  if (jobs_.empty()) return std::nullopt;
  Job& job = jobs_.front();
  std::int64_t budget = Digest::at_once;
  for (; job.at < job.digests.size(); ++job.at) {
    Digest& digest = *job.digests[job.at];
    if (!digest.work(budget)) return std::nullopt;
    job.sums.insert(job.sums.end(), digest.sums().begin(), digest.sums().end());
  }
  Done done{job.serial, job.version, std::move(job.sums)};
  jobs_.pop_front();
  return done;
}

SumCheck::SumCheck(const Streams& streams, const Sources& sources, Verify verify,
                   std::int64_t version, std::span<const TensorView> targets)
    : streams_(streams), sources_(sources) {
  for (const auto& stream : streams_) {
    digests_.push_back(std::make_unique<Digest>(*stream, Digest::End::target, verify, targets,
                                                nullptr, no_devices));
    digests_.back()->begin(version);
  }
  for (const auto& [rank, each] : sources_) awaited_.insert(rank);
}

bool SumCheck::take(Rank rank, const VersionSums& sums) {
  const auto source = sources_.find(rank);
  if (source == sources_.end() || !awaited_.contains(rank)) return true;
  std::size_t expected = 0;
  for (const std::size_t at : source->second) expected += streams_[at]->parts.size();
  std::vector<std::uint64_t>& all = sums_[rank];
  if (sums.all != expected || sums.first != all.size()) return false;
  if (sums.values.size() > expected - all.size()) return false;
  all.insert(all.end(), sums.values.begin(), sums.values.end());
  if (all.size() == expected) awaited_.erase(rank);
  return true;
}

bool SumCheck::work() {
  std::int64_t budget = Digest::at_once;
  for (; at_ < digests_.size(); ++at_) {
    if (!digests_[at_]->work(budget)) return false;
  }
  return true;
}

std::vector<std::size_t> SumCheck::different() const {
  std::set<std::size_t> targets;
  for (const auto& [rank, streams] : sources_) {
    std::size_t next = 0;
    for (const std::size_t at : streams) {
      const std::vector<std::uint64_t>& own = digests_[at]->sums();
      for (std::size_t part = 0; part < own.size(); ++part) {
        if (own[part] == sums_.at(rank)[next++]) continue;
        targets.insert(streams_[at]->parts[part].target_tensor);
      }
    }
  }
  return {targets.begin(), targets.end()};
}

}  // namespace tensorbus::bus
