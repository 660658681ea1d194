#include "store/etcd/stream.h"

namespace tensorbus::store::etcd {
namespace {

// A reader that is slower than etcd holds up its own connection, not this process's memory.
constexpr std::size_t max_waiting_lines = 1024;

std::string watch_body(const KeyRange& range, std::int64_t start_revision) {
  Json create = range_fields(range);
  create["start_revision"] = std::to_string(start_revision);
  return Json({{"create_request", std::move(create)}}).dump();
}

}  // namespace

bool WatchStream::Inbox::receive(std::string_view bytes) {
  partial_.append(bytes);
  std::vector<std::string> complete;
  std::size_t start = 0;
  for (auto end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n', start)) {
    complete.push_back(partial_.substr(start, end - start));
    start = end + 1;
  }
  partial_.erase(0, start);
  if (complete.empty()) return true;
  Call patient{Deadline::never()};
  patient.interruptible = false;
  signal.wait(patient,
              [&]() REQUIRES(signal.mutex) { return closed || lines.size() < max_waiting_lines; });
  bool go_on = true;
  signal.notify([&]() REQUIRES(signal.mutex) {
    go_on = !closed;
    for (std::string& line : complete) lines.push_back(std::move(line));
  });
  return go_on;
}

void WatchStream::Inbox::end(const HttpOutcome& ended) {
  signal.notify([&]() REQUIRES(signal.mutex) { outcome = ended; });
}

WatchStream::WatchStream(Gateway& gateway, const KeyRange& range, std::int64_t start_revision,
                         const Call& call)
    : gateway_(gateway) {
  exchange_ = gateway.stream("/v3/watch", watch_body(range, start_revision), inbox_, call);
}

WatchStream::~WatchStream() {
  inbox_->signal.notify([&]() REQUIRES(inbox_->signal.mutex) { inbox_->closed = true; });
  exchange_->abandon();
}

std::optional<WatchStream::Message> WatchStream::next(const Call& call) {
  Inbox& inbox = *inbox_;
  if (!inbox.signal.wait(call, [&]() REQUIRES(inbox.signal.mutex) {
        return !inbox.lines.empty() || inbox.outcome;
      })) {
    return std::nullopt;
  }
  std::optional<std::string> line;
  inbox.signal.notify([&]() REQUIRES(inbox.signal.mutex) {
    if (inbox.lines.empty()) return;
    line = std::move(inbox.lines.front());
    inbox.lines.pop_front();
  });
  if (line) return parse(*line);
  return Message{Message::Kind::ended, {}, gateway_.settle(*inbox.outcome)};
}

WatchStream::Message WatchStream::parse(const std::string& line) {
  using Kind = Message::Kind;
  const Json json = Json::parse(line, nullptr, false);
  if (const Json& error = child(json, "error"); !error.is_null()) {
    return {Kind::ended, {}, gateway_.settle_error(error)};
  }
  const Json& result = child(json, "result");
  if (number(result, "compact_revision") > 0) return {Kind::compacted, {}, {}};
  if (flag(result, "canceled")) {
    return {Kind::ended, {}, gateway_.settle_error({{"message", text(result, "cancel_reason")}})};
  }
  if (flag(result, "created")) return {Kind::created, {}, {}};
  Message message;
  const Json& events = child(result, "events");
  if (!events.is_array()) return message;
  for (const Json& event : events) {
    const Json& changed = child(event, "kv");
    StoreEvent& added = message.events.emplace_back();
    if (text(event, "type") == "DELETE") added.kind = StoreEvent::Kind::erase;
    added.key = from_base64(text(changed, "key"));
    added.value = from_base64(text(changed, "value"));
    added.revision = static_cast<std::uint64_t>(number(changed, "mod_revision"));
  }
  return message;
}

}  // namespace tensorbus::store::etcd
