#include "store/etcd_barrier.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "base/log.h"
#include "store/etcd_stream.h"

namespace tensorbus::store::etcd {
namespace {

// How long a member whose time is up may take to tell the others.
constexpr std::chrono::seconds withdraw_limit{1};
constexpr std::size_t max_named = 20;

// Without "/", so that no barrier's keys lie among those of another.
std::string escaped(const std::string& name) {
  std::string safe;
  for (const char c : name) {
    if (c == '/' || c == '%') {
      safe += c == '/' ? "%2F" : "%25";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::optional<std::size_t> as_rank(const std::string& member, std::size_t count) {
  std::size_t rank = 0;
  const char* end = member.data() + member.size();
  const auto parsed = std::from_chars(member.data(), end, rank);
  if (parsed.ec != std::errc() || parsed.ptr != end || rank >= count) return std::nullopt;
  return rank;
}

std::string listed(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), max_named);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace

Barrier::Barrier(std::shared_ptr<Link> link, Leases& leases, const std::string& name,
                 std::size_t count, const std::string& member)
    : link_(std::move(link)),
      leases_(leases),
      name_(name),
      count_(count),
      member_(member),
      base_(own_key("barriers/" + escaped(name) + "/")) {
  if (count > max_packed_operations - 1) {
    throw Error(Code::invalid_argument,
                fmt::format("a barrier on etcd takes at most {} members, not {}",
                            max_packed_operations - 1, count));
  }
}

void Barrier::pass(const Call& call) {
  try {
    arrive(call);
    while (true) {
      const View view = look(call);
      if (!view.inside && view.present) return;
      if (!view.inside) {
        arrive(call);
      } else if (view.arrived >= count_) {
        release(call);
      } else {
        await_change(view.revision, call);
      }
    }
  } catch (const Error& error) {
    if (own_.empty()) throw;
    leave(error.status());
  }
}

void Barrier::arrive(const Call& call) {
  while (true) {
    presence_ = leases_.presence(call);
    own_ = base_ + "in/" + random_name();
    Transaction transaction;
    transaction.success.push_back(put(own_, member_, presence_->lease->id));
    try {
      link_->session.write(transaction, call);
      return;
    } catch (const Refusal& refusal) {
      if (refusal.kind() != Refusal::Kind::lease_not_found) throw;
      leases_.retire(presence_);
    }
  }
}

Barrier::View Barrier::look(const Call& call) {
  Json arrivals = range(KeyRange::prefix(base_ + "in/"));
  arrivals["request_range"]["count_only"] = true;
  const Json question = {
      {"success", Json::array({range(KeyRange::one(own_), true),
                               range(KeyRange::one(presence_->key), true), std::move(arrivals)})}};
  const Json answer = link_->gateway.call("/v3/kv/txn", question, call).json;
  View view;
  view.inside = number(response_at(answer, 0, "response_range"), "count") > 0;
  view.present = number(response_at(answer, 1, "response_range"), "count") > 0;
  view.arrived =
      static_cast<std::size_t>(number(response_at(answer, 2, "response_range"), "count"));
  view.revision = revision_of(answer);
  return view;
}

void Barrier::release(const Call& call) {
  const std::string turn = base_ + "turn";
  Json oldest = range(KeyRange::prefix(base_ + "in/"), true);
  oldest["request_range"]["sort_target"] = "CREATE";
  oldest["request_range"]["sort_order"] = "ASCEND";
  oldest["request_range"]["limit"] = std::to_string(count_);
  const Json question = {
      {"success", Json::array({range(KeyRange::one(turn), true), std::move(oldest)})}};
  const Json answer = link_->gateway.call("/v3/kv/txn", question, call).json;
  const auto turns = key_values(response_at(answer, 0, "response_range"));
  const auto members = key_values(response_at(answer, 1, "response_range"));
  if (members.size() < count_) return;
  Transaction transaction;
  transaction.compare.push_back(
      unchanged_since(turn, turns.empty() ? 0 : turns.front().mod_revision));
  std::vector<Json> operations;
  operations.push_back(put(turn, ""));
  for (const KeyValue& member : members) operations.push_back(erase(member.key));
  transaction.success = packed(std::move(operations));
  link_->session.write(transaction, call);
}

void Barrier::await_change(std::int64_t after_revision, const Call& call) {
  WatchStream stream(link_->gateway, KeyRange::one(own_), after_revision + 1, call);
  while (true) {
    const auto message = stream.next(call);
    if (!message) throw Error(Code::timeout, "");
    // Anything but the beginning is worth a look: a change, a lost connection.
    if (message->kind != WatchStream::Message::Kind::created) return;
  }
}

bool Barrier::withdraw(const Call& call) {
  Transaction transaction;
  transaction.compare.push_back(exists(own_));
  transaction.success.push_back(erase(own_));
  transaction.success.push_back(put(base_ + "turn", ""));
  if (link_->session.write(transaction, call).applied) return true;
  return !look(call).present;
}

void Barrier::leave(const Status& reason) {
  Call last = link_->call(Deadline::after(withdraw_limit));
  last.interruptible = false;
  std::string missing = reason.message;
  try {
    if (reason.code == Code::timeout) missing = who_is_missing(last);
    if (!withdraw(last)) return;
  } catch (const Error& error) {
    leases_.retire(presence_);
    if (error.code() == Code::cancelled) throw Error(reason);
    log::warn("barrier \"{}\": could not withdraw ({}); others may count this member for 10 s more",
              name_, error.what());
  }
  if (reason.code != Code::timeout) throw Error(reason);
  throw Error(Code::timeout, fmt::format("barrier \"{}\" timed out: {}", name_, missing));
}

std::string Barrier::who_is_missing(const Call& call) {
  const Json question = range(KeyRange::prefix(base_ + "in/"))["request_range"];
  std::vector<std::string> arrived;
  std::set<std::size_t> ranks;
  for (const KeyValue& member :
       key_values(link_->gateway.call("/v3/kv/range", question, call).json)) {
    arrived.push_back(member.value);
    if (const auto rank = as_rank(member.value, count_)) ranks.insert(*rank);
  }
  std::sort(arrived.begin(), arrived.end());
  std::string text = fmt::format("{} of {} arrived ({})", arrived.size(), count_, listed(arrived));
  if (ranks.size() != arrived.size()) return text;
  std::vector<std::string> missing;
  for (std::size_t rank = 0; rank < count_; ++rank) {
    if (!ranks.contains(rank)) missing.push_back(std::to_string(rank));
  }
  return text + "; missing: " + listed(missing);
}

}  // namespace tensorbus::store::etcd
