#include "bus/simulation/claims/patch_claims.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorbus::bus::simulation {
namespace {

// More than a reader's patience with a source that does not answer.
constexpr Duration too_long = std::chrono::milliseconds(1500);
constexpr std::uint64_t most_turns = 200;

}  // namespace

void PatchClaims::on_said(Rank from, Rank to, const AgentMessage& message) {
  if (const auto* ask = std::get_if<AskPatch>(&message.body)) {
    on_ask(from, to, message, *ask);
  } else if (const auto* answer = std::get_if<Patched>(&message.body)) {
    on_answer(from, to, message, *answer);
  } else if (const auto* hold = std::get_if<Hold>(&message.body)) {
    if (!hold->newest && hold->versions.empty()) release(to, message.serial);
  } else if (std::holds_alternative<Leave>(message.body)) {
    release(to, message.serial);
  }
}

// D4: what a reader says that it holds is in its tensors, every element of it.
void PatchClaims::on_ask(Rank reader, Rank source, const AgentMessage& message,
                         const AskPatch& ask) {
  release(source, message.serial);
  Asked& asked = asked_[reader];
  if (asked.serial != message.serial || asked.version != ask.version ||
      asked.sources.contains(source)) {
    asked = {message.serial, message.generation, ask.version};
  }
  asked.sources.insert(source);
  asked.held[source] = ask.held;
  asked.pull.reset();
  asked.since = cluster_.clock().now();
  asked.turns = 0;
  if (ask.held == 0) return;
  asked.pull = world_.pull(reader);
  const bool reads = !asked.pull || asked.pull->dense_reads != dense_reads(reader);
  if (delayed_ || reads) return;
  if (const std::string lack = world_.lacks(reader, message.generation, ask.held); !lack.empty()) {
    world_.violate("D4", fmt::format("rank {} says that it holds version {} of generation {}:{}",
                                     reader, ask.held, message.generation, lack));
  }
}

// D2, at the source: a patch begins where the reader is, or before.
void PatchClaims::on_answer(Rank source, Rank reader, const AgentMessage& message,
                            const Patched& answer) {
  offered_now_ = true;
  const auto found = asked_.find(reader);
  if (found == asked_.end() || found->second.serial != message.serial) return;
  Asked& asked = found->second;
  asked.since = cluster_.clock().now();
  asked.turns = 0;
  if (answer.why != delta::Why::patch || answer.version != asked.version) return;
  const std::int64_t held = asked.held[source];
  for (const OfferedPatch& offered : answer.patches) {
    if (held == 0 || offered.base > held || held > answer.version) {
      world_.violate("D2", fmt::format("rank {} offers a patch from version {} to {} to rank {}, "
                                       "which holds {}",
                                       source, offered.base, answer.version, reader, held));
    }
    check_same(source, message.serial, offered);
  }
  asked.offered.insert(source);
}

// D10: as long as somebody reads a patch, nobody gets another one of the same bytes.
void PatchClaims::check_same(Rank source, std::uint64_t serial, const OfferedPatch& offered) {
  Patch& patch = patches_[{source, offered.checksum}];
  if (patch.readers.empty()) patch.region = offered.region;
  if (patch.region != offered.region && world_.calm()) {
    world_.violate("D10", fmt::format("rank {} has made one patch twice, in regions {} and {}",
                                      source, patch.region, offered.region));
  }
  patch.region = offered.region;
  patch.readers.insert(serial);
}

void PatchClaims::release(Rank source, std::uint64_t serial) {
  for (auto& [key, patch] : patches_) {
    if (key.first == source) patch.readers.erase(serial);
  }
}

void PatchClaims::on_step(Rank rank, Step step) {
  if (step == Step::applying) check_applying(rank);
  if (step == Step::reading) ++dense_reads_[rank];
  const auto found = asked_.find(rank);
  if (found == asked_.end()) return;
  const bool goes_on = step == Step::fetching || step == Step::reading || step == Step::received ||
                       step == Step::subscribing || step == Step::started;
  if (goes_on) found->second.pull.reset();
}

// D2, at the reader: every source has offered its patch.
void PatchClaims::check_applying(Rank reader) {
  const auto found = asked_.find(reader);
  if (found == asked_.end() || found->second.offered == found->second.sources) return;
  world_.violate("D2", fmt::format("rank {} applies patches to version {} of {} of its {} sources",
                                   reader, found->second.version, found->second.offered.size(),
                                   found->second.sources.size()));
}

std::map<Rank, std::int64_t> PatchClaims::patch_bytes() const {
  std::map<Rank, std::int64_t> bytes;
  fabric::visit_regions(cluster_.hub(), [&](const fabric::MemoryExposed& exposed) {
    if (exposed.forms.size() != 1 || exposed.forms.front().dtype != Dtype::uint8) return;
    bytes[rank_of(exposed.owner)] += element_count(exposed.forms.front().shape);
  });
  return bytes;
}

void PatchClaims::after_step(std::optional<Rank> acted) {
  const Weather& weather = cluster_.weather;
  delayed_ = delayed_ || !weather.full.empty() || weather.queue < Weather().queue;
  const auto most = world_.most_bytes();
  if (std::exchange(offered_now_, false) && most) {
    for (const auto& [rank, bytes] : patch_bytes()) {
      if (bytes <= *most) continue;
      world_.violate("D7", fmt::format("rank {} has patches of {} bytes; {} were allowed", rank,
                                       bytes, *most));
    }
  }
  const auto found = acted ? asked_.find(*acted) : asked_.end();
  if (found == asked_.end() || !found->second.pull) return;
  Asked& asked = found->second;
  if (cluster_.clock().now() - asked.since < too_long) return;
  if (world_.pull(*acted) != asked.pull) return asked.pull.reset();
  if (++asked.turns == most_turns) {
    world_.violate("D6", fmt::format("rank {} waits for patches to version {} that do not come",
                                     *acted, asked.version));
  }
}

void PatchClaims::at_rest() {
  for (const auto& [rank, bytes] : patch_bytes()) {
    if (bytes == 0) continue;
    world_.violate("D7", fmt::format("rank {} has {} bytes of patches at the end", rank, bytes));
  }
}

std::uint64_t PatchClaims::dense_reads(Rank rank) const {
  const auto found = dense_reads_.find(rank);
  return found == dense_reads_.end() ? 0 : found->second;
}

}  // namespace tensorbus::bus::simulation
