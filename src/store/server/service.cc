#include "store/server/service.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"

namespace tensorbus::store {
namespace {

constexpr std::string_view workers_key = "init/";
constexpr std::uint64_t no_id = 0;
// A client retries until its deadline; nobody waits longer than this for a lost reply.
constexpr auto session_memory = std::chrono::hours(1);
// As many unsettled replies as a client with thousands of threads needs; more is a client that
// never settles any.
constexpr std::size_t most_held = max_frame_size;
// Patterns of one client at a time: every change of a key under the prefix of a pattern is compared
// with the pattern.
constexpr std::size_t most_patterns = 1000;

bool is_pattern(Op op, std::string_view body) {
  if (op == Op::watch) return true;
  if (op != Op::wait) return false;
  Decoder decoder(body);
  return read_condition(decoder).is_pattern;
}

}  // namespace

Service::Service(const StoreServerOptions& options)
    : token_(options.token ? options.token : config::variable("TENSORBUS_TOKEN")),
      allow_torch_(options.allow_torch || !token_),
      lease_clock_(now()) {
  if (!options.journal.empty()) open_journal(options.journal);
}

void Service::serve(Connection& connection) {
  while (connection.has_work()) {
    const std::size_t before = connection.input().size();
    try {
      if (!serve_one(connection)) break;
    } catch (const Error& error) {
      refuse(connection, error.what());
      break;
    }
    if (connection.input().size() == before) break;
  }
  if (!connection.closing && !connection.congested() &&
      connection.input().size() > max_frame_size + frame_header_size) {
    refuse(connection, "the request is too large");
  }
  if (connection.has_output() || connection.closing) mark_dirty(connection);
}

// False when there is no whole request; `needed` then says what it takes.
bool Service::serve_one(Connection& connection) {
  switch (connection.state) {
    case Connection::State::greeting:
      return greet(connection);
    case Connection::State::proving:
      return check_proof(connection);
    case Connection::State::native:
      return serve_native(connection);
    case Connection::State::torch_greeting:
    case Connection::State::torch:
      return serve_torch(connection);
  }
  return false;
}

void Service::refuse(Connection& connection, const std::string& reason) {
  counters_.refused.add();
  log::warn("connection {} is closed: {}", connection.number, reason);
  if (connection.state == Connection::State::native) {
    connection.reply(no_id, Code::failed, reason);
  }
  connection.closing = true;
}

bool Service::greet(Connection& connection) {
  const auto first = static_cast<std::uint8_t>(connection.input().front());
  if (first == static_cast<std::uint8_t>(TorchOp::validate)) {
    if (!allow_torch_) {
      throw Error(Code::denied,
                  "a torch client came, but this server asks for a token, which torch's protocol "
                  "cannot carry; start the server with --allow-torch to admit it");
    }
    connection.state = Connection::State::torch_greeting;
    return serve_torch(connection);
  }
  if (first != static_cast<std::uint8_t>(hello_magic.front())) {
    throw Error(Code::failed, fmt::format("its first byte, {}, belongs to no protocol we speak",
                                          static_cast<unsigned>(first)));
  }
  connection.needed = hello_size;
  if (connection.input().size() < hello_size) return false;
  greet_native(connection);
  return true;
}

void Service::greet_native(Connection& connection) {
  connection.client_hello = decode_hello(connection.input().substr(0, hello_size));
  connection.consume(hello_size);
  connection.server_hello = {protocol_version, token_ ? flag_token : std::uint16_t{0}, instance_,
                             random_id()};
  connection.out += encode(connection.server_hello);
  if (connection.client_hello.version != protocol_version) {
    throw Error(Code::failed, fmt::format("its protocol version is {}, ours is {}",
                                          connection.client_hello.version, protocol_version));
  }
  if (token_) {
    connection.state = Connection::State::proving;
    connection.needed = proof_size;
  } else {
    admit(connection);
  }
}

void Service::admit(Connection& connection) {
  connection.state = Connection::State::native;
  connection.needed = frame_header_size;
  const std::string session(view(connection.client_hello.id));
  if (const auto known = by_session_.find(session); known != by_session_.end()) {
    // Before the client repeats its requests on this connection, what it asked on the old one must
    // be forgotten: the client would stand twice before a barrier.
    Connection* old = known->second;
    forget(*old);
    replaced_.push_back(old);
  }
  by_session_[session] = &connection;
}

bool Service::check_proof(Connection& connection) {
  const Hello& client = connection.client_hello;
  const Hello& server = connection.server_hello;
  if (!proofs_equal(connection.input().substr(0, proof_size),
                    token_proof(*token_, false, client, server))) {
    throw Error(Code::denied, "its token is wrong");
  }
  connection.consume(proof_size);
  connection.out += token_proof(*token_, true, client, server);
  admit(connection);
  return true;
}

bool Service::serve_native(Connection& connection) {
  const std::string_view input = connection.input();
  Decoder header(input);
  const auto size = header.integer<std::uint32_t>();
  if (size < frame_header_size - 4 || size > max_frame_size) {
    throw Error(Code::failed, fmt::format("a frame of {} bytes is out of bounds", size));
  }
  connection.needed = 4 + size;
  if (input.size() < connection.needed) return false;
  const auto id = header.integer<std::uint64_t>();
  const auto op = static_cast<Op>(header.integer<std::uint8_t>());
  const TimePoint start = now();
  try {
    handle_native(connection, id, op,
                  input.substr(frame_header_size, 4 + size - frame_header_size));
  } catch (const Error& error) {
    counters_.refused.add();
    connection.reply(id, error.code(), error.what());
  }
  counters_.requests.add();
  counters_.request_time.record(now() - start);
  connection.consume(4 + size);
  connection.needed = frame_header_size;
  return true;
}

void Service::handle_native(Connection& connection, std::uint64_t id, Op op,
                            std::string_view body) {
  const std::string_view session = view(connection.client_hello.id);
  if (op == Op::cancel) {
    cancel_native(connection, body);
  } else if (is_blocking(op) && op != Op::wait_all) {
    // A barrier that was passed while the reply got lost must not be entered again.
    if (const std::string* known = sessions_.find(session, id)) {
      connection.reply(id, Code::ok, *known);
    } else if (op == Op::barrier) {
      Decoder decoder(body);
      const auto settled = decoder.integer<std::uint64_t>();
      sessions_.settle(session, Sessions::Kind::barrier, settled);
      check_settled(session);
      begin(connection, id, op, decoder.raw(decoder.left()), false, settled);
    } else {
      begin(connection, id, op, body, false);
    }
  } else if (is_change(op)) {
    Decoder decoder(body);
    const auto settled = decoder.integer<std::uint64_t>();
    if (const std::string* known = sessions_.find(session, id)) {
      connection.reply(id, Code::ok, *known);
    } else {
      sessions_.settle(session, Sessions::Kind::change, settled);
      check_settled(session);
      connection.reply(id, Code::ok, change(op, decoder.raw(decoder.left()), session, id, settled));
    }
  } else if (op < Op::wait || op == Op::lease_times) {
    connection.reply(id, Code::ok, engine_.execute(op, body, lease_time()));
  } else {
    throw Error(Code::invalid_argument,
                fmt::format("unknown operation {}", static_cast<unsigned>(op)));
  }
}

void Service::check_settled(std::string_view session) const {
  if (sessions_.held(session) <= most_held) return;
  throw Error(Code::invalid_argument,
              "too many replies are not settled: a request says which ones it still waits for");
}

void Service::cancel_native(Connection& connection, std::string_view body) {
  Decoder decoder(body);
  const auto target = decoder.integer<std::uint64_t>();
  decoder.end();
  const auto found = connection.blocked.find(target);
  if (found == connection.blocked.end()) return;  // the answer and the cancel crossed
  const Ticket ticket = found->second;
  const bool watch = waiters_.at(ticket).op == Op::watch;
  const std::string missing = engine_.end(ticket);
  waiters_.erase(ticket);
  connection.unblock(target);
  if (!watch) connection.reply(target, Code::timeout, missing);
}

std::string Service::change(Op op, std::string_view body, std::string_view session,
                            std::uint64_t id, std::uint64_t settled) {
  const TimePoint time = now();
  std::string reply = engine_.execute(op, body, lease_clock_.at(time));
  if (journal_) journal_->append({op, session, id, settled, body});
  if (!session.empty()) {
    sessions_.remember(session, Sessions::Kind::change, id, reply, time);
  }
  return reply;
}

void Service::begin(Connection& connection, std::uint64_t id, Op op, std::string_view body,
                    bool torch, std::uint64_t settled) {
  if (!torch && connection.blocked.contains(id)) {
    throw Error(Code::invalid_argument, fmt::format("request {} is being waited for already", id));
  }
  const bool pattern = is_pattern(op, body);
  if (pattern && connection.patterns.size() >= most_patterns) {
    throw Error(Code::invalid_argument,
                fmt::format("this client waits for {} patterns and watches already; that is the "
                            "most for one",
                            most_patterns));
  }
  const Ticket ticket = next_ticket_++;
  waiters_.emplace(ticket, Waiter{&connection, id, op, torch, settled});
  if (torch) {
    connection.torch_wait = ticket;
  } else {
    connection.blocked.emplace(id, ticket);
    if (pattern) connection.patterns.insert(id);
  }
  try {
    engine_.begin(ticket, op, body);
  } catch (const Error&) {
    waiters_.erase(ticket);
    connection.torch_wait.reset();
    connection.unblock(id);
    throw;
  }
}

void Service::answer(Ticket ticket, std::string_view body) {
  const Waiter waiter = waiters_.at(ticket);
  Connection& connection = *waiter.connection;
  mark_dirty(connection);
  if (waiter.torch) {
    connection.out += torch_integer(std::uint8_t{0});
    connection.torch_wait.reset();
    connection.torch_promise = ticket;
    waiters_.erase(ticket);
    if (!connection.input().empty()) resumed_.push_back(&connection);
    return;
  }
  connection.reply(waiter.id, Code::ok, body);
  if (waiter.op == Op::watch) return;
  if (waiter.op == Op::barrier) {
    const std::string_view session = view(connection.client_hello.id);
    if (journal_) journal_->append({Op::barrier, session, waiter.id, waiter.settled, body});
    sessions_.remember(session, Sessions::Kind::barrier, waiter.id, std::string(body), now());
  }
  connection.unblock(waiter.id);
  waiters_.erase(ticket);
}

void Service::event(Ticket ticket, std::string_view event) {
  const Waiter& waiter = waiters_.at(ticket);
  waiter.connection->out += encode_frame(waiter.id, event_code, event);
  mark_dirty(*waiter.connection);
}

void Service::forget(Connection& connection) {
  for (const auto& [_, ticket] : connection.blocked) {
    engine_.end(ticket);
    waiters_.erase(ticket);
  }
  connection.blocked.clear();
  connection.patterns.clear();
  if (connection.torch_wait) {
    engine_.end(*connection.torch_wait);
    waiters_.erase(*connection.torch_wait);
    connection.torch_wait.reset();
  }
  if (connection.torch_promise) engine_.settle(*std::exchange(connection.torch_promise, {}));
  const std::string session(view(connection.client_hello.id));
  if (const auto known = by_session_.find(session);
      known != by_session_.end() && known->second == &connection) {
    by_session_.erase(known);
    sessions_.touch(session, now());
  }
  std::erase(resumed_, &connection);
  std::erase(dirty_, &connection);
  std::erase(replaced_, &connection);
}

std::optional<Duration> Service::next_lapse() const {
  const auto expiry = engine_.table().next_expiry();
  if (!expiry) return std::nullopt;
  return *expiry - lease_time();
}

TimePoint Service::lease_time() const { return lease_clock_.at(now()); }

void Service::look_at_clock(Duration planned) { lease_clock_.look(now(), planned); }

void Service::tick(TimePoint time, TimePoint lapsed_by) {
  for (const std::string& request : engine_.expire(lapsed_by)) {
    if (journal_) journal_->append({Op::expire, {}, 0, 0, request});
  }
  if (time >= next_sweep_) {
    next_sweep_ = time + std::chrono::minutes(1);
    for (const auto& [session, _] : by_session_) sessions_.touch(session, time);
    sessions_.forget_older_than(time - session_memory);
  }
}

void Service::say_farewell(Connection& connection) const {
  if (connection.state != Connection::State::native) return;
  connection.reply(no_id, Code::cancelled, this_process());
}

void Service::mark_dirty(Connection& connection) {
  if (connection.dirty) return;
  connection.dirty = true;
  dirty_.push_back(&connection);
}

Connection* Service::take_resumed() {
  if (resumed_.empty()) return nullptr;
  Connection* connection = resumed_.back();
  resumed_.pop_back();
  return connection;
}

void Service::resume(Connection& connection) { resumed_.push_back(&connection); }

std::vector<Connection*> Service::take_dirty() {
  for (Connection* connection : dirty_) connection->dirty = false;
  return std::exchange(dirty_, {});
}

Connection* Service::take_replaced() {
  if (replaced_.empty()) return nullptr;
  Connection* old = replaced_.back();
  replaced_.pop_back();
  return old;
}

std::int64_t Service::workers() const {
  const Record* record = engine_.table().find(workers_key);
  return record == nullptr ? 0 : std::strtoll(record->value.c_str(), nullptr, 10);
}

}  // namespace tensorbus::store
