#include "fabric/ucx/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tensorbus::fabric::ucx {

Connection::Connection(const Home& home, const Address& remote, const std::string& secret,
                       Deadline deadline)
    : home_(home),
      role_(Role::caller),
      identity_(remote.identity),
      description_(to_string(remote.identity)),
      secret_(secret),
      greeting_deadline_(deadline),
      endpoint_(std::make_unique<Endpoint>(home.worker, home.outbox, remote.where)),
      stream_(random_number()),
      next_heartbeat_(home.clock.now() + heartbeat_every) {
  hello_ = {stream_, random_id(), home.self, remote.identity.id, home.worker.address()};
  send(Kind::hello, 0, 0, encode(hello_));
}

Connection::Connection(const Home& home, const Hello& hello, const std::string& secret)
    : home_(home),
      role_(Role::answerer),
      identity_(hello.identity),
      description_(to_string(hello.identity)),
      secret_(secret),
      hello_(hello),
      greeting_deadline_(home.clock.now() + greeting_time),
      endpoint_(std::make_unique<Endpoint>(home.worker, home.outbox, hello.address)),
      stream_(random_number()),
      remote_stream_(hello.stream),
      received_(1),
      next_heartbeat_(home.clock.now() + heartbeat_every),
      heard_(true) {
  if (hello.expected != home.self.id) {
    refuse({Code::invalid_argument,
            fmt::format("this address belongs to {} now; get a new one", to_string(home.self))});
    return;
  }
  welcome_ = {stream_, random_id(), home.self, {}};
  welcome_.proof = prove(secret_, Role::answerer, hello_, welcome_);
  send(Kind::welcome, 0, 0, encode(welcome_));
}

void Connection::send(Kind kind, std::uint64_t number, std::uint64_t index, std::string_view body) {
  std::unique_ptr<Outgoing> message = home_.outbox.take();
  if (body.size() > message->room().size()) {
    throw Error(Code::invalid_argument,
                fmt::format("a message of {} bytes to {}; at most {} fit", body.size(),
                            description_, message->room().size()));
  }
  body.copy(reinterpret_cast<char*>(message->body.get()), body.size());
  message->bytes = body.size();
  send(kind, number, index, std::move(message));
}

void Connection::send(Kind kind, std::uint64_t number, std::uint64_t index,
                      std::unique_ptr<Outgoing> message) {
  message->frame = encode(Frame{kind, remote_stream_, ++sent_, number, index});
  endpoint_->send(std::move(message));
}

bool Connection::accept(const Frame& frame) {
  if (lost_) return false;
  if (frame.sequence != received_ + 1) {
    lose_for(fmt::format("sent message {} after message {}", frame.sequence, received_));
    return false;
  }
  ++received_;
  heard_ = true;
  return true;
}

void Connection::greet(const Frame& frame, std::string_view body) {
  const bool calling = role_ == Role::caller && state_ == State::greeting;
  const bool answering = role_ == Role::answerer && state_ == State::greeting;
  if (frame.kind == Kind::welcome && calling && remote_stream_ == 0) {
    welcomed(body);
  } else if (frame.kind == Kind::ready && calling && remote_stream_ != 0) {
    state_ = State::up;
    secret_.clear();
  } else if (frame.kind == Kind::proof && answering) {
    proven(body);
  } else if (frame.kind == Kind::refused && calling) {
    const Status reason = decode_status(body);
    tell_peer_ = false;
    lose({reason.ok() ? Code::failed : reason.code,
          fmt::format("{} refused the connection: {}", description_, reason.message)});
  } else if (frame.kind == Kind::goodbye) {
    const Status reason = decode_status(body);
    tell_peer_ = false;
    lose({Code::peer_lost,
          fmt::format("{} closed the connection: {}", description_, reason.message)});
  } else {
    lose_for(fmt::format("sent a message of kind {} out of turn", static_cast<int>(frame.kind)));
  }
}

void Connection::welcomed(std::string_view body) {
  welcome_ = decode_welcome(body);
  remote_stream_ = welcome_.stream;
  if (!proofs_equal(welcome_.proof, prove(secret_, Role::answerer, hello_, welcome_))) {
    lose({Code::denied, fmt::format("{} does not know the secret that we were given for it; take "
                                    "the secret from the same place as the address",
                                    description_)});
    return;
  }
  if (welcome_.identity != identity_) {
    lose({Code::invalid_argument, fmt::format("{} answers at the address of {}; get a new address",
                                              to_string(welcome_.identity), description_)});
    return;
  }
  send(Kind::proof, 0, 0, prove(secret_, Role::caller, hello_, welcome_));
}

void Connection::proven(std::string_view body) {
  if (!proofs_equal(body, prove(secret_, Role::caller, hello_, welcome_))) {
    refuse({Code::denied, "the secret is wrong"});
    return;
  }
  state_ = State::up;
  secret_.clear();
  send(Kind::ready);
}

void Connection::refuse(Status reason) {
  send(Kind::refused, 0, 0, encode(reason));
  tell_peer_ = false;
  lose(std::move(reason));
}

void Connection::tick(TimePoint now) {
  if (lost_) return;
  if (const auto failure = endpoint_->failure()) {
    tell_peer_ = false;
    lose(status_of(state_ == State::up ? Code::peer_lost : Code::unreachable,
                   fmt::format("the connection to {} broke", description_), *failure));
    return;
  }
  if (state_ == State::greeting && now >= greeting_deadline_.at()) {
    lose({Code::timeout, fmt::format("{} did not answer our greeting in time", description_)});
    return;
  }
  if (now < next_heartbeat_) return;
  // Counted by the ticks of this process, not by the time that passed: a process that was stopped
  // itself must not blame its peers when it goes on.
  missed_ = heard_ ? 0 : missed_ + 1;
  heard_ = false;
  next_heartbeat_ = now + heartbeat_every;
  if (missed_ >= heartbeats_missed_when_lost) {
    lose({state_ == State::up ? Code::peer_lost : Code::unreachable,
          fmt::format("no sign of life from {} for {} heartbeats: it is stopped, or the link to it "
                      "is cut",
                      description_, missed_)});
    return;
  }
  if (remote_stream_ != 0) send(Kind::heartbeat);
}

TimePoint Connection::next_tick() const noexcept {
  if (state_ == State::up) return next_heartbeat_;
  return std::min(next_heartbeat_, greeting_deadline_.at());
}

void Connection::lose(Status reason) {
  if (!lost_) lost_ = std::move(reason);
}

void Connection::lose_for(std::string_view what_it_did) {
  lose(
      {Code::peer_lost, fmt::format("{} {}; the connection was ended", description_, what_it_did)});
}

}  // namespace tensorbus::fabric::ucx
