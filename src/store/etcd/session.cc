#include "store/etcd/session.h"

#include <fmt/format.h>

#include "base/clock.h"

namespace tensorbus::store::etcd {
namespace {

constexpr std::chrono::seconds marker_time_to_live{600};

Json txn_body(const Json& compare, const Json& success, const Json& failure) {
  return {{"compare", compare}, {"success", success}, {"failure", failure}};
}

Json joined(Json first, const Json& rest) {
  Json all = Json::array({std::move(first)});
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

KeyValue marker_in(const Json& answer) {
  const auto found = key_values(response_at(answer, 0, "response_range"));
  return found.empty() ? KeyValue() : found.front();
}

// What the marker holds when it was written to shut out a copy that may still be on its way.
constexpr std::string_view shut = "shut";

}  // namespace

const Json& WriteResult::response(std::size_t index, const char* kind) const {
  // The marker's own operation comes first.
  return response_at(responses, index + 1, kind);
}

WriteResult Session::write(const Transaction& transaction, const Call& call) {
  while (true) {
    const auto epoch = current_epoch(call);
    // A marker is given back only when its version is certain; otherwise it is never used again.
    Marker marker = take_marker(*epoch);
    const Json compare = joined(version_is(marker.key, marker.version), transaction.compare);
    const Json success = joined(put(marker.key, "", epoch->lease), transaction.success);
    const Json failure = joined(range(KeyRange::one(marker.key)), transaction.failure);
    Answer answer;
    try {
      answer = gateway_.call("/v3/kv/txn", txn_body(compare, success, failure), call);
    } catch (const Refusal& refusal) {
      if (!refusal.resent()) give_back(*epoch, marker);
      if (refusal.kind() != Refusal::Kind::lease_not_found) throw;
      // The marker's condition held. If the marker was written before, it exists and so does its
      // lease.
      if (marker.version > 0 || lease_lives(epoch->lease, call)) throw;
      markers_lost(epoch, refusal.resent(), call);
      continue;
    }
    if (flag(answer.json, "succeeded")) {
      ++marker.version;
      give_back(*epoch, std::move(marker));
      return {true, std::move(answer.json)};
    }
    KeyValue seen = marker_in(answer.json);
    if (seen.version == marker.version && answer.resent) {
      // A condition of the caller failed, but a copy may still be on its way and meet it later.
      // Writing the marker makes that impossible, or tells that it has happened.
      const Json shut_out =
          txn_body(Json::array({compare[0]}), Json::array({put(marker.key, shut, epoch->lease)}),
                   Json::array({failure[0]}));
      const Answer settled = gateway_.call("/v3/kv/txn", shut_out, call);
      if (flag(settled.json, "succeeded")) {
        seen = {marker.key, std::string(shut), 0, 0, marker.version + 1};
      } else {
        seen = marker_in(settled.json);
      }
    }
    const bool written = seen.version == marker.version + 1 && answer.resent;
    if (written || seen.version == marker.version) {
      marker.version = seen.version;
      give_back(*epoch, std::move(marker));
      if (written && seen.value != shut) return {true, nullptr};
      return {false, std::move(answer.json)};
    }
    markers_lost(epoch, answer.resent, call);
  }
}

void Session::markers_lost(const std::shared_ptr<Epoch>& epoch, bool resent, const Call& call) {
  forget(epoch);
  // What an empty etcd does not hold cannot have been applied to it.
  if (!resent || data_id(call) != epoch->data_id) return;
  throw Error(
      Code::failed,
      fmt::format("{}: the answer to a write was lost and contact was lost for so long that "
                  "nobody can tell any more whether it was applied; read the key",
                  gateway_.name()));
}

std::string Session::data_id(const Call& call) {
  const std::string key = own_key("data_id");
  const std::string proposed = random_name();
  const Answer answer =
      gateway_.call("/v3/kv/txn",
                    txn_body(Json::array({version_is(key, 0)}), Json::array({put(key, proposed)}),
                             Json::array({range(KeyRange::one(key))})),
                    call);
  if (flag(answer.json, "succeeded")) return proposed;
  const auto found = key_values(response_at(answer.json, 0, "response_range"));
  return found.empty() ? std::string() : found.front().value;
}

void Session::end(const Call& call) {
  std::shared_ptr<Epoch> epoch;
  {
    const Lock lock(mutex_);
    epoch = std::move(epoch_);
    epoch_.reset();
  }
  if (epoch) revoke_lease(gateway_, epoch->lease, call);
}

std::shared_ptr<Session::Epoch> Session::current_epoch(const Call& call) {
  {
    const Lock lock(mutex_);
    if (is_fresh()) return epoch_;
  }
  auto epoch = std::make_shared<Epoch>();
  epoch->name = random_name();
  epoch->granted = now();
  epoch->lease = random_lease_id();
  epoch->data_id = data_id(call);
  grant_lease(gateway_, epoch->lease, marker_time_to_live.count(), call);
  std::shared_ptr<Epoch> used;
  {
    const Lock lock(mutex_);
    if (!is_fresh()) epoch_ = epoch;
    used = epoch_;
  }
  // Another caller was faster.
  if (used != epoch) revoke_lease(gateway_, epoch->lease, call);
  return used;
}

bool Session::is_fresh() const {
  return epoch_ && now() - epoch_->granted < marker_time_to_live / 2;
}

void Session::forget(const std::shared_ptr<Epoch>& epoch) {
  const Lock lock(mutex_);
  if (epoch_ == epoch) epoch_.reset();
}

bool Session::lease_lives(std::int64_t lease, const Call& call) {
  const Json question = {{"ID", std::to_string(lease)}};
  return number(gateway_.call("/v3/lease/timetolive", question, call).json, "TTL") > 0;
}

Session::Marker Session::take_marker(Epoch& epoch) {
  const Lock lock(mutex_);
  if (epoch.free.empty()) {
    return {own_key(fmt::format("sessions/{}/{}", epoch.name, epoch.markers_made++)), 0};
  }
  Marker marker = std::move(epoch.free.back());
  epoch.free.pop_back();
  return marker;
}

void Session::give_back(Epoch& epoch, Marker marker) {
  const Lock lock(mutex_);
  epoch.free.push_back(std::move(marker));
}

std::int64_t grant_lease(Gateway& gateway, std::int64_t id, std::int64_t seconds,
                         const Call& call) {
  const Json wanted = {{"ID", std::to_string(id)}, {"TTL", std::to_string(seconds)}};
  try {
    return number(gateway.call("/v3/lease/grant", wanted, call).json, "TTL");
  } catch (const Refusal& refusal) {
    if (refusal.kind() != Refusal::Kind::lease_exists) throw;
  }
  const Json question = {{"ID", std::to_string(id)}};
  return number(gateway.call("/v3/lease/timetolive", question, call).json, "grantedTTL");
}

void revoke_lease(Gateway& gateway, std::int64_t id, const Call& call) {
  try {
    gateway.call("/v3/lease/revoke", {{"ID", std::to_string(id)}}, call);
  } catch (const Refusal& refusal) {
    if (refusal.kind() != Refusal::Kind::lease_not_found) throw;
  }
}

}  // namespace tensorbus::store::etcd
