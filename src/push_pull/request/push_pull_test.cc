// What workers and servers do together, on shared memory and on the network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "push_pull/request/pack.h"
#include "push_pull/testing/cluster.h"

namespace tensorbus::push_pull {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class PushPullTest : public TransportTest {
 protected:
  static Handler ask(Worker& worker, Tensor& push, Tensor& pull) {
    return worker.push_pull(std::array{push.item(1)}, std::array{pull.item(2)}, soon());
  }
};

// proves: P1, P2
TEST_P(PushPullTest, APushGoesToEveryServerAndPullsAreDividedByPosition) {
  Cluster cluster(1, 2, options());
  Tensor pushed(Dtype::float32, {3, 5});
  pushed.fill(1);
  std::vector<std::unique_ptr<Tensor>> pulled;
  std::vector<Item> pulls;
  for (int i = 0; i < 4; ++i) {
    pulled.push_back(std::make_unique<Tensor>(Dtype::uint8, std::vector<std::int64_t>{10 + i}));
    pulls.push_back(pulled.back()->item(i));
  }
  Worker& worker = cluster.worker(0);
  const Handler handler = worker.push_pull(std::array{pushed.item(7)}, pulls, soon());
  EXPECT_EQ(worker.handlers(handler).size(), 3U) << "a push, and two pulls of each server";
  std::vector<std::unique_ptr<Tensor>> answers;
  for (std::size_t s = 0; s < 2; ++s) {
    const auto requests = batch(cluster.server(s));
    ASSERT_EQ(requests.size(), 1U);
    ASSERT_EQ(requests[0].tensors.size(), 1U);
    EXPECT_EQ(requests[0].tensors[0].key, 7);
    EXPECT_EQ(requests[0].tensors[0].tensor.dtype, Dtype::float32);
    EXPECT_THAT(requests[0].tensors[0].tensor.shape, ElementsAre(3, 5));
    EXPECT_EQ(std::memcmp(requests[0].tensors[0].tensor.data, pushed.data(), 60), 0);
    std::vector<TensorView> views;
    for (std::int64_t i = 0; i < 2; ++i) {
      answers.push_back(std::make_unique<Tensor>(
          Dtype::uint8, std::vector<std::int64_t>{10 + 2 * static_cast<std::int64_t>(s) + i}));
      answers.back()->fill(static_cast<int>(answers.size()));
      views.push_back(answers.back()->view());
    }
    cluster.server(s).respond(requests[0].handler, views);
  }
  worker.wait(handler, soon());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(std::memcmp(pulled[i]->data(), answers[i]->data(), 10 + i), 0) << i;
  }
  EXPECT_THAT(worker.handlers(handler), ElementsAre(handler));
  EXPECT_NO_THROW(worker.wait(handler, soon())) << "it is over, and well";
}

// proves: P3
TEST_P(PushPullTest, AWorkerIsServedWhileTheServerSleepsForAnother) {
  NodeOptions sleepy = options();
  sleepy.spin = Duration::zero();
  Cluster cluster(3, 1, sleepy);
  constexpr int batches = 4;
  std::jthread server([&] {
    for (int i = 0; i < batches; ++i) echo_nothing(cluster.server(0));
  });
  std::vector<std::pair<Worker*, Handler>> requests;
  for (const std::size_t rank : {1U, 2U, 0U}) {
    for (int i = 0; i < batches; ++i) {
      // The server has never made a slot of this size for the worker, and must do so now.
      Tensor push(Dtype::uint8, {std::int64_t{1000} << i});
      Worker& worker = cluster.worker(rank);
      requests.emplace_back(&worker, worker.push_pull(std::array{push.item(1)}, {}, soon()));
    }
  }
  for (const auto& [worker, handler] : requests) worker->wait(handler, soon());
}

// proves: P3
TEST_P(PushPullTest, ABatchHoldsTheNextRequestOfEveryWorker) {
  Cluster cluster(3, 1, options());
  Tensor push(Dtype::uint8, {16});
  std::vector<Handler> handlers;
  for (const std::size_t rank : {2U, 0U}) {
    for (int i = 0; i < 2; ++i) {
      push.fill(static_cast<int>(10 * rank) + i);
      handlers.push_back(cluster.worker(rank).push_pull(std::array{push.item(i)}, {}, soon()));
    }
  }
  std::vector<Request> requests;
  EXPECT_THAT(status_of([&] {
                cluster.server(0).get_batch(requests, {}, Deadline::after(milliseconds(100)));
              }).message,
              HasSubstr("no request from worker 1"));
  requests = batch(cluster.server(0), {2});
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].tensors[0].tensor.data[0], std::byte{20});
  cluster.server(0).respond(requests[0].handler, {});
  push.fill(10);
  handlers.push_back(cluster.worker(1).push_pull(std::array{push.item(5)}, {}, soon()));
  requests = batch(cluster.server(0));
  ASSERT_EQ(requests.size(), 3U);
  for (int rank = 0; rank < 3; ++rank) {
    const Request& request = requests[static_cast<std::size_t>(rank)];
    EXPECT_EQ(request.worker, rank);
    const int expected = std::array{0, 10, 21}[static_cast<std::size_t>(rank)];
    EXPECT_EQ(request.tensors[0].tensor.data[0], static_cast<std::byte>(expected));
    cluster.server(0).respond(request.handler, {});
  }
  cluster.worker(2).wait(handlers[0], soon());
  cluster.worker(2).wait(handlers[1], soon());
}

// proves: P4
TEST_P(PushPullTest, AnAnswerOfTheWrongSizeIsAnErrorOnBothSides) {
  Cluster cluster(2, 1, options());
  Tensor push(Dtype::uint8, {8});
  Tensor pull(Dtype::float32, {4});
  Tensor wrong(Dtype::float32, {5});
  const Handler first = ask(cluster.worker(0), push, pull);
  Tensor other(Dtype::float32, {5});
  const Handler second = ask(cluster.worker(1), push, other);
  const auto requests = batch(cluster.server(0));
  const Status refused =
      status_of([&] { cluster.server(0).respond(requests[0].handler, std::array{wrong.view()}); });
  EXPECT_EQ(refused.code, Code::invalid_argument);
  EXPECT_THAT(refused.message, HasSubstr("worker 0"));
  cluster.server(0).respond(requests[1].handler, std::array{wrong.view()});
  const Status failed = status_of([&] { cluster.worker(0).wait(first, soon()); });
  EXPECT_THAT(failed.message, HasSubstr(refused.message));
  cluster.worker(1).wait(second, soon());
  for (const Handler bad : {requests[0].handler, requests[1].handler, Handler{99}}) {
    EXPECT_EQ(status_of([&] { cluster.server(0).respond(bad, {}); }).code, Code::invalid_argument);
  }
  EXPECT_EQ(status_of([&] { cluster.worker(0).wait(Handler{99}, soon()); }).code,
            Code::invalid_argument);
}

// proves: P5
TEST_P(PushPullTest, RowsOfOneBufferAnswerManyWorkers) {
  Cluster cluster(2, 1, options());
  Tensor buffer(Dtype::uint8, {5, 3});
  for (int i = 0; i < 15; ++i) buffer.data()[i] = static_cast<std::byte>(i);
  for (const bool from_row_0 : {false, true}) {
    Tensor two(Dtype::uint8, {2, 3});
    Tensor three(Dtype::uint8, {3, 3});
    const Handler first = ask(cluster.worker(0), two, two);
    const Handler second = ask(cluster.worker(1), three, three);
    const auto requests = batch(cluster.server(0));
    cluster.server(0).respond_rows(buffer.view(), std::array{two.view(), three.view()},
                                   std::array{requests[0].handler, requests[1].handler},
                                   from_row_0);
    cluster.worker(0).wait(first, soon());
    cluster.worker(1).wait(second, soon());
    EXPECT_EQ(std::memcmp(two.data(), buffer.data(), 6), 0);
    EXPECT_EQ(std::memcmp(three.data(), buffer.data() + (from_row_0 ? 0 : 6), 9), 0);
  }
  EXPECT_EQ(status_of([&] {
              cluster.server(0).respond_rows(buffer.view(),
                                             std::array{buffer.view(), buffer.view()},
                                             std::array{Handler{1}, Handler{2}});
            }).code,
            Code::invalid_argument);
}

// proves: P6
TEST_P(PushPullTest, PushesLandInTheRegisteredBuffer) {
  Cluster cluster(2, 1, options());
  Server& server = cluster.server(0);
  for (const bool pooled : {false, true}) {
    Tensor buffer(Dtype::uint8, {4, 1000});
    const auto memory = pooled ? server.allocate(4000) : nullptr;
    if (pooled) buffer.move_to(memory.get());
    server.register_buffer(buffer.view(), std::array{0, 0, 1, 1},
                           std::array<std::int64_t, 4>{1, 2, 1, 2}, memory);
    Tensor first(Dtype::uint8, {1000});
    Tensor second(Dtype::uint8, {10, 50});
    Tensor large(Dtype::uint8, {1001});
    for (int round = 0; round < 3; ++round) {
      first.fill(round);
      second.fill(100 + round);
      std::vector<Handler> handlers;
      for (std::size_t rank = 0; rank < 2; ++rank) {
        handlers.push_back(
            cluster.worker(rank).push_pull(std::array{first.item(1), second.item(2)}, {}, soon()));
      }
      const auto requests = batch(server);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        const auto& tensors = requests[rank].tensors;
        EXPECT_EQ(tensors[0].tensor.data, buffer.data() + 2000 * rank);
        EXPECT_EQ(tensors[1].tensor.data, buffer.data() + 2000 * rank + 1000);
        EXPECT_THAT(tensors[1].tensor.shape, ElementsAre(10, 50));
        EXPECT_EQ(std::memcmp(tensors[0].tensor.data, first.data(), 1000), 0);
        EXPECT_EQ(std::memcmp(tensors[1].tensor.data, second.data(), 500), 0);
        server.respond(requests[rank].handler, {});
        cluster.worker(rank).wait(handlers[rank], soon());
      }
    }
    // Where both see the buffer, no copy is needed once a worker knows of it.
    EXPECT_GE(server.counts().pushes_straight, shared() && pooled ? 8U : 0U);
    EXPECT_LE(server.counts().pushes_straight, shared() && pooled ? 12U : 0U);
    const Handler refused = cluster.worker(0).push_pull(std::array{large.item(1)}, {}, soon());
    EXPECT_THAT(status_of([&] { cluster.worker(0).wait(refused, soon()); }).message,
                HasSubstr("the buffer registered for it has 1000"));
  }
  Tensor odd(Dtype::uint8, {7});
  EXPECT_THAT(status_of([&] {
                server.register_buffer(odd.view(), std::array{0, 1},
                                       std::array<std::int64_t, 2>{1, 1}, nullptr);
              }).message,
              HasSubstr("cannot be divided"));
}

// proves: P3, P6
TEST_P(PushPullTest, AnUnansweredRequestIsNotOverwrittenByTheNext) {
  Cluster cluster(1, 1, options());
  Server& server = cluster.server(0);
  const auto memory = server.allocate(1000);
  Tensor buffer(Dtype::uint8, {1000});
  buffer.move_to(memory.get());
  server.register_buffer(buffer.view(), std::array{0}, std::array<std::int64_t, 1>{1}, memory);
  Tensor push(Dtype::uint8, {1000});
  // Once it is answered the worker knows of the buffer.
  const Handler known = cluster.worker(0).push_pull(std::array{push.item(1)}, {}, soon());
  echo_nothing(server);
  cluster.worker(0).wait(known, soon());
  std::vector<Handler> handlers;
  std::vector<Handler> requests;
  std::vector<std::byte*> places;
  for (int i = 0; i < 4; ++i) {
    push.fill(i);
    handlers.push_back(cluster.worker(0).push_pull(std::array{push.item(1)}, {}, soon()));
    if (i % 2 == 0) continue;  // two at a time
    for (int k = 0; k < 2; ++k) {
      const auto one = batch(server);
      requests.push_back(one[0].handler);
      places.push_back(one[0].tensors[0].tensor.data);
    }
  }
  EXPECT_EQ(places[0], buffer.data());
  for (int i = 0; i < 4; ++i) {
    Tensor expected(Dtype::uint8, {1000});
    expected.fill(i);
    EXPECT_EQ(std::memcmp(places[static_cast<std::size_t>(i)], expected.data(), 1000), 0) << i;
  }
  for (std::size_t i = 0; i < 4; ++i) {
    server.respond(requests[i], {});
    cluster.worker(0).wait(handlers[i], soon());
  }
  // Registered again, elsewhere.
  Tensor other(Dtype::uint8, {1000});
  server.register_buffer(other.view(), std::array{0}, std::array<std::int64_t, 1>{1}, nullptr);
  const Handler handler = cluster.worker(0).push_pull(std::array{push.item(1)}, {}, soon());
  const auto one = batch(server);
  EXPECT_EQ(one[0].tensors[0].tensor.data, other.data());
  EXPECT_EQ(std::memcmp(other.data(), push.data(), 1000), 0);
  server.respond(one[0].handler, {});
  cluster.worker(0).wait(handler, soon());
}

// proves: P7
TEST_P(PushPullTest, AnyTensorOfAnySizeManyAtATime) {
  Cluster cluster(2, 1, options());
  std::jthread server([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::vector<Request> requests;
      for (const int rank : {0, 1}) {
        const auto status = status_of([&] {
          cluster.server(0).get_batch(requests, std::array{rank}, Deadline::after(milliseconds(5)));
        });
        if (status.code == Code::timeout) continue;
        ASSERT_TRUE(status.ok()) << status.message;
        std::vector<TensorView> tensors;
        for (const Received& each : requests[0].tensors) tensors.push_back(each.tensor);
        cluster.server(0).respond(requests[0].handler, tensors);
      }
    }
  });
  const auto work = [&](std::size_t rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    Worker& worker = cluster.worker(rank);
    struct Flight {
      Handler handler;
      std::vector<std::unique_ptr<Tensor>> pushes, pulls;
    };
    std::deque<Flight> flights;
    for (int round = 0; round < 80; ++round) {
      Flight flight;
      std::vector<Item> pushes;
      std::vector<Item> pulls;
      const std::size_t count = random() % 4 + (round == 33 ? 700 : 1);
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<std::int64_t> shape(random() % 10);
        std::int64_t limit = std::int64_t{1} << random() % 16;
        for (std::int64_t& extent : shape) {
          extent = static_cast<std::int64_t>(random() % 5);
          if (extent > limit) extent = 1;
          limit /= std::max<std::int64_t>(extent, 1);
        }
        if (random() % 50 == 0) shape = {400'000};
        const auto dtype = static_cast<Dtype>(random() % all_dtypes().size());
        flight.pushes.push_back(Tensor::strided(dtype, shape, random));
        flight.pulls.push_back(Tensor::strided(dtype, shape, random));
        flight.pushes.back()->fill(static_cast<int>(random() % 250));
        pushes.push_back(flight.pushes.back()->item(static_cast<std::int64_t>(random() % 5)));
        pulls.push_back(flight.pulls.back()->item(static_cast<std::int64_t>(i)));
      }
      flight.handler = worker.push_pull(pushes, pulls, soon());
      flights.push_back(std::move(flight));
      while (flights.size() > random() % 12) {
        Flight& oldest = flights.front();
        worker.wait(oldest.handler, soon());
        for (std::size_t i = 0; i < oldest.pushes.size(); ++i) {
          const std::size_t bytes = bytes_of(oldest.pushes[i]->view());
          std::vector<std::byte> there(bytes);
          std::vector<std::byte> back(bytes);
          pack(oldest.pushes[i]->view(), there.data());
          pack(oldest.pulls[i]->view(), back.data());
          ASSERT_EQ(there, back);
        }
        flights.pop_front();
      }
    }
    for (Flight& flight : flights) worker.wait(flight.handler, soon());
    EXPECT_EQ(worker.counts().requests, 0U);
  };
  std::jthread other([&] { work(1); });
  work(0);
}

// proves: P7
TEST_P(PushPullTest, WhatWasPushedMayBeChangedAtOnce) {
  Cluster cluster(1, 1, options());
  Tensor push(Dtype::uint8, {5'000'000});
  Tensor pull(Dtype::uint8, {5'000'000});
  push.fill(5);
  const Handler handler = ask(cluster.worker(0), push, pull);
  push.fill(6);
  echo(cluster.server(0));
  cluster.worker(0).wait(handler, soon());
  push.fill(5);
  EXPECT_EQ(std::memcmp(pull.data(), push.data(), 5'000'000), 0);
}

// proves: P7
TEST_P(PushPullTest, TooMuchUnderWayMakesThePusherWait) {
  NodeOptions limited = options();
  limited.most_requests = 3;
  limited.most_bytes = 100'000;
  Cluster cluster(1, 1, limited);
  Worker& worker = cluster.worker(0);
  Tensor push(Dtype::uint8, {60'000});
  const auto push_soon = [&](Tensor& tensor) {
    return worker.push_pull(std::array{tensor.item(1)}, {}, Deadline::after(milliseconds(50)));
  };
  const Handler first = push_soon(push);
  EXPECT_THAT(status_of([&] { push_soon(push); }).message, HasSubstr("server 0"));
  echo_nothing(cluster.server(0));
  const Handler second = push_soon(push);
  Tensor small(Dtype::uint8, {1});
  push_soon(small);
  push_soon(small);
  EXPECT_EQ(status_of([&] { push_soon(small); }).code, Code::timeout);
  for (int i = 0; i < 3; ++i) echo_nothing(cluster.server(0));
  worker.wait(first, soon());
  worker.wait(second, soon());
  push_soon(small);
}

// proves: P8
TEST_P(PushPullTest, NonsenseIsRefused) {
  Cluster cluster(1, 2, options());
  Worker& worker = cluster.worker(0);
  Tensor tensor(Dtype::uint8, {4});
  const auto refused = [&](std::vector<Item> pushes, std::vector<Item> pulls) {
    return status_of([&] { worker.push_pull(pushes, pulls, soon()); }).code ==
           Code::invalid_argument;
  };
  EXPECT_TRUE(refused({}, {}));
  EXPECT_TRUE(refused({tensor.item(-1)}, {}));
  EXPECT_TRUE(refused({tensor.item(1)}, {tensor.item(1)})) << "one pull for two servers";
  EXPECT_TRUE(refused({tensor.item(1)}, {tensor.item(1), tensor.item(2), tensor.item(3)}));
  EXPECT_THROW(worker.handlers(Handler{5}), Error);
  EXPECT_THROW(worker.trace(Handler{5}), Error);
}

// proves: P9
TEST_P(PushPullTest, ALateAnswerIsNotWritten) {
  Cluster cluster(1, 2, options());
  Worker& worker = cluster.worker(0);
  const auto memory = worker.allocate(1000);
  Tensor push(Dtype::uint8, {1000});
  push.fill(9);
  Tensor own(Dtype::uint8, {1000});
  Tensor pooled(Dtype::uint8, {1000});
  pooled.move_to(memory.get());
  pooled.fill(1);
  const std::vector<std::byte> before(memory.get(), memory.get() + 1000);
  const Handler handler =
      worker.push_pull(std::array{push.item(1)}, std::array{own.item(1), pooled.item(2)}, soon());
  echo(cluster.server(0));
  const Status late = status_of([&] { worker.wait(handler, Deadline::after(milliseconds(50))); });
  EXPECT_EQ(late.code, Code::timeout);
  EXPECT_THAT(late.message, HasSubstr("server 1"));
  EXPECT_THAT(late.message, Not(HasSubstr("server 0")));
  EXPECT_EQ(status_of([&] { worker.wait(handler, soon()); }), late) << "and remains so";
  echo(cluster.server(1));
  const Handler next =
      worker.push_pull(std::array{push.item(1)}, std::array{own.item(1), own.item(2)}, soon());
  echo(cluster.server(0));
  echo(cluster.server(1));
  worker.wait(next, soon());
  EXPECT_EQ(std::memcmp(pooled.data(), before.data(), 1000), 0);
}

// proves: P7
TEST_P(PushPullTest, PullTensorsInThePoolAreWrittenStraight) {
  Cluster cluster(1, 1, options());
  Worker& worker = cluster.worker(0);
  const auto memory = worker.allocate(100'000);
  Tensor push(Dtype::uint8, {100'000});
  Tensor pull(Dtype::uint8, {100'000});
  pull.move_to(memory.get());
  for (int i = 0; i < 3; ++i) {
    push.fill(i);
    const Handler handler = ask(worker, push, pull);
    echo(cluster.server(0));
    worker.wait(handler, soon());
    EXPECT_EQ(std::memcmp(pull.data(), push.data(), 100'000), 0);
  }
  EXPECT_EQ(worker.counts().answers_straight, 3U);
  EXPECT_EQ(worker.counts().answers_copied, 0U);
}

// proves: P11
TEST_P(PushPullTest, TracesAreInOrder) {
  Cluster cluster(1, 2, options());
  Worker& worker = cluster.worker(0);
  Tensor push(Dtype::uint8, {64});
  const Handler handler = worker.push_pull(std::array{push.item(1)}, {}, soon());
  EXPECT_THROW(worker.trace(handler), Error);
  echo_nothing(cluster.server(1));
  echo_nothing(cluster.server(0));
  worker.wait(handler, soon());
  for (const int server : {0, 1}) {
    const Trace trace = worker.trace(handler, server);
    EXPECT_TRUE(std::ranges::is_sorted(trace));  // one clock here
    EXPECT_GT(trace[0], 0);
  }
  const Trace first = worker.trace(handler, 0);
  const Trace second = worker.trace(handler, 1);
  EXPECT_EQ(worker.trace(handler), first[6] >= second[6] ? first : second) << "the slower one";
  EXPECT_THROW(worker.trace(handler, 2), Error);
}

INSTANTIATE_TEST_SUITE_P(All, PushPullTest, every_transport(), name_of);

}  // namespace
}  // namespace tensorbus::push_pull
