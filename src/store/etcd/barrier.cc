#include "store/etcd/barrier.h"

#include <fmt/format.h>

#include <charconv>

#include "base/log.h"
#include "store/engine/barriers.h"
#include "store/etcd/stream.h"

namespace tensorbus::store::etcd {
namespace {

// How long a member whose time is up may take to tell the others.
constexpr std::chrono::seconds withdraw_limit{1};
// A member of etcd that takes the watch and says nothing is left after this time.
constexpr std::chrono::seconds created_limit{5};

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

// What a member's key holds: the count that the member came for, and its name.
std::string arrival(std::size_t count, const std::string& member) {
  return fmt::format("{} {}", count, member);
}

struct Arrival {
  std::size_t count = 0;
  std::string member;
};
Arrival parse_arrival(const std::string& text) {
  Arrival parsed;
  const char* end = text.data() + text.size();
  const char* space = std::from_chars(text.data(), end, parsed.count).ptr;
  if (space < end) parsed.member.assign(space + 1, end);
  return parsed;
}

}  // namespace

Barrier::Barrier(std::shared_ptr<Access> access, Leases& leases, const std::string& name,
                 std::size_t count, const std::string& member)
    : access_(std::move(access)),
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
      if (view.inside && view.wanted != count_) {
        throw Error(Code::invalid_argument,
                    fmt::format("barrier \"{}\" is for {} members, says {}, who waits there; a "
                                "newcomer says that it is for {}",
                                name_, view.wanted, view.oldest, count_));
      }
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
    acknowledged_ = false;
    presence_ = leases_.presence(call);
    own_ = base_ + "in/" + random_name();
    Transaction transaction;
    transaction.success.push_back(put(own_, arrival(count_, member_), presence_->lease->id));
    try {
      access_->session.write(transaction, call);
      acknowledged_ = true;
      return;
    } catch (const Refusal& refusal) {
      if (refusal.kind() != Refusal::Kind::lease_not_found) throw;
      leases_.retire(presence_);
    }
  }
}

Json Barrier::arrivals_by_age() const {
  Json arrivals = range(KeyRange::prefix(base_ + "in/"));
  arrivals["request_range"]["sort_target"] = "CREATE";
  arrivals["request_range"]["sort_order"] = "ASCEND";
  return arrivals;
}

Barrier::View Barrier::look(const Call& call) {
  Json oldest = arrivals_by_age();
  oldest["request_range"]["limit"] = "1";
  const Json question = {
      {"success", Json::array({range(KeyRange::one(own_), true),
                               range(KeyRange::one(presence_->key), true), std::move(oldest)})}};
  const Json answer = access_->gateway.call("/v3/kv/txn", question, call).json;
  View view;
  view.inside = number(response_at(answer, 0, "response_range"), "count") > 0;
  view.present = number(response_at(answer, 1, "response_range"), "count") > 0;
  const Json& arrivals = response_at(answer, 2, "response_range");
  view.arrived = static_cast<std::size_t>(number(arrivals, "count"));
  const auto oldest_members = key_values(arrivals);
  view.wanted = count_;
  if (!oldest_members.empty()) {
    const Arrival first = parse_arrival(oldest_members.front().value);
    view.wanted = first.count;
    view.oldest = first.member;
  }
  view.revision = revision_of(answer);
  return view;
}

void Barrier::release(const Call& call) {
  const std::string turn = base_ + "turn";
  Json oldest = arrivals_by_age();
  oldest["request_range"]["limit"] = std::to_string(count_);
  const Json question = {
      {"success", Json::array({range(KeyRange::one(turn), true), std::move(oldest)})}};
  const Json answer = access_->gateway.call("/v3/kv/txn", question, call).json;
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
  access_->session.write(transaction, call);
}

void Barrier::await_change(std::int64_t after_revision, const Call& call) {
  using Kind = WatchStream::Message::Kind;
  WatchStream stream(access_->gateway, KeyRange::one(own_), after_revision + 1, call);
  // Whatever comes but the beginning is worth a look: a change, silence, a lost connection.
  auto message = stream.next(call.until(Deadline::after(created_limit)));
  if (message && message->kind == Kind::created) message = stream.next(call);
  if (message && message->kind == Kind::ended) backoff_.sleep(call);
  if (call.deadline.expired()) throw Error(Code::timeout, "");
}

bool Barrier::withdraw(const Call& call) {
  Transaction transaction;
  transaction.compare.push_back(exists(own_));
  transaction.success.push_back(erase(own_));
  transaction.success.push_back(put(base_ + "turn", ""));
  if (access_->session.write(transaction, call).applied) return true;
  // An arrival that was never acknowledged may also have got lost.
  return !acknowledged_ || !look(call).present;
}

void Barrier::leave(const Status& reason) {
  Call last = access_->call(Deadline::after(withdraw_limit));
  last.interruptible = false;
  std::string missing = reason.message;
  try {
    if (reason.code == Code::timeout) missing = who_is_missing(last);
    if (!withdraw(last)) return;
    // A late copy of the arrival must not outlive this call.
    if (!acknowledged_) leases_.retire(presence_);
  } catch (const Error& error) {
    leases_.retire(presence_);
    if (error.code() == Code::cancelled) throw Error(reason);
    log::warn("barrier \"{}\": could not withdraw ({}); others may count this member for 10 s more",
              name_, error.what());
  }
  if (reason.code != Code::timeout) throw Error(reason);
  throw Error(Code::timeout, "timed out; " + missing);
}

std::string Barrier::who_is_missing(const Call& call) {
  const Json question = arrivals_by_age()["request_range"];
  std::vector<std::string> arrived;
  for (const KeyValue& found :
       key_values(access_->gateway.call("/v3/kv/range", question, call).json)) {
    arrived.push_back(parse_arrival(found.value).member);
  }
  return describe_arrivals(name_, count_, std::move(arrived));
}

}  // namespace tensorbus::store::etcd
