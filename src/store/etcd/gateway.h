// Calls of etcd's JSON gateway that get through: next host, log-in and retry are settled here.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "store/etcd/http.h"
#include "store/etcd/json.h"

namespace tensorbus::store::etcd {

// etcd answered, and the answer is an error of its own.
class Refusal : public Error {
 public:
  enum class Kind { lease_not_found, lease_exists, other };

  Refusal(Code code, const std::string& message, Kind kind, bool resent)
      : Error(code, message), kind_(kind), resent_(resent) {}

  Kind kind() const noexcept { return kind_; }
  // An earlier copy of the request was sent and its answer lost.
  bool resent() const noexcept { return resent_; }

 private:
  Kind kind_;
  bool resent_;
};

struct Answer {
  Json json;
  bool resent = false;  // as in Refusal
};

class Gateway {
 public:
  explicit Gateway(const StoreUrl& url);

  // Sends the request until it is answered, so etcd may do it twice. Throws Refusal, and at the
  // deadline Error(unreachable) when tries failed, Error(timeout) when etcd was merely silent.
  Answer call(const std::string& path, const Json& body, const Call& call);

  // One try on the host that answered last; the receiver gets the answer while it lasts.
  std::shared_ptr<Exchange> stream(const std::string& path, std::string body,
                                   std::shared_ptr<Receiver> receiver, const Call& call);
  // Judges a stream that ended: throws Refusal unless another try is worth while, and prepares for
  // that try. Returns what happened.
  std::string settle(const HttpOutcome& outcome);
  // As settle(), for an error that came inside the stream.
  std::string settle_error(const Json& error);

  // Whether the last try reached etcd.
  bool reachable() const noexcept { return reachable_; }
  const std::string& name() const noexcept { return name_; }
  // Ends all that is under way; further calls fail.
  void stop() noexcept { pool_.stop(); }

 private:
  // What to do about an answer that is not a result.
  struct Failure {
    enum class Next { same_host, other_host, give_up } next = Next::give_up;
    Code code = Code::failed;
    Refusal::Kind kind = Refusal::Kind::other;
    std::string cause;
  };

  Answer call_with_token(const std::string& path, const std::string& body, const Call& call,
                         bool with_token);
  Failure examine(const HttpOutcome& outcome) const;
  Failure examine_error(const Json& error, int http_status) const;
  void prepare_retry(const Failure& failure, std::size_t failed_host);
  std::string token(const Call& call);
  [[noreturn]] void throw_at_deadline(const std::string& cause, bool sent) const;

  const StoreUrl url_;
  const std::string name_;
  HttpPool pool_;
  std::atomic<std::size_t> host_ = 0;  // the one that is asked first
  std::atomic<bool> reachable_ = false;
  Mutex token_mutex_;
  std::string token_ GUARDED_BY(token_mutex_);
  bool login_needed_ GUARDED_BY(token_mutex_);  // etcd may say that it has no users at all
};

}  // namespace tensorbus::store::etcd
