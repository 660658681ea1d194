#include "store/etcd/gateway.h"

#include <fmt/format.h>

#include "base/log.h"
#include "os/net/tcp.h"

namespace tensorbus::store::etcd {
namespace {

// How long one try may take: a member that is stopped or cut off costs this much once.
constexpr std::chrono::seconds try_limit{5};

enum GrpcCode : std::int64_t {
  deadline_exceeded = 4,
  not_found = 5,
  permission_denied = 7,
  failed_precondition = 9,
  invalid_argument = 3,
  unavailable = 14,
  unauthenticated = 16,
};

std::string host_names(const StoreUrl& url) {
  std::string names;
  for (const StoreUrl::Host& host : url.hosts) {
    if (!names.empty()) names += ", ";
    names += os::host_port(host.name, host.port);
  }
  return names;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

Gateway::Gateway(const StoreUrl& url)
    : url_(url), name_("etcd at " + host_names(url)), login_needed_(!url.user.empty()) {}

Answer Gateway::call(const std::string& path, const Json& body, const Call& call) {
  return call_with_token(path, body.dump(), call, true);
}

Answer Gateway::call_with_token(const std::string& path, const std::string& body, const Call& call,
                                bool with_token) {
  Backoff backoff;
  bool resent = false;
  bool fresh_token = false;
  std::string cause;
  for (std::size_t failed_tries = 0;;) {
    if (call.deadline.expired()) throw_at_deadline(cause, resent);
    const std::size_t host = host_;
    const std::string proof = with_token ? token(call) : std::string();
    const ExchangeGuard exchange(pool_.start({url_.hosts[host], path, body, proof}));
    Failure failure;
    if (exchange->wait(call.until(Deadline::after(try_limit)))) {
      const HttpOutcome& outcome = exchange->outcome();
      if (outcome.status == 200) {
        Json json = Json::parse(outcome.body, nullptr, false);
        if (!json.is_discarded()) {
          reachable_ = true;
          return {std::move(json), resent};
        }
      }
      failure = examine(outcome);
      if (failure.next == Failure::Next::give_up ||
          (failure.next == Failure::Next::same_host && fresh_token)) {
        throw Refusal(failure.code, fmt::format("{}: {}", name_, failure.cause), failure.kind,
                      resent);
      }
      resent = resent || outcome.sent;
    } else {
      if (call.deadline.expired()) {
        reachable_ = false;
        throw_at_deadline(cause, true);
      }
      failure = {Failure::Next::other_host, Code::unreachable, {}, "no answer for 5 s"};
      resent = true;
    }
    prepare_retry(failure, host);
    if (failure.next == Failure::Next::same_host) {
      fresh_token = true;
      continue;
    }
    cause = failure.cause;
    if (failed_tries++ == 0) {
      log::debug("{}: {}; trying again",
                 os::host_port(url_.hosts[host].name, url_.hosts[host].port), cause);
    }
    if (failed_tries % url_.hosts.size() == 0 && !backoff.sleep(call)) {
      throw_at_deadline(cause, resent);
    }
  }
}

void Gateway::throw_at_deadline(const std::string& cause, bool sent) const {
  if (!cause.empty()) {
    throw Error(Code::unreachable,
                fmt::format("{} cannot be reached by the deadline: {}", name_, cause));
  }
  throw Error(Code::timeout, sent ? fmt::format("{} did not answer by the deadline", name_)
                                  : fmt::format("the deadline passed before {} was asked", name_));
}

Gateway::Failure Gateway::examine(const HttpOutcome& outcome) const {
  using Next = Failure::Next;
  if (outcome.status == 0) return {Next::other_host, Code::unreachable, {}, outcome.cause};
  const Json error = Json::parse(outcome.body, nullptr, false);
  if (error.is_object()) return examine_error(error, outcome.status);
  if (outcome.status == 404) {
    return {Next::give_up,
            Code::unsupported,
            {},
            "it answers 404: its JSON gateway is disabled (--enable-grpc-gateway=false), or this "
            "is not etcd 3.4 or later"};
  }
  if (outcome.status >= 500) {
    return {Next::other_host, Code::unreachable, {}, fmt::format("HTTP status {}", outcome.status)};
  }
  return {Next::give_up,
          Code::failed,
          {},
          fmt::format("it answers as etcd never does (HTTP status {})", outcome.status)};
}

Gateway::Failure Gateway::examine_error(const Json& error, int http_status) const {
  using Next = Failure::Next;
  std::string message = text(error, "message");
  if (message.empty()) message = text(error, "error");
  if (message.empty()) message = fmt::format("HTTP status {}", http_status);
  std::int64_t code = number(error, "code");
  if (code == 0) code = number(error, "grpc_code");
  if (code == unauthenticated || contains(message, "invalid auth token")) {
    return {Next::same_host, Code::denied, {}, message};
  }
  if (code == unavailable || code == deadline_exceeded || http_status >= 502) {
    return {Next::other_host, Code::unreachable, {}, message};
  }
  if (code == not_found && contains(message, "lease not found")) {
    return {Next::give_up, Code::failed, Refusal::Kind::lease_not_found, message};
  }
  if (code == failed_precondition && contains(message, "lease already exists")) {
    return {Next::give_up, Code::failed, Refusal::Kind::lease_exists, message};
  }
  if (contains(message, "user name is empty")) {
    return {Next::give_up,
            Code::denied,
            {},
            "it asks for a user and password (etcd://user:password@host)"};
  }
  if (contains(message, "authentication failed")) {
    return {Next::give_up,
            Code::denied,
            {},
            fmt::format("user \"{}\" or its password is wrong", url_.user)};
  }
  if (code == permission_denied) {
    return {Next::give_up,
            Code::denied,
            {},
            fmt::format("user \"{}\" lacks a permission: it must read and write its own keys and "
                        "those under \"{}\" ({})",
                        url_.user, own_prefix, message)};
  }
  const bool callers_fault = code == invalid_argument && contains(message, "too large");
  return {Next::give_up, callers_fault ? Code::invalid_argument : Code::failed, {}, message};
}

void Gateway::prepare_retry(const Failure& failure, std::size_t failed_host) {
  if (failure.next == Failure::Next::same_host) {
    const Lock lock(token_mutex_);
    token_.clear();
    return;
  }
  reachable_ = false;
  // Only if no other caller has moved on already.
  host_.compare_exchange_strong(failed_host, (failed_host + 1) % url_.hosts.size());
}

std::string Gateway::token(const Call& call) {
  {
    const Lock lock(token_mutex_);
    if (!login_needed_ || !token_.empty()) return token_;
  }
  std::string fresh;
  bool needed = true;
  try {
    const Json login = {{"name", url_.user}, {"password", url_.password}};
    fresh = text(call_with_token("/v3/auth/authenticate", login.dump(), call, false).json, "token");
  } catch (const Refusal& refusal) {
    if (!contains(refusal.what(), "authentication is not enabled")) throw;
    log::warn("{} has no users: connected without the password that was given", name_);
    needed = false;
  }
  const Lock lock(token_mutex_);
  login_needed_ = needed;
  token_ = fresh;
  return fresh;
}

std::shared_ptr<Exchange> Gateway::stream(const std::string& path, std::string body,
                                          std::shared_ptr<Receiver> receiver, const Call& call) {
  return pool_.start({url_.hosts[host_], path, std::move(body), token(call)}, std::move(receiver));
}

std::string Gateway::settle(const HttpOutcome& outcome) {
  if (outcome.status == 200) return "the stream ended";
  const Failure failure = examine(outcome);
  if (failure.next == Failure::Next::give_up) {
    throw Refusal(failure.code, fmt::format("{}: {}", name_, failure.cause), failure.kind, false);
  }
  prepare_retry(failure, host_);
  return failure.cause;
}

std::string Gateway::settle_error(const Json& error) {
  const Failure failure = examine_error(error, 0);
  if (failure.next == Failure::Next::give_up) {
    throw Refusal(failure.code, fmt::format("{}: {}", name_, failure.cause), failure.kind, false);
  }
  prepare_retry(failure, host_);
  return failure.cause;
}

}  // namespace tensorbus::store::etcd
