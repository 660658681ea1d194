// The half of the service that speaks torch's protocol.
#include <fmt/format.h>

#include "base/clock.h"
#include "store/server/service.h"

namespace tensorbus::store {
namespace {

std::string key_body(std::string_view key) { return std::move(Encoder().string(key)).bytes(); }

std::string key_value_body(std::string_view key, std::string_view value) {
  return std::move(Encoder().string(key).string(value)).bytes();
}

std::string entries_body(std::span<const EntryView> entries) {
  Encoder body;
  body.integer(LeaseId{0}).integer(static_cast<std::uint32_t>(entries.size()));
  for (const EntryView& entry : entries) body.string(entry.key).string(entry.value);
  return std::move(body).bytes();
}

std::string keys_body(std::span<const std::string_view> keys) {
  Encoder body;
  body.integer(static_cast<std::uint32_t>(keys.size()));
  for (const std::string_view key : keys) body.string(key);
  return std::move(body).bytes();
}

std::string swap_body(std::string_view key, std::optional<std::string_view> expected,
                      std::string_view desired) {
  Encoder body;
  body.string(key).integer(static_cast<std::uint8_t>(expected.has_value()));
  body.string(expected.value_or("")).string(desired);
  return std::move(body).bytes();
}

}  // namespace

bool Service::serve_torch(Connection& connection) {
  const std::string_view input = connection.input();
  if (connection.torch_wait) {
    // Replies keep the order of requests, so only the end of the wait can come now.
    if (static_cast<TorchOp>(input.front()) != TorchOp::cancel_wait) return false;
    engine_.end(*connection.torch_wait);
    waiters_.erase(*connection.torch_wait);
    connection.torch_wait.reset();
  }
  const TorchRequest request = parse_torch_request(input, connection.needed);
  if (request.size == 0) return false;
  connection.needed = 1;
  const TimePoint start = now();
  if (connection.state == Connection::State::torch_greeting) {
    if (request.op != TorchOp::validate || request.number != torch_magic) {
      throw Error(Code::failed, "it began like a torch client but with a wrong magic number");
    }
    connection.state = Connection::State::torch;
  } else {
    const auto promise = std::exchange(connection.torch_promise, {});
    handle_torch(connection, request);
    if (promise) engine_.settle(*promise);
  }
  counters_.requests.add();
  counters_.request_time.record(now() - start);
  connection.consume(request.size);
  return true;
}

void Service::compare_set_torch(Connection& connection, const TorchRequest& request) {
  const Record* record = engine_.table().find(request.key);
  if (record == nullptr && !request.expected.empty()) {
    connection.out += torch_string(request.expected);
    return;
  }
  if (record != nullptr && record->value != request.expected) {
    connection.out += torch_string(record->value);
    return;
  }
  const auto expected = record == nullptr ? std::nullopt : std::optional(request.expected);
  change(Op::swap, swap_body(request.key, expected, request.value));
  connection.out += torch_string(request.value);
}

void Service::reply_values_torch(Connection& connection,
                                 std::span<const std::string_view> keys) const {
  // The same key may stand there a thousand times.
  std::size_t size = 0;
  for (const std::string_view key : keys) {
    const Record* record = engine_.table().find(key);
    size += record == nullptr ? 0 : record->value.size();
  }
  if (size > max_frame_size) {
    throw Error(Code::invalid_argument, fmt::format("it asks for {} bytes at once", size));
  }
  for (const std::string_view key : keys) {
    const Record* record = engine_.table().find(key);
    connection.out += torch_string(record == nullptr ? std::string_view() : record->value);
  }
}

void Service::block_torch(Connection& connection, Op op, const std::string& body) {
  begin(connection, 0, op, body, true);
}

void Service::handle_torch(Connection& connection, const TorchRequest& request) {
  const Table& table = engine_.table();
  const auto value_of = [&](std::string_view key) {
    const Record* record = table.find(key);
    return record == nullptr ? std::string_view() : std::string_view(record->value);
  };
  switch (request.op) {
    case TorchOp::set: {
      const EntryView entry{request.key, request.value};
      change(Op::set, entries_body({&entry, 1}));
      break;
    }
    case TorchOp::multi_set:
      change(Op::set, entries_body(request.entries));
      break;
    case TorchOp::compare_set:
      compare_set_torch(connection, request);
      break;
    case TorchOp::get:
      connection.out += torch_string(value_of(request.key));
      break;
    case TorchOp::multi_get:
      reply_values_torch(connection, request.keys);
      break;
    case TorchOp::add:
      connection.out +=
          change(Op::add, std::move(Encoder().string(request.key).integer(request.number)).bytes());
      break;
    case TorchOp::check: {
      bool ready = true;
      for (const std::string_view key : request.keys) ready = ready && table.present(key);
      connection.out += torch_integer(static_cast<std::uint8_t>(ready ? 0 : 1));
      break;
    }
    case TorchOp::wait:
      block_torch(connection, Op::wait_all, keys_body(request.keys));
      break;
    case TorchOp::barrier:
      if (request.number < 1) {
        throw Error(Code::invalid_argument,
                    fmt::format("a barrier for {} members", request.number));
      }
      block_torch(connection, Op::barrier,
                  std::move(Encoder()
                                .string(request.key)
                                .integer(static_cast<std::uint64_t>(request.number))
                                .string("a torch client"))
                      .bytes());
      break;
    case TorchOp::cancel_wait:
      connection.out += torch_integer(std::uint8_t{1});
      break;
    case TorchOp::num_keys:
      connection.out += torch_integer(static_cast<std::int64_t>(table.records().size()));
      break;
    case TorchOp::delete_key: {
      const std::string reply = change(Op::erase, keys_body({&request.key, 1}));
      connection.out +=
          torch_integer(static_cast<std::int64_t>(Decoder(reply).integer<std::uint32_t>()));
      break;
    }
    case TorchOp::append:
      change(Op::append, key_value_body(request.key, request.value));
      break;
    case TorchOp::ping:
      connection.out += torch_integer(static_cast<std::uint32_t>(request.number));
      break;
    case TorchOp::queue_push:
      change(Op::push, key_value_body(request.key, request.value));
      break;
    case TorchOp::queue_pop: {
      const std::string reply = change(Op::pop, key_body(request.key));
      Decoder decoder(reply);
      const auto length = decoder.integer<std::uint64_t>();
      connection.out += torch_integer(static_cast<std::int64_t>(length));
      if (length > 0) connection.out += torch_string(decoder.string());
      break;
    }
    case TorchOp::queue_len: {
      const auto queue = table.queues().find(request.key);
      connection.out += torch_integer(
          static_cast<std::int64_t>(queue == table.queues().end() ? 0 : queue->second.size()));
      break;
    }
    case TorchOp::list_keys:
      connection.out += torch_integer(static_cast<std::int64_t>(table.records().size()));
      for (const auto& [key, _] : table.records()) connection.out += torch_string(key);
      break;
    case TorchOp::validate:
      throw Error(Code::failed, "VALIDATE came twice");
  }
}

}  // namespace tensorbus::store
