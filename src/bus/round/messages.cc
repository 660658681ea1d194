#include "bus/round/messages.h"

#include <array>

#include "bus/channel/packed.h"

namespace tensorbus::bus {
namespace {

constexpr std::array<std::string_view, 14> names = {
    "subscribe", "join", "start", "leave", "look",   "subscribed", "joined",
    "offer",     "over", "sums",  "moved", "follow", "begun",      "ended"};
static_assert(names.size() == std::variant_size_v<MessageBody>);

constexpr std::size_t longest_text = 16 * 1024;

std::string cut(const std::string& text) { return text.substr(0, longest_text); }

std::int64_t round_of(Fields& fields) {
  // A word keeps 61 bits for it.
  return static_cast<std::int64_t>(fields.natural((std::uint64_t{1} << 60) - 1));
}

struct Write {
  Json& list;
  void operator()(const Subscribe& m) {
    list.push_back(m.batch);
    list.push_back(m.group.pair);
    list.push_back(m.group.side);
    list.push_back(m.reader);
    list.push_back(m.side);
    list.push_back(m.registration);
    list.push_back(m.fingerprint);
    list.push_back(m.streams);
  }
  void operator()(const Join&) {}
  void operator()(const Leave&) {}
  void operator()(const Start& m) { list.push_back(m.round); }
  void operator()(const Look& m) { list.push_back(m.round); }
  void operator()(const Subscribed& m) {
    list.push_back(static_cast<unsigned>(m.status.code));
    list.push_back(cut(m.status.message));
    list.push_back(m.region);
    list.push_back(m.word);
  }
  void operator()(const Joined& m) { list.push_back(m.next); }
  void operator()(const Offer& m) {
    list.push_back(m.round);
    list.push_back(m.ticket);
    list.push_back(m.version);
  }
  void operator()(const Over& m) {
    list.push_back(m.round);
    list.push_back(static_cast<unsigned>(m.mark));
    list.push_back(cut(m.why));
  }
  void operator()(const Moved& m) {
    list.push_back(m.round);
    list.push_back(m.bytes);
  }
  void operator()(const Sums& m) {
    list.push_back(m.round);
    list.push_back(m.first);
    list.push_back(m.values);
  }
  void operator()(const Follow& m) {
    list.push_back(m.batch);
    list.push_back(m.group.pair);
    list.push_back(m.group.side);
  }
  void operator()(const Begun& m) { list.push_back(m.round); }
  void operator()(const Ended& m) {
    list.push_back(m.round);
    Json readers = Json::array();
    for (const auto& [rank, how] : m.readers) {
      readers.push_back({rank, static_cast<unsigned>(how)});
    }
    list.push_back(std::move(readers));
  }
};

Ended read_ended(Fields& fields) {
  Ended m;
  m.round = round_of(fields);
  for (const Json& each : fields.list()) {
    Fields reader(each, "message of an agent");
    const auto rank = static_cast<Rank>(reader.natural(INT64_MAX));
    const auto how = reader.natural(static_cast<unsigned>(ReaderOutcome::lost));
    m.readers[rank] = static_cast<ReaderOutcome>(how);
    reader.end();
  }
  return m;
}

MessageBody read_body(std::uint64_t kind, Fields& fields) {
  switch (kind) {
    case 0: {
      Subscribe m;
      m.batch = fields.string();
      m.group.pair = fields.string();
      m.group.side = fields.string();
      m.reader = static_cast<Rank>(fields.natural(INT64_MAX));
      m.side = fields.string();
      m.registration = fields.natural();
      m.fingerprint = fields.natural();
      m.streams = fields.integers(most_streams);
      for (const std::int64_t stream : m.streams) {
        if (stream >= 0 && stream < static_cast<std::int64_t>(most_streams)) continue;
        throw Error(Code::invalid_argument, "message of an agent: there is no such stream");
      }
      return m;
    }
    case 1:
      return Join{};
    case 2:
      return Start{round_of(fields)};
    case 3:
      return Leave{};
    case 4:
      return Look{round_of(fields)};
    case 5: {
      Subscribed m;
      m.status.code = static_cast<Code>(fields.natural(static_cast<unsigned>(Code::withdrawn)));
      m.status.message = fields.string(longest_text);
      m.region = fields.natural();
      m.word = static_cast<std::uint32_t>(fields.natural(UINT32_MAX));
      return m;
    }
    case 6:
      return Joined{round_of(fields)};
    case 7: {
      const std::int64_t round = round_of(fields);
      const std::uint64_t ticket = fields.natural();
      return Offer{round, ticket, fields.integer()};
    }
    case 9: {
      Sums m;
      m.round = round_of(fields);
      m.first = fields.natural(UINT32_MAX);
      for (const Json& value : fields.list(most_sums)) {
        if (!value.is_number_integer()) fields.refuse("a checksum");
        m.values.push_back(value.get<std::uint64_t>());
      }
      return m;
    }
    case 10: {
      const std::int64_t round = round_of(fields);
      return Moved{round, static_cast<std::int64_t>(fields.natural(INT64_MAX))};
    }
    case 11: {
      Follow m;
      m.batch = fields.string();
      m.group.pair = fields.string();
      m.group.side = fields.string();
      return m;
    }
    case 12:
      return Begun{round_of(fields)};
    case 13:
      return read_ended(fields);
    default: {
      Over m;
      m.round = round_of(fields);
      m.mark = static_cast<Mark>(fields.natural(static_cast<unsigned>(Mark::closed)));
      m.why = fields.string(longest_text);
      return m;
    }
  }
}

}  // namespace

std::string_view name_of(const MessageBody& body) noexcept { return names[body.index()]; }

std::string encode(const AgentMessage& message) {
  Json list =
      Json::array({message.sequence, message.generation, message.serial, message.body.index()});
  std::visit(Write{list}, message.body);
  return pack(list);
}

AgentMessage decode_agent_message(std::string_view bytes) {
  const Json json = unpack(bytes, "message of an agent");
  Fields fields(json, "message of an agent");
  AgentMessage message;
  message.sequence = fields.natural();
  message.generation = static_cast<std::int64_t>(fields.natural(INT64_MAX));
  message.serial = fields.natural();
  message.body = read_body(fields.natural(names.size() - 1), fields);
  fields.end();
  return message;
}

}  // namespace tensorbus::bus
