#include "bus/socket/submitted.h"

#include <algorithm>
#include <utility>

namespace tensorbus::bus {

SubmittedPtr SubmittedCommands::find(std::uint64_t sequence) const {
  const auto found = entries_.find(sequence);
  return found == entries_.end() ? nullptr : found->second;
}

SubmittedPtr SubmittedCommands::find(const Pending& pending) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& each) {
    return each.second->pending.get() == &pending;
  });
  return found == entries_.end() ? nullptr : found->second;
}

void SubmittedCommands::enter(const SubmittedPtr& entry) {
  entry->sequence = ++sequence_;
  entries_[entry->sequence] = entry;
}

void SubmittedCommands::refuse(Submitted& entry, const Status& reason) {
  entry.state = Submitted::State::refused;
  entry.refusal = reason;
  entries_.erase(entry.sequence);
}

void SubmittedCommands::forget(std::uint64_t registration) {
  registrations_.erase(registration);
  for (const auto& [sequence, entry] : entries_) {
    const auto* batch = std::get_if<RegisterBatch>(&entry->command);
    if (batch != nullptr && batch->registration == registration) entry->closed = true;
  }
}

void SubmittedCommands::take(const protocol::Refused& refused, Over& over) {
  const SubmittedPtr entry = find(refused.sequence);
  if (entry == nullptr) return;
  refuse(*entry, refused.reason);
  over.emplace_back(entry->pending, Outcome{.status = refused.reason});
}

void SubmittedCommands::take(protocol::Done& done, Over& over) {
  const SubmittedPtr entry = find(done.sequence);
  if (entry == nullptr) return;
  entry->state = Submitted::State::accepted;
  remember(*entry, done.outcome);
  over.emplace_back(entry->pending, std::move(done.outcome));
  entries_.erase(done.sequence);
}

void SubmittedCommands::take(const protocol::Progress& progress) {
  const SubmittedPtr entry = find(progress.sequence);
  if (entry != nullptr) entry->pending->progress(progress.done, progress.total);
}

// Registrations are made again with an agent that replaces this one.
void SubmittedCommands::remember(const Submitted& entry, const Outcome& outcome) {
  const auto* batch = std::get_if<RegisterBatch>(&entry.command);
  if (batch == nullptr || !outcome.status.ok() || entry.closed) return;
  registrations_[batch->registration] = {entry.command, entry.loan};
}

std::vector<SubmittedPtr> SubmittedCommands::take_accepted(std::uint64_t last_accepted) {
  std::vector<SubmittedPtr> accepted;
  std::erase_if(entries_, [&](const auto& each) {
    const auto& [sequence, entry] = each;
    if (entry->state != Submitted::State::accepted && sequence > last_accepted) return false;
    entry->state = Submitted::State::accepted;
    accepted.push_back(entry);
    return true;
  });
  return accepted;
}

std::vector<SubmittedPtr> SubmittedCommands::start_again(std::uint64_t last_accepted) {
  sequence_ = std::max(sequence_, last_accepted);
  std::vector<SubmittedPtr> again;
  for (const auto& [number, registration] : registrations_) {
    again.push_back(std::make_shared<Submitted>());
    again.back()->command = registration.command;
    again.back()->loan = registration.loan;
  }
  for (const auto& [sequence, entry] : std::exchange(entries_, {})) {
    if (!entry->abandoned) again.push_back(entry);
  }
  return again;
}

std::vector<SubmittedPtr> SubmittedCommands::close(const Status& reason) {
  std::vector<SubmittedPtr> orphans;
  for (const auto& [sequence, entry] : std::exchange(entries_, {})) {
    orphans.push_back(entry);
    if (entry->state != Submitted::State::submitted) continue;
    entry->state = Submitted::State::refused;
    entry->refusal = reason;
  }
  registrations_.clear();
  return orphans;
}

}  // namespace tensorbus::bus
