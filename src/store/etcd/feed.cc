#include "store/etcd/feed.h"

#include <fmt/format.h>

namespace tensorbus::store::etcd {
namespace {

// A member that takes the request and says nothing is left after this time.
constexpr std::chrono::seconds first_answer_limit{5};

}  // namespace

Feed::Feed(std::shared_ptr<Access> access, KeyRange range, bool values)
    : access_(std::move(access)), range_(std::move(range)), values_(values) {}

std::optional<Feed::Step> Feed::next(const Call& call) {
  while (true) {
    if (!steps_.empty()) {
      Step step = std::move(steps_.front());
      steps_.pop_front();
      return step;
    }
    if (snapshot_needed_) return take_snapshot(call);
    if (!stream_ && !connect(call)) return std::nullopt;
    if (snapshot_needed_ || !steps_.empty()) continue;
    auto message = stream_->next(call);
    if (!message) return std::nullopt;
    accept(std::move(*message));
  }
}

bool Feed::connect(const Call& call) {
  while (!stream_ && !snapshot_needed_) {
    if (connection_lost_ && !resumable(call)) {
      snapshot_needed_ = true;
      return true;
    }
    auto stream = std::make_unique<WatchStream>(access_->gateway, range_, revision_ + 1, call);
    auto message = stream->next(call.until(Deadline::after(first_answer_limit)));
    if (message && message->kind == WatchStream::Message::Kind::created) {
      stream_ = std::move(stream);
      connection_lost_ = false;
      backoff_ = {};
      return true;
    }
    // Too little time is no failure of etcd's.
    if (!message && !connection_lost_ && call.deadline.expired()) return false;
    connection_lost_ = true;
    if (message) {
      accept(std::move(*message));
    } else {
      lost_cause_ = access_->gateway.settle({true, 0, {}, "no answer for 5 s"});
    }
    if (!backoff_.sleep(call)) {
      throw Error(Code::unreachable, fmt::format("{} cannot be reached by the deadline: {}",
                                                 access_->gateway.name(), lost_cause_));
    }
  }
  return true;
}

void Feed::accept(WatchStream::Message message) {
  using Kind = WatchStream::Message::Kind;
  switch (message.kind) {
    case Kind::created:
      return;
    case Kind::compacted:
      stream_.reset();
      snapshot_needed_ = true;
      return;
    case Kind::ended:
      stream_.reset();
      connection_lost_ = true;
      lost_cause_ = std::move(message.cause);
      return;
    case Kind::events:
      for (StoreEvent& event : message.events) {
        if (steps_.empty() || steps_.back().revision != event.revision) {
          steps_.push_back({false, false, event.revision, {}});
        }
        revision_ = static_cast<std::int64_t>(event.revision);
        steps_.back().events.push_back(std::move(event));
      }
      return;
  }
}

bool Feed::resumable(const Call& call) { return access_->session.data_id(call) == data_id_; }

Feed::Step Feed::take_snapshot(const Call& call) {
  const Json question = {{"success", Json::array({range(range_, !values_),
                                                  range(KeyRange::one(own_key("data_id")))})}};
  while (true) {
    const Json answer = access_->gateway.call("/v3/kv/txn", question, call).json;
    const auto id = key_values(response_at(answer, 1, "response_range"));
    if (id.empty()) {
      // An etcd that has just lost its data; give the new data a name, then look again.
      access_->session.data_id(call);
      continue;
    }
    Step step;
    step.snapshot = true;
    step.new_data = !data_id_.empty() && id.front().value != data_id_;
    data_id_ = id.front().value;
    revision_ = revision_of(answer);
    step.revision = static_cast<std::uint64_t>(revision_);
    for (KeyValue& found : key_values(response_at(answer, 0, "response_range"))) {
      step.events.push_back({StoreEvent::Kind::put, std::move(found.key), std::move(found.value),
                             static_cast<std::uint64_t>(found.mod_revision)});
    }
    snapshot_needed_ = false;
    return step;
  }
}

}  // namespace tensorbus::store::etcd
