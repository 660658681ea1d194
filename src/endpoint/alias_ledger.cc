#include "endpoint/alias_ledger.h"

#include "os/process/process.h"
#include "tensorbus/status.h"

namespace tensorbus::endpoint {
namespace {

bool is_alive(const fabric::Identity& process) {
  try {
    return os::process_start_time(static_cast<pid_t>(process.pid)) == process.start_time;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

AliasLedger::~AliasLedger() {
  for (auto& [region, loan] : loans_) {
    if (loan.holders.empty()) continue;
    // Never destroyed: others still look at it.
    [[maybe_unused]] const auto* const kept =
        new std::vector<std::shared_ptr<void>>(std::move(loan.memory));
  }
}

void AliasLedger::lend(std::uint64_t region, std::vector<std::shared_ptr<void>> memory) {
  loans_[region].memory = std::move(memory);
}

void AliasLedger::take_back(std::uint64_t region) {
  const auto found = loans_.find(region);
  if (found == loans_.end()) return;
  found->second.taken_back = true;
  drop_if_free(found);
}

AliasMessage::Kind AliasLedger::hold(const fabric::Identity& holder, std::uint64_t region) {
  const auto found = loans_.find(region);
  if (found == loans_.end() || found->second.taken_back) return AliasMessage::Kind::gone;
  if (!is_alive(holder)) return AliasMessage::Kind::refused;
  ++found->second.holders[holder.id];
  return AliasMessage::Kind::held;
}

void AliasLedger::let_go(const fabric::Identity& holder, std::uint64_t region) {
  const auto found = loans_.find(region);
  if (found == loans_.end()) return;
  auto& holders = found->second.holders;
  const auto held = holders.find(holder.id);
  if (held == holders.end()) return;
  if (--held->second == 0) holders.erase(held);
  drop_if_free(found);
}

void AliasLedger::lost(const fabric::Identity& holder) {
  bool holds = false;
  for (const auto& [region, loan] : loans_) holds = holds || loan.holders.contains(holder.id);
  if (!holds) return;
  try {
    os::Fd process = os::open_pidfd(static_cast<pid_t>(holder.pid));
    // Looked at after the descriptor was opened: now the pid cannot change hands unseen.
    if (is_alive(holder)) {
      lost_[holder.id] = std::move(process);
      return;
    }
  } catch (const Error&) {
    // There is no such process any more.
  }
  forget(holder.id);
}

std::vector<int> AliasLedger::descriptors() const {
  std::vector<int> fds;
  for (const auto& [id, process] : lost_) fds.push_back(process.get());
  return fds;
}

void AliasLedger::look() {
  for (auto at = lost_.begin(); at != lost_.end();) {
    if (!os::has_ended(at->second)) {
      ++at;
      continue;
    }
    forget(at->first);
    at = lost_.erase(at);
  }
}

void AliasLedger::forget(const Id16& holder) {
  for (auto at = loans_.begin(); at != loans_.end();) {
    const auto loan = at++;
    loan->second.holders.erase(holder);
    drop_if_free(loan);
  }
}

void AliasLedger::drop_if_free(std::map<std::uint64_t, Loan>::iterator loan) {
  if (loan->second.taken_back && loan->second.holders.empty()) loans_.erase(loan);
}

}  // namespace tensorbus::endpoint
