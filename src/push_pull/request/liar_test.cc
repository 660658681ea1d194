// Nodes that are let into a job and then say anything: whoever hears it drops them, and goes on
// with the others.
#include <gtest/gtest.h>

#include <cstring>
#include <future>

#include "base/config.h"
#include "fabric/conformance/dice.h"
#include "push_pull/job/node.h"
#include "push_pull/request/slots.h"
#include "push_pull/testing/cluster.h"

namespace tensorbus::push_pull {
namespace {

using fabric::Dice;

class Liar final : private Node::Client {
 public:
  Liar(Role role, const NodeOptions& options) : node_(role, options, *this) {}

  // Fields are sometimes right, so that more of the victim is reached before it finds out.
  void lie(Dice& dice) {
    const Loop::Lock lock = node_.loop().lock();
    if (partner_->lost()) return;
    switch (dice.below(11)) {
      case 0:
        return send(
            wire::Kind::want_slot,
            wire::WantSlot{slot_size(dice.below(4) == 0 ? dice.number() : dice.byte() * 400U)});
      case 1:
        return send(wire::Kind::words, wire::Words{place(dice), number(dice)});
      case 2:
        return send(wire::Kind::landing,
                    wire::Landing{key(dice), place(dice), number(dice), place(dice)});
      case 3:
        return send(wire::Kind::answer,
                    wire::Answer{number(dice), {1, 2, 3, 4}, dice.below(2) * number(dice)});
      case 4:
        return send(wire::Kind::slot, wire::Slot{slot_size(dice.byte()), place(dice), 0});
      case 5:
        return gibberish(dice);
      case 6:
        return send(wire::Kind::forget, wire::Forget{number(dice)});
      case 7:
      case 8:
        return send(wire::Kind::again, wire::Again{++requests_, number(dice)});
      default:
        return request(dice);
    }
  }
  bool lost() {
    const Loop::Lock lock = node_.loop().lock();
    return partner_->lost().has_value();
  }

 private:
  template <typename Body>
  void send(wire::Kind kind, const Body& body) {
    message_.start(kind);
    message_.put(body);
    partner_->send(message_.bytes());
  }
  void request(Dice& dice) {
    message_.start(wire::Kind::request);
    const std::uint64_t pushes = dice.below(3);
    const std::uint64_t pulls = dice.below(3);
    const std::uint64_t standing = dice.below(2) * number(dice);
    message_.put(wire::RequestHead{++requests_, dice.below(3), pushes, pulls, standing});
    for (std::uint64_t i = 0; i < pushes; ++i) {
      const std::uint64_t dims = dice.below(4);
      const std::uint64_t landed = dice.below(8) == 0 ? 1 : 0;
      std::vector<std::int64_t> extents(dims);
      for (auto& extent : extents) extent = static_cast<std::int64_t>(number(dice));
      message_.put(wire::Push{key(dice), place(dice), dims, dice.below(30), landed}, extents);
    }
    for (std::uint64_t i = 0; i < pulls; ++i) {
      message_.put(wire::Pull{place(dice), dice.below(2) * number(dice)});
    }
    const std::string_view whole = message_.bytes();
    partner_->send(dice.below(10) == 0 ? whole.substr(0, dice.below(whole.size()) + 1) : whole);
  }
  void gibberish(Dice& dice) {
    partner_->send(std::string(1, static_cast<char>(dice.below(12))) + dice.text(60));
  }
  static std::uint64_t number(Dice& dice) {
    return dice.below(3) == 0 ? dice.number() : dice.below(5);
  }
  static std::int64_t key(Dice& dice) { return static_cast<std::int64_t>(number(dice)); }
  wire::InletPlace place(Dice& dice) {
    if (!places_.empty() && dice.below(3) != 0) {
      wire::InletPlace known = places_[dice.below(places_.size())];
      if (dice.below(4) == 0) known.offset = number(dice);
      return known;
    }
    return {number(dice), number(dice)};
  }

  void on_up(Partner& partner) override {
    partner_ = &partner;
    places_.push_back(partner.make_slot(4096).place);  // ours, that the victim may write to
  }
  void on_message(Partner&, wire::Kind kind, wire::Body& message) override {
    if (kind == wire::Kind::slot) {
      places_.push_back(wire::take<wire::Slot>(message).place);
    } else if (kind == wire::Kind::words) {
      places_.push_back(wire::take<wire::Words>(message).place);
    }
  }
  void on_lost(Partner&) override {}
  void on_turn() override {}

  Partner* partner_ = nullptr;
  std::vector<wire::InletPlace> places_;
  std::uint64_t requests_ = 0;
  wire::Message message_;
  Node node_;
};

class LiarTest : public testing::Test {
 protected:
  static constexpr int lies = 60;
  static int seeds() { return config::variable("TENSORBUS_TEST_LONG") ? 300 : 12; }

  // The liar is the second of its role.
  static std::pair<std::unique_ptr<Scheduler>, NodeOptions> start(int workers, int servers) {
    NodeOptions options;
    options.transport = Transport::shared_memory;
    options.job.workers = workers;
    options.job.servers = servers;
    options.deadline = soon();
    auto scheduler = std::make_unique<Scheduler>(options);
    options.job.port = scheduler->port();
    return {std::move(scheduler), options};
  }
  template <typename T, typename... Arguments>
  static auto make(NodeOptions options, int rank, Arguments... arguments) {
    options.rank = rank;
    return std::async(std::launch::async,
                      [=] { return std::make_unique<T>(arguments..., options); });
  }

  struct Company {
    std::unique_ptr<Scheduler> scheduler;
    std::unique_ptr<Server> server;
    std::unique_ptr<Worker> worker;
    std::unique_ptr<Liar> liar;
  };
  // One of each, and a liar who is the second in its role.
  static Company meet(Role liars) {
    auto [scheduler, options] = liars == Role::worker ? start(2, 1) : start(1, 2);
    auto server = make<Server>(options, 0);
    auto worker = make<Worker>(options, 0);
    auto liar = make<Liar>(options, 1, liars);
    return {std::move(scheduler), server.get(), worker.get(), liar.get()};
  }
};

// proves: P8
TEST_F(LiarTest, AServerGoesOnWithoutAWorkerThatLies) {
  for (int seed = 0; seed < seeds(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const std::string bytes = fabric::random_bytes(random, 10'000);
    Dice dice(bytes);
    const auto [scheduler, server, worker, liar] = meet(Role::worker);
    std::vector<Request> batch;
    Tensor push(Dtype::uint8, {100});
    Tensor pull(Dtype::uint8, {100});
    for (int i = 0; i < lies; ++i) {
      liar->lie(dice);
      try {
        server->get_batch(batch, std::array{1}, Deadline::after(std::chrono::milliseconds(1)));
        // Answered if it wants what it pushed, refused else.
        std::vector<TensorView> tensors;
        for (const Received& each : batch[0].tensors) tensors.push_back(each.tensor);
        server->respond(batch[0].handler, tensors);
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == Code::timeout || error.code() == Code::peer_lost ||
                    error.code() == Code::invalid_argument)
            << error.what();
      }
      if (i % 10 != 0) continue;
      push.fill(i);
      const Item item = push.item(1);
      const Item back = pull.item(2);
      const Handler handler = worker->push_pull({&item, 1}, {&back, 1}, soon());
      server->get_batch(batch, std::array{0}, soon());
      server->respond(batch[0].handler, {&batch[0].tensors[0].tensor, 1});
      worker->wait(handler, soon());
      EXPECT_EQ(std::memcmp(push.data(), pull.data(), 100), 0);
    }
  }
}

// proves: P8
TEST_F(LiarTest, AWorkerSurvivesAServerThatLies) {
  for (int seed = 0; seed < seeds(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const std::string bytes = fabric::random_bytes(random, 10'000);
    Dice dice(bytes);
    const auto [scheduler, server, worker, liar] = meet(Role::server);
    Tensor push(Dtype::uint8, {100});
    Tensor pull(Dtype::uint8, {100});
    Tensor other(Dtype::uint8, {100});
    const std::array pushes{push.item(1)};
    const std::array pulls{pull.item(2), other.item(3)};
    for (int i = 0; i < lies; ++i) {
      liar->lie(dice);
      try {
        const auto short_time = [] { return Deadline::after(std::chrono::milliseconds(2)); };
        worker->wait(worker->push_pull(pushes, pulls, short_time()), short_time());
      } catch (const Error& error) {
        EXPECT_NE(error.code(), Code::cancelled) << error.what();
      }
      if (liar->lost()) break;
    }
  }
}

}  // namespace
}  // namespace tensorbus::push_pull
