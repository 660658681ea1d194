#include "bus/socket/protocol.h"

#include "bus/channel/packed.h"

namespace tensorbus::bus::wire {
namespace {

constexpr std::size_t longest_message = 64 * 1024;

Json to_json(const Status& status) {
  return Json::array(
      {static_cast<unsigned>(status.code), status.message.substr(0, longest_message)});
}

Status status_from(Fields& in) {
  Fields fields(in.list(2), "status");
  Status status;
  status.code = static_cast<Code>(fields.natural(static_cast<std::uint64_t>(Code::withdrawn)));
  status.message = fields.string(longest_message);
  fields.end();
  return status;
}

Json to_json(const Hello& hello) {
  return Json::array({hello.version, hello.space, hello.rank, hello.session, hello.pid});
}
Json to_json(const Submit& submit) {
  return Json::array({submit.sequence, binary(submit.command),
                      submit.time_left ? Json(*submit.time_left) : Json(),
                      submit.loan ? binary(*submit.loan) : Json(), submit.quiet});
}
Json to_json(const Withdraw& withdraw) { return Json::array({withdraw.sequence}); }
Json to_json(const Cancel& cancel) {
  return Json::array({cancel.sequence, to_json(cancel.reason)});
}
Json to_json(const Look& look) { return Json::array({look.request}); }
Json to_json(const GuardSemaphore& guard) { return Json::array({guard.request, guard.name}); }
Json to_json(const ReleaseSemaphore& release) { return Json::array({release.name}); }
Json to_json(const Bye&) { return Json::array(); }

Json to_json(const Welcome& welcome) { return Json::array({welcome.pid, welcome.last_accepted}); }
Json to_json(const Rejected& rejected) { return Json::array({to_json(rejected.reason)}); }
Json to_json(const Accepted& accepted) { return Json::array({accepted.sequence}); }
Json to_json(const Refused& refused) {
  return Json::array({refused.sequence, to_json(refused.reason)});
}
Json to_json(const Done& done) { return Json::array({done.sequence, binary(done.outcome)}); }
Json to_json(const Progress& progress) {
  return Json::array({progress.sequence, progress.done, progress.total});
}
Json to_json(const Looked& looked) {
  const QueueState& state = looked.state;
  Json first;
  if (state.first) {
    first = Json::array(
        {state.first->session, state.first->sequence, state.first_type, state.first_context});
  }
  return Json::array({looked.request, state.size, std::move(first)});
}
Json to_json(const Guarded& guarded) {
  return Json::array({guarded.request, to_json(guarded.status)});
}

Looked looked_from(Fields& in) {
  Looked looked;
  looked.request = in.natural();
  looked.state.size = in.natural();
  in.optional([&](Fields& fields) {
    Fields first(fields.list(4), "first command of a queue");
    const std::uint64_t session = first.natural();
    looked.state.first = CommandId{session, first.natural()};
    looked.state.first_type = first.string();
    looked.state.first_context = first.string();
    first.end();
    return true;
  });
  return looked;
}

template <typename Message>
std::string encode_any(const Message& message) {
  return pack(Json::array(
      {message.index(), std::visit([](const auto& each) { return to_json(each); }, message)}));
}

// Calls take(kind, fields of the message).
template <typename Take>
auto decode_any(std::string_view bytes, std::size_t kinds, Take take) {
  const Json json = unpack(bytes, "message");
  Fields in(json, "message");
  const std::uint64_t kind = in.natural(kinds - 1);
  Fields body(in.list(), "message");
  in.end();
  auto message = take(kind, body);
  body.end();
  return message;
}

}  // namespace

std::string encode(const FromClient& message) { return encode_any(message); }
std::string encode(const FromAgent& message) { return encode_any(message); }

FromClient decode_from_client(std::string_view bytes) {
  return decode_any(bytes, std::variant_size_v<FromClient>,
                    [](std::uint64_t kind, Fields& in) -> FromClient {
                      switch (kind) {
                        case 0: {
                          Hello hello;
                          hello.version = in.natural();
                          hello.space = in.string();
                          hello.rank = in.integer();
                          hello.session = in.natural();
                          hello.pid = in.integer();
                          return hello;
                        }
                        case 1: {
                          Submit submit;
                          submit.sequence = in.natural();
                          submit.command = in.bytes();
                          submit.time_left = in.optional([](Fields& f) { return f.integer(); });
                          submit.loan = in.optional([](Fields& f) { return f.bytes(); });
                          submit.quiet = in.boolean();
                          return submit;
                        }
                        case 2:
                          return Withdraw{in.natural()};
                        case 3: {
                          const std::uint64_t sequence = in.natural();
                          return Cancel{sequence, status_from(in)};
                        }
                        case 4:
                          return Look{in.natural()};
                        case 5: {
                          const std::uint64_t request = in.natural();
                          return GuardSemaphore{request, in.string()};
                        }
                        case 6:
                          return ReleaseSemaphore{in.string()};
                        default:
                          return Bye{};
                      }
                    });
}

FromAgent decode_from_agent(std::string_view bytes) {
  return decode_any(bytes, std::variant_size_v<FromAgent>,
                    [](std::uint64_t kind, Fields& in) -> FromAgent {
                      switch (kind) {
                        case 0: {
                          const std::int64_t pid = in.integer();
                          return Welcome{pid, in.natural()};
                        }
                        case 1:
                          return Rejected{status_from(in)};
                        case 2:
                          return Accepted{in.natural()};
                        case 3: {
                          const std::uint64_t sequence = in.natural();
                          return Refused{sequence, status_from(in)};
                        }
                        case 4: {
                          const std::uint64_t sequence = in.natural();
                          return Done{sequence, in.bytes()};
                        }
                        case 5: {
                          const std::uint64_t sequence = in.natural();
                          const std::int64_t done = in.integer();
                          return Progress{sequence, done, in.integer()};
                        }
                        case 6:
                          return looked_from(in);
                        default: {
                          const std::uint64_t request = in.natural();
                          return Guarded{request, status_from(in)};
                        }
                      }
                    });
}

}  // namespace tensorbus::bus::wire
