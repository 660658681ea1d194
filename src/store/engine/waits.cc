#include "store/engine/waits.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorbus::store {
namespace {

// As many as a person reads.
constexpr std::size_t most_named = 8;
// Sets of matches that are kept up to date although nobody waits, and how large they may be.
constexpr std::size_t most_idle = 4;
constexpr std::size_t largest_idle = 16'384;

std::string shown_key(std::string_view key) {
  // On the wire users' keys start with a "/" that users never wrote.
  if (key.starts_with('/')) key.remove_prefix(1);
  return fmt::format("\"{}\"", key);
}

}  // namespace

bool Waits::satisfies(const KeyWait& wait, const std::string& key) const {
  if (wait.queues_count && !table_.records().contains(key)) {
    const auto queue = table_.queues().find(key);
    if (queue == table_.queues().end()) return false;
    const auto promised = promised_.find(key);
    return queue->second.size() > (promised == promised_.end() ? 0 : promised->second);
  }
  const Record* record = table_.find(key);
  return record != nullptr && (!wait.value || record->value == *wait.value);
}

WaitResult Waits::result_of(const KeyWait& wait) const {
  WaitResult result;
  result.keys = wait.keys;
  if (wait.keys.size() == 1) {
    if (const Record* record = table_.find(wait.keys.front())) result.value = record->value;
  }
  return result;
}

WaitResult Waits::result_of(const Group& group, std::size_t count) {
  const auto end = std::next(group.matching.begin(),
                             static_cast<std::ptrdiff_t>(std::min(count, group.matching.size())));
  return {std::vector<std::string>(group.matching.begin(), end), {}};
}

std::optional<WaitResult> Waits::add_keys(std::unique_ptr<KeyWait> wait) {
  for (const std::string& key : wait->keys) {
    wait->satisfied.push_back(satisfies(*wait, key));
    wait->missing += !wait->satisfied.back();
  }
  if (wait->missing == 0) {
    promise(*wait);
    return result_of(*wait);
  }
  for (std::size_t i = 0; i < wait->keys.size(); ++i) {
    by_key_[wait->keys[i]].push_back({wait.get(), i});
  }
  const Ticket ticket = wait->ticket;
  by_ticket_[ticket] = {std::move(wait), nullptr, 0};
  return std::nullopt;
}

Waits::Group& Waits::group_for(const Condition& condition) {
  auto& slot = groups_[{condition.key, condition.value}];
  if (slot != nullptr) {
    std::erase(idle_, slot.get());
    return *slot;
  }
  slot = std::make_unique<Group>(Group{Pattern(condition.key), condition.value, {}, {}});
  const std::string_view prefix = slot->pattern.prefix();
  by_prefix_.add(prefix, slot.get());
  const auto& records = table_.records();
  for (auto at = records.lower_bound(prefix); at != records.end() && at->first.starts_with(prefix);
       ++at) {
    if (slot->pattern.matches(at->first) &&
        (!condition.value || at->second.value == *condition.value)) {
      slot->matching.insert(slot->matching.end(), at->first);
    }
  }
  return *slot;
}

void Waits::retire(Group& group) {
  idle_.push_back(&group);
  if (idle_.size() <= most_idle && group.matching.size() <= largest_idle) return;
  Group* gone = group.matching.size() > largest_idle ? &group : idle_.front();
  std::erase(idle_, gone);
  by_prefix_.remove(gone->pattern.prefix(), gone);
  groups_.erase({gone->pattern.text(), gone->value});
}

std::optional<WaitResult> Waits::add(Ticket ticket, const Condition& condition) {
  if (!condition.is_pattern) {
    auto wait = std::make_unique<KeyWait>();
    wait->ticket = ticket;
    wait->keys = {condition.key};
    wait->value = condition.value;
    return add_keys(std::move(wait));
  }
  Group& group = group_for(condition);
  if (group.matching.size() >= condition.count) {
    WaitResult result = result_of(group, condition.count);
    if (group.waiters.empty()) retire(group);
    return result;
  }
  group.waiters.emplace(condition.count, ticket);
  by_ticket_[ticket] = {nullptr, &group, condition.count};
  return std::nullopt;
}

std::optional<WaitResult> Waits::add_all(Ticket ticket, std::vector<std::string> keys) {
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  auto wait = std::make_unique<KeyWait>();
  wait->ticket = ticket;
  wait->keys = std::move(keys);
  wait->queues_count = true;
  return add_keys(std::move(wait));
}

void Waits::forget(const KeyWait& wait) {
  for (const std::string& key : wait.keys) {
    const auto waiting = by_key_.find(key);
    std::erase_if(waiting->second, [&](const KeyInWait& each) { return each.first == &wait; });
    if (waiting->second.empty()) by_key_.erase(waiting);
  }
}

void Waits::recheck(KeyWait& wait) const {
  wait.missing = 0;
  for (std::size_t i = 0; i < wait.keys.size(); ++i) {
    wait.satisfied[i] = satisfies(wait, wait.keys[i]);
    wait.missing += !wait.satisfied[i];
  }
}

void Waits::promise(const KeyWait& wait) {
  if (!wait.queues_count) return;
  for (const std::string& key : wait.keys) {
    if (table_.records().contains(key)) continue;
    ++promised_[key];
    promises_[wait.ticket].push_back(key);
  }
}

Table::Changed Waits::settle(Ticket ticket) {
  const auto found = promises_.find(ticket);
  if (found == promises_.end()) return {};
  Table::Changed keys = std::move(found->second);
  promises_.erase(found);
  for (const std::string& key : keys) {
    const auto promised = promised_.find(key);
    if (--promised->second == 0) promised_.erase(promised);
  }
  return keys;
}

std::vector<Waits::Ready> Waits::after_change(const Table::Changed& changed) {
  std::set<Ticket> touched;
  std::set<Group*> touched_groups;
  for (const std::string& key : changed) {
    if (const auto waiting = by_key_.find(key); waiting != by_key_.end()) {
      for (const auto& [wait, index] : waiting->second) {
        const bool now = satisfies(*wait, key);
        if (now == wait->satisfied[index]) continue;
        wait->satisfied[index] = now;
        now ? --wait->missing : ++wait->missing;
        touched.insert(wait->ticket);
      }
    }
    const Record* record = table_.find(key);
    by_prefix_.visit(key, [&](Group* group) {
      if (!group->pattern.matches(key)) return;
      const bool now = record != nullptr && (!group->value || record->value == *group->value);
      if (!now) {
        group->matching.erase(key);
      } else if (group->matching.insert(key).second && !group->waiters.empty()) {
        touched_groups.insert(group);
      }
    });
  }

  std::vector<Ready> ready;
  for (const Ticket ticket : touched) {
    const auto owner = by_ticket_.find(ticket);
    KeyWait& wait = *owner->second.keys;
    // The wait before this one may have been promised the element that would end it.
    if (wait.missing == 0 && wait.queues_count) recheck(wait);
    if (wait.missing > 0) continue;
    promise(wait);
    ready.push_back({ticket, result_of(wait)});
    forget(*owner->second.keys);
    by_ticket_.erase(owner);
  }
  for (Group* group : touched_groups) {
    const auto end = group->waiters.upper_bound(group->matching.size());
    for (auto waiter = group->waiters.begin(); waiter != end; ++waiter) {
      ready.push_back({waiter->second, result_of(*group, waiter->first)});
      by_ticket_.erase(waiter->second);
    }
    group->waiters.erase(group->waiters.begin(), end);
    if (group->waiters.empty()) retire(*group);
  }
  return ready;
}

std::string Waits::missing_in(const Group& group, std::size_t count) const {
  std::string text = fmt::format("{} of {} keys match {}", group.matching.size(), count,
                                 shown_key(group.pattern.text()));
  if (group.value) text += fmt::format(" with value \"{}\"", group.value->substr(0, 40));
  std::size_t named = 0;
  for (const std::string& key : group.matching) {
    text += named == 0 ? "; there: " : ", ";
    if (++named > most_named) {
      text += "...";
      break;
    }
    text += shown_key(key);
  }
  if (!group.value) return text;
  // Keys with another value are the usual reason; say so.
  named = 0;
  const std::string_view prefix = group.pattern.prefix();
  const auto& records = table_.records();
  for (auto at = records.lower_bound(prefix);
       at != records.end() && at->first.starts_with(prefix) && named < most_named; ++at) {
    if (!group.pattern.matches(at->first) || at->second.value == *group.value) continue;
    text += named++ == 0 ? "; with another value: " : ", ";
    text += shown_key(at->first);
  }
  return text;
}

std::optional<std::string> Waits::remove(Ticket ticket) {
  const auto found = by_ticket_.find(ticket);
  if (found == by_ticket_.end()) return std::nullopt;
  std::string missing;
  if (const KeyWait* wait = found->second.keys.get()) {
    std::size_t named = 0;
    for (std::size_t i = 0; i < wait->keys.size(); ++i) {
      if (wait->satisfied[i]) continue;
      missing += named == 0 ? "missing: " : ", ";
      if (++named > most_named) {
        missing += fmt::format("... ({} in all)", wait->missing);
        break;
      }
      missing += shown_key(wait->keys[i]);
      if (wait->value && table_.find(wait->keys[i]) != nullptr) {
        missing += fmt::format(" (it holds \"{}\", not \"{}\")",
                               table_.find(wait->keys[i])->value.substr(0, 40),
                               wait->value->substr(0, 40));
      }
    }
    forget(*wait);
  } else {
    Group* group = found->second.group;
    missing = missing_in(*group, found->second.count);
    const auto [begin, end] = group->waiters.equal_range(found->second.count);
    group->waiters.erase(
        std::find_if(begin, end, [&](const auto& waiter) { return waiter.second == ticket; }));
    if (group->waiters.empty()) retire(*group);
  }
  by_ticket_.erase(found);
  return missing;
}

}  // namespace tensorbus::store
