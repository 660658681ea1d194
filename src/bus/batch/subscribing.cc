#include <algorithm>

#include "bus/batch/sending.h"

namespace tensorbus::bus {

// Done: this source is the one that is meant, and can answer.
Taken Sending::belongs(const std::string& batch, const End& group, std::int64_t generation,
                       const Matching& matching) const {
  if (batch != self_.key.batch || self_.membership.closing()) return Taken::no;
  if (!matching.own()) return Taken::later;
  if (group != matching.own()->name) return Taken::no;
  if (!active() || generation > source_->generation()) return Taken::later;
  return Taken::done;
}

Taken Sending::subscribe(const PeerConnectionPtr& connection, const AgentMessage& message,
                         Matching& matching) {
  const auto& wish = std::get<Subscribe>(message.body);
  const Taken ours = belongs(wish.batch, wish.group, message.generation, matching);
  if (ours != Taken::done) return ours;
  const auto refuse = [&](Status status) {
    self_.context.connections.send(*connection, message.generation, message.serial,
                                   Subscribed{std::move(status), 0, 0});
    return Taken::done;
  };
  if (message.generation < source_->generation()) {
    return refuse({Code::withdrawn, "that generation is over"});
  }
  try {
    const auto served = matching.serve(group_, wish);
    if (!served) return Taken::later;
    serve(connection, message.serial, wish, *served);
  } catch (const Error& error) {
    return refuse(error.status());
  }
  return Taken::done;
}

void Sending::serve(const PeerConnectionPtr& connection, std::uint64_t serial,
                    const Subscribe& wish, const ReaderGroups::Served& served) {
  std::int64_t bytes = 0;
  Exposure::Reading reading{{}, std::max(self_.record.verify, served.reader->verify)};
  for (std::size_t at = 0; at < served.streams.size(); ++at) {
    const plan::Stream& stream = served.streams[at];
    bytes += stream.payload_bytes;
    reading.streams.emplace_back(stream_number(serial, wish.streams[at]), stream);
  }
  if (wish.version != 0) read_versions_[wish.reader] = wish.version;
  source_->subscribe(connection, serial, {wish.reader, wish.registration, bytes},
                     exposure_.add(serial, std::move(reading), *source_));
}

Taken Sending::follow(const PeerConnectionPtr& connection, const AgentMessage& message,
                      const Matching& matching) {
  const auto& wish = std::get<Follow>(message.body);
  const Taken ours = belongs(wish.batch, wish.group, message.generation, matching);
  if (ours != Taken::done) return ours;
  if (message.generation == source_->generation() && herald_ != nullptr && herald_->is_first()) {
    herald_->add_follower(connection, message.serial, wish);
  }
  return Taken::done;
}

}  // namespace tensorbus::bus
