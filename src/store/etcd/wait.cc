#include "store/etcd/wait.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "store/common/pattern.h"

namespace tensorbus::store::etcd {
namespace {

constexpr auto one_look = std::chrono::milliseconds(500);

constexpr std::size_t max_named = 10;

std::string listed(std::vector<std::string> names) {
  const std::size_t all = names.size();
  names.resize(std::min(all, max_named));
  const std::string text = fmt::format("{}", fmt::join(names, ", "));
  return all > max_named ? fmt::format("{} and {} more", text, all - max_named) : text;
}

KeyRange range_of(const Condition& condition) {
  return condition.is_pattern ? KeyRange::prefix(literal_prefix(condition.key))
                              : KeyRange::one(condition.key);
}

}  // namespace

Matches::Matches(Condition condition) : condition_(std::move(condition)) {
  if (!condition_.is_pattern) condition_.count = 1;
}

void Matches::apply(const Feed::Step& step) {
  if (step.snapshot) keys_.clear();
  for (const StoreEvent& event : step.events) apply(event);
}

void Matches::apply(const StoreEvent& event) {
  if (is_own(event.key)) return;
  const bool named =
      condition_.is_pattern ? matches(condition_.key, event.key) : event.key == condition_.key;
  if (!named) return;
  const bool fits = event.kind == StoreEvent::Kind::put &&
                    (!condition_.value || event.value == *condition_.value);
  if (!fits) {
    keys_.erase(event.key);
    return;
  }
  keys_.insert(event.key);
  if (!condition_.is_pattern) value_ = event.value;
}

WaitResult Matches::result() const {
  WaitResult result;
  for (const std::string& key : keys_) {
    if (result.keys.size() == condition_.count) break;
    result.keys.push_back(key);
  }
  if (!result.keys.empty()) result.value = value_;
  return result;
}

std::string Matches::shortfall() const {
  const std::string_view having = condition_.value ? " with the expected value" : "";
  if (!condition_.is_pattern) {
    return fmt::format("missing: \"{}\"{}", condition_.key, having);
  }
  std::string message = fmt::format("{} of {} keys matching \"{}\"{}", keys_.size(),
                                    condition_.count, condition_.key, having);
  std::vector<std::string> missing;
  for (const std::string& candidate : condition_.candidates) {
    if (!keys_.contains(candidate)) missing.push_back(candidate);
  }
  if (!missing.empty()) return message + "; still missing: " + listed(std::move(missing));
  if (!keys_.empty()) message += "; there: " + listed({keys_.begin(), keys_.end()});
  return message;
}

WaitResult wait(const std::shared_ptr<Access>& access, const Condition& condition,
                const Call& call) {
  Matches matching(condition);
  Feed feed(access, range_of(condition), !condition.is_pattern || condition.value);
  // However short its time, a wait looks once: a deadline of zero asks what holds now.
  Call looking = call;
  if (call.deadline.remaining() < one_look) looking.deadline = Deadline::after(one_look);
  do {
    const auto step = feed.next(looking);
    looking = call;
    if (!step) {
      throw Error(Code::timeout,
                  fmt::format("timed out; {} ({})", matching.shortfall(), access->gateway.name()));
    }
    matching.apply(*step);
  } while (!matching.satisfied());
  return matching.result();
}

}  // namespace tensorbus::store::etcd
