// Random and mutated bytes on both protocols, straight into the service: it lives, its memory stays
// bounded, and other clients do not notice. Under the sanitizers this also looks for wild accesses.
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "store/protocol/torch_writer.h"
#include "store/server/service.h"

namespace tensorbus::store {
namespace {

using Random = std::mt19937_64;

std::size_t frames_to_send() { return config::variable("TENSORBUS_TEST_LONG") ? 200'000 : 20'000; }

std::size_t below(Random& random, std::size_t bound) { return random() % bound; }

std::string random_bytes(Random& random, std::size_t longest) {
  std::string bytes(below(random, longest + 1), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Few names, so that requests meet each other.
std::string some_key(Random& random) {
  static const std::vector<std::string> keys = {"/a", "/b", "/a/b", "/n", "init/", "/", "", "/q"};
  return below(random, 30) == 0 ? random_bytes(random, 9000) : keys[below(random, keys.size())];
}

std::string some_value(Random& random) {
  switch (below(random, 4)) {
    case 0:
      return std::to_string(static_cast<std::int64_t>(random()));
    case 1:
      return "1";
    default:
      return random_bytes(random, 200);
  }
}

std::uint32_t some_count(Random& random) {
  static const std::vector<std::uint32_t> counts = {0, 1, 2, 3, 1000, 0x7FFFFFFF, 0xFFFFFFFF};
  return counts[below(random, counts.size())];
}

// A body as a client of ours would write it, for any operation.
std::string native_body(Random& random, Op op) {
  Encoder body;
  if (is_change(op) || op == Op::barrier) body.integer(std::uint64_t{below(random, 50)});
  switch (op) {
    case Op::get:
    case Op::exists:
    case Op::erase:
    case Op::wait_all:
    case Op::lease_times:
      return std::move(body)
          .raw(keys_body(std::vector<std::string>{some_key(random), some_key(random)}))
          .bytes();
    case Op::list:
    case Op::pop:
      body.string(some_key(random));
      break;
    case Op::wait: {
      static const std::vector<std::string> patterns = {"/*", "/[ab", "[!", "/a*b?*", "*[]-a]*"};
      Condition condition;
      condition.is_pattern = below(random, 2) == 0;
      condition.key =
          condition.is_pattern ? patterns[below(random, patterns.size())] : some_key(random);
      condition.count = some_count(random);
      if (below(random, 2) == 0) condition.value = some_value(random);
      body.raw(condition_body(condition));
      break;
    }
    case Op::barrier:
      body.string(some_key(random)).integer(std::uint64_t{below(random, 4)}).string("0");
      break;
    case Op::watch:
      body.string(some_key(random)).integer(std::uint64_t{below(random, 100)});
      break;
    case Op::cancel:
      body.integer(std::uint64_t{below(random, 300)});
      break;
    case Op::set:
      body.raw(
          set_body(std::vector<Entry>{{some_key(random), some_value(random)}}, below(random, 4)));
      break;
    case Op::add:
      body.string(some_key(random)).integer(static_cast<std::int64_t>(random()));
      break;
    case Op::swap:
      body.string(some_key(random)).integer(static_cast<std::uint8_t>(below(random, 2)));
      body.string(some_value(random)).string(some_value(random));
      break;
    case Op::append:
    case Op::push:
      body.string(some_key(random)).string(some_value(random));
      break;
    case Op::grant:
    case Op::publish:
      body.integer(std::uint64_t{below(random, 4)}).integer(std::int64_t{1'000'000'000});
      if (op == Op::publish) body.integer(some_count(random)).string("/a").string("x");
      break;
    case Op::refresh:
    case Op::revoke:
      body.integer(std::uint64_t{below(random, 4)});
      break;
    default:
      body.raw(random_bytes(random, 60));
  }
  return std::move(body).bytes();
}

void mutate(Random& random, std::string& bytes) {
  for (std::size_t times = below(random, 4); times > 0 && !bytes.empty(); --times) {
    const std::size_t at = below(random, bytes.size());
    switch (below(random, 4)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.insert(at, random_bytes(random, 12));
        break;
      default:
        bytes.erase(at, below(random, 8));
    }
  }
}

// Damaged inside its frame, so that what follows is still understood.
std::string native_frame(Random& random) {
  const auto op = static_cast<Op>(below(random, 40));
  std::string body = native_body(random, op);
  if (below(random, 3) == 0) mutate(random, body);
  return encode_frame(below(random, 300), static_cast<std::uint8_t>(op), body);
}

std::string torch_request(Random& random) {
  Encoder request;
  const auto op = static_cast<TorchOp>(below(random, 20));
  const auto text = [&](const std::string& value) {
    request.integer(std::uint64_t{value.size()}).raw(value);
  };
  request.integer(static_cast<std::uint8_t>(op));
  switch (op) {
    case TorchOp::set:
    case TorchOp::append:
    case TorchOp::queue_push:
      text(some_key(random));
      text(some_value(random));
      break;
    case TorchOp::compare_set:
      text(some_key(random));
      text(some_value(random));
      text(some_value(random));
      break;
    case TorchOp::get:
    case TorchOp::delete_key:
    case TorchOp::queue_pop:
    case TorchOp::queue_len:
      text(some_key(random));
      break;
    case TorchOp::add:
    case TorchOp::barrier:
      text(some_key(random));
      request.integer(std::int64_t(below(random, 5)) - 1);
      break;
    case TorchOp::check:
    case TorchOp::wait:
    case TorchOp::multi_get:
      request.integer(std::uint64_t{2});
      text(some_key(random));
      text(some_key(random));
      break;
    case TorchOp::multi_set:
      request.integer(std::uint64_t{1});
      text(some_key(random));
      text(some_value(random));
      break;
    default:
      request.integer(static_cast<std::uint32_t>(random()));
  }
  return std::move(request).bytes();
}

// Stands for the loop: takes output away, drops what is closing.
class Loop {
 public:
  explicit Loop(Service& service) : service_(service) {}

  Connection& open() {
    connections_.push_back(std::make_unique<Connection>());
    connections_.back()->number = ++opened_;
    return *connections_.back();
  }
  // False when it was dropped.
  bool feed(Connection& connection, std::string_view bytes) {
    connection.in += bytes;
    service_.serve(connection);
    return turn(&connection);
  }
  // The replies to these bytes.
  std::string exchange(Connection& connection, std::string_view bytes) {
    connection.in += bytes;
    service_.serve(connection);
    std::string replies = connection.out;
    EXPECT_TRUE(turn(&connection));
    return replies;
  }
  void close(Connection& connection) {
    service_.forget(connection);
    std::erase_if(connections_, [&](const auto& one) { return one.get() == &connection; });
  }
  void close_all() {
    while (!connections_.empty()) close(*connections_.back());
  }
  std::size_t opened() const { return opened_; }

 private:
  bool turn(const Connection* watched) {
    bool lives = true;
    const auto drop = [&](Connection& connection) {
      lives = lives && &connection != watched;
      close(connection);
    };
    service_.tick(now(), now());
    while (Connection* resumed = service_.take_resumed()) service_.serve(*resumed);
    service_.commit();
    for (Connection* connection : service_.take_dirty()) {
      connection->out.clear();
      connection->out_at = 0;
      if (connection->closing) drop(*connection);
    }
    while (Connection* old = service_.take_replaced()) drop(*old);
    return lives;
  }

  Service& service_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::size_t opened_ = 0;
};

std::string hello_of(char session) {
  Hello hello;
  hello.id.fill(session);
  return encode(hello);
}

// A well-behaved client between the others: what it sets, it gets.
class Witness {
 public:
  explicit Witness(Loop& loop) : loop_(loop), connection_(loop.open()) {
    loop_.feed(connection_, hello_of('W'));
  }
  void check() {
    const std::string value = std::to_string(++id_);
    const std::vector<Entry> entries{{"/witness", value}};
    ask(Op::set, Encoder().integer(id_).raw(set_body(entries, 0)).bytes());
    ++id_;
    const std::string reply = ask(Op::get, keys_body(std::vector<std::string>{"/witness"}));
    Decoder decoder(reply);
    ASSERT_EQ(decoder.integer<std::uint8_t>(), 1);
    ASSERT_EQ(decoder.string(), value);
  }

 private:
  std::string ask(Op op, const std::string& body) {
    const std::string reply =
        loop_.exchange(connection_, encode_frame(id_, static_cast<std::uint8_t>(op), body));
    Decoder decoder(reply);
    decoder.integer<std::uint32_t>();
    EXPECT_EQ(decoder.integer<std::uint64_t>(), id_);
    EXPECT_EQ(decoder.integer<std::uint8_t>(), 0);
    return std::string(decoder.raw(decoder.left()));
  }

  Loop& loop_;
  Connection& connection_;
  std::uint64_t id_ = 0;
};

enum class Protocol { native, torch };

class Fuzz : public testing::TestWithParam<Protocol> {
 protected:
  void SetUp() override { log::set_level(log::Level::error); }
  void TearDown() override { log::set_level(log::Level::info); }
};

// proves: K7
TEST_P(Fuzz, RandomAndMutatedFramesHarmNobody) {
  Random random(GetParam() == Protocol::native ? 1 : 2);
  Service service(StoreServerOptions{});
  Loop loop(service);
  Witness witness(loop);
  Connection* connection = nullptr;
  for (std::size_t sent = 0; sent < frames_to_send(); ++sent) {
    if (connection == nullptr) {
      connection = &loop.open();
      const auto session = static_cast<char>('a' + below(random, 3));
      const std::string greeting =
          GetParam() == Protocol::native ? hello_of(session) : TorchWriter().validate().bytes();
      if (!loop.feed(*connection, greeting)) connection = nullptr;
      if (connection == nullptr) continue;
    }
    std::string bytes;
    if (below(random, 20) == 0) {
      bytes = random_bytes(random, 64);
    } else {
      bytes = GetParam() == Protocol::native ? native_frame(random) : torch_request(random);
      if (below(random, 8) == 0) mutate(random, bytes);
    }
    // Whole, or in two pieces as the network likes it.
    const std::size_t cut = below(random, 2) == 0 ? below(random, bytes.size() + 1) : bytes.size();
    if (!loop.feed(*connection, std::string_view(bytes).substr(0, cut))) {
      connection = nullptr;
      continue;
    }
    if (!loop.feed(*connection, std::string_view(bytes).substr(cut))) {
      connection = nullptr;
      continue;
    }
    // A torch client whose wait never ends, or a cut frame, would swallow all that follows.
    if (below(random, 60) == 0 || connection->input().size() > 16 * 1024) {
      loop.close(*connection);
      connection = nullptr;
    }
    if (sent % 100 == 0) witness.check();
  }
  witness.check();
  // Most were understood, and many were not: both halves were reached.
  EXPECT_GT(service.counters().requests.value(), frames_to_send() / 4);
  EXPECT_GT(service.counters().refused.value(), frames_to_send() / 100);
  EXPECT_GT(loop.opened(), 10U);
  loop.close_all();
  service.tick(now(), now());
  EXPECT_EQ(service.counters().waits.value(), 0U);
}

TEST_P(Fuzz, PureNoiseIsRefused) {
  Random random(3);
  Service service(StoreServerOptions{});
  Loop loop(service);
  Witness witness(loop);
  for (std::size_t i = 0; i < frames_to_send() / 10; ++i) {
    Connection& connection = loop.open();
    std::string bytes = random_bytes(random, 300);
    if (!bytes.empty()) bytes[0] = GetParam() == Protocol::native ? 'T' : '\0';
    if (loop.feed(connection, bytes)) loop.close(connection);
  }
  witness.check();
}

INSTANTIATE_TEST_SUITE_P(Both, Fuzz, testing::Values(Protocol::native, Protocol::torch),
                         [](const auto& tested) {
                           return tested.param == Protocol::native ? "Native" : "Torch";
                         });

}  // namespace
}  // namespace tensorbus::store
