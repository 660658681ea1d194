// Requests that are sent more than once: those that were prepared, and those that the worker
// recognises.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <array>
#include <barrier>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "push_pull/request/pack.h"
#include "push_pull/testing/cluster.h"
#include "tensorbus/pool.h"

namespace tensorbus::push_pull {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

class PreparedTest : public TransportTest {
 protected:
  static constexpr int often = 8;  // until a request is known that was not prepared

  static PreparedRequest prepare(Worker& worker, Tensor& push, Tensor& pull) {
    return worker.prepare(std::array{push.item(1)}, std::array{pull.item(2)});
  }
  // A round trip brings back what was pushed.
  static void expect_echo(Cluster& cluster, const Item& push, const Item& pull) {
    Worker& worker = cluster.worker(0);
    const Handler handler = worker.push_pull({&push, 1}, {&pull, 1}, soon());
    echo(cluster.server(0));
    worker.wait(handler, soon());
    std::vector<std::byte> there(bytes_of(push.tensor));
    std::vector<std::byte> back(bytes_of(pull.tensor));
    pack(push.tensor, there.data());
    pack(pull.tensor, back.data());
    EXPECT_EQ(there, back);
  }
};

// proves: P13
TEST_P(PreparedTest, ARequestThatWasPreparedIsSentWithWhatItsTensorsHoldThen) {
  Cluster cluster(1, 2, options());
  Worker& worker = cluster.worker(0);
  Tensor push(Dtype::float32, {8, 4}, {1, 8});
  Tensor first(Dtype::float32, {8, 4});
  Tensor second(Dtype::float32, {8, 4}, {1, 9});
  PreparedRequest prepared;
  {
    std::vector<Item> pushes{push.item(1)};
    std::vector<Item> pulls{first.item(2), second.item(3)};
    prepared = worker.prepare(pushes, pulls);
    pushes[0].key = -5;  // they were copied
    pulls[0].key = -5;
  }
  constexpr int times = 10;
  for (int i = 0; i < times; ++i) {
    push.fill(i);
    const Handler handler = worker.push_pull(prepared, soon());
    EXPECT_EQ(worker.handlers(handler).size(), 2U);
    push.fill(100);  // what was pushed may be changed at once
    echo(cluster.server(0));
    echo(cluster.server(1));
    worker.wait(handler, soon());
    EXPECT_TRUE(std::ranges::is_sorted(worker.trace(handler)));
    push.fill(i);
    std::vector<std::byte> sent(128);
    std::vector<std::byte> back(128);
    pack(push.view(), sent.data());
    for (Tensor* const pull : {&first, &second}) {
      pack(pull->view(), back.data());
      ASSERT_EQ(sent, back) << i;
    }
  }
  EXPECT_EQ(worker.counts().repeated, shared() ? times - 1U : 0U);
  EXPECT_EQ(worker.counts().requests, 0U);
}

// proves: P13
TEST_P(PreparedTest, ItIsSentAgainBeforeTheLastOneWasAnswered) {
  Cluster cluster(1, 1, options());
  Worker& worker = cluster.worker(0);
  Tensor push(Dtype::uint8, {100});
  const PreparedRequest prepared = worker.prepare(std::array{push.item(1)}, {});
  for (int round = 0; round < 3; ++round) {
    std::vector<Handler> handlers;
    for (int i = 0; i < 5; ++i) {
      push.fill(10 * i);
      handlers.push_back(worker.push_pull(prepared, soon()));
    }
    for (int i = 0; i < 5; ++i) {
      const auto requests = batch(cluster.server(0));
      push.fill(10 * i);
      EXPECT_EQ(std::memcmp(requests[0].tensors[0].tensor.data, push.data(), 100), 0);
      cluster.server(0).respond(requests[0].handler, {});
    }
    for (const Handler handler : handlers) worker.wait(handler, soon());
  }
}

// proves: P13
TEST_P(PreparedTest, TwoThreadsSendTheSame) {
  Cluster cluster(1, 1, options());
  constexpr int times = 200;
  std::jthread server([&] {
    for (int i = 0; i < 2 * times; ++i) echo_nothing(cluster.server(0));
  });
  Worker& worker = cluster.worker(0);
  Tensor push(Dtype::uint8, {100});
  const PreparedRequest prepared = worker.prepare(std::array{push.item(1)}, {});
  const auto send = [&] {
    for (int i = 0; i < times; ++i) worker.wait(worker.push_pull(prepared, soon()), soon());
  };
  std::jthread other(send);
  send();
  other.join();
  EXPECT_EQ(worker.counts().requests, 0U);
}

// Of the slots that threads wait for at once, each comes to one of them, and a request that was
// prepared keeps the slot.
TEST_P(PreparedTest, ThreadsThatSendAtOnceForTheFirstTimeAllGetASlot) {
  constexpr int rounds = 300;
  constexpr int threads = 3;
  Cluster cluster(1, 1, options());
  Worker& worker = cluster.worker(0);
  std::jthread server([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      status_of([&] { echo_nothing(cluster.server(0)); });
    }
  });
  std::vector<std::unique_ptr<Tensor>> pushes;
  std::vector<PreparedRequest> prepared;
  for (int round = 0; round < rounds; ++round) {
    pushes.push_back(std::make_unique<Tensor>(Dtype::uint8, Shape{1000 + 100 * (round % 8)}));
    prepared.push_back(worker.prepare(std::array{pushes.back()->item(1)}, {}));
  }
  std::barrier together(threads);
  const auto send = [&] {
    for (const PreparedRequest& request : prepared) {
      together.arrive_and_wait();
      const Status status =
          status_of([&] { worker.wait(worker.push_pull(request, soon()), soon()); });
      EXPECT_TRUE(status.ok()) << status.message;
    }
  };
  {
    std::vector<std::jthread> all;
    for (int each = 0; each < threads; ++each) all.emplace_back(send);
  }
  server.request_stop();
  // The server may be waiting for a request, or be gone.
  status_of([&] {
    worker.wait(worker.push_pull(prepared.front(), soon()), Deadline::after(milliseconds(100)));
  });
}

// proves: P13
TEST_P(PreparedTest, OnlyItsOwnWorkerSendsIt) {
  Cluster cluster(2, 1, options());
  Tensor push(Dtype::uint8, {8});
  Tensor pull(Dtype::uint8, {8});
  const PreparedRequest prepared = prepare(cluster.worker(0), push, pull);
  for (const PreparedRequest& wrong : {prepared, PreparedRequest()}) {
    const Status refused = status_of([&] { cluster.worker(1).push_pull(wrong, soon()); });
    EXPECT_EQ(refused.code, Code::invalid_argument);
    EXPECT_THAT(refused.message, HasSubstr("has not prepared"));
  }
}

// proves: P13
TEST_P(PreparedTest, NonsenseIsRefusedWhenItIsPrepared) {
  Cluster cluster(1, 2, options());
  Worker& worker = cluster.worker(0);
  Tensor tensor(Dtype::uint8, {4});
  Item read_only = tensor.item(1);
  read_only.tensor.read_only = true;
  const auto refused = [&](std::vector<Item> pushes, std::vector<Item> pulls) {
    return status_of([&] { worker.prepare(pushes, pulls); }).code == Code::invalid_argument;
  };
  EXPECT_TRUE(refused({}, {}));
  EXPECT_TRUE(refused({tensor.item(-1)}, {}));
  EXPECT_TRUE(refused({tensor.item(1)}, {tensor.item(1)})) << "one pull for two servers";
  EXPECT_TRUE(refused({tensor.item(1)}, {read_only, tensor.item(1)}));
}

// proves: P13
TEST_P(PreparedTest, AfterTheDeathOfAServerItIsRefused) {
  Cluster cluster(1, 1, options());
  Worker& worker = cluster.worker(0);
  Tensor push(Dtype::uint8, {8});
  Tensor pull(Dtype::uint8, {8});
  const PreparedRequest prepared = prepare(worker, push, pull);
  for (int i = 0; i < 2; ++i) {
    const Handler handler = worker.push_pull(prepared, soon());
    echo(cluster.server(0));
    worker.wait(handler, soon());
  }
  const Handler last = worker.push_pull(prepared, soon());
  cluster.kill_server(0);
  EXPECT_EQ(status_of([&] { worker.wait(last, soon()); }).code, Code::peer_lost);
  const Status refused = status_of([&] { worker.push_pull(prepared, soon()); });
  EXPECT_EQ(refused.code, Code::peer_lost);
  EXPECT_THAT(refused.message, HasSubstr("server 0"));
}

// proves: P13, P3
TEST_P(PreparedTest, AServerGoesOnAfterTheDeathOfAWorkerThatRepeatsItself) {
  Cluster cluster(2, 1, options());
  Tensor push(Dtype::uint8, {8});
  Tensor pull(Dtype::uint8, {8});
  for (int i = 0; i < often + 2; ++i) {
    std::vector<Handler> handlers;
    for (const std::size_t rank : {0U, 1U}) {
      handlers.push_back(cluster.worker(rank).push_pull(std::array{push.item(1)},
                                                        std::array{pull.item(1)}, soon()));
    }
    if (i == often + 1) break;
    echo(cluster.server(0));
    for (const std::size_t rank : {0U, 1U}) cluster.worker(rank).wait(handlers[rank], soon());
  }
  const auto requests = batch(cluster.server(0));
  ASSERT_EQ(requests.size(), 2U);
  cluster.kill_worker(1);
  EXPECT_EQ(status_of([&] { batch(cluster.server(0), {1}); }).code, Code::peer_lost);
  cluster.server(0).respond(requests[1].handler, std::array{requests[1].tensors[0].tensor});
  cluster.server(0).respond(requests[0].handler, std::array{requests[0].tensors[0].tensor});
  expect_echo(cluster, push.item(1), pull.item(1));
  EXPECT_EQ(cluster.server(0).counts().requests, 0U);
}

// proves: P13, P9
TEST_P(PreparedTest, ItIsSentAgainAfterATimeout) {
  Cluster cluster(1, 1, options());
  Worker& worker = cluster.worker(0);
  Tensor push(Dtype::uint8, {1000});
  Tensor pull(Dtype::uint8, {1000});
  const auto memory = worker.allocate(1000);
  pull.move_to(memory.get());
  const PreparedRequest prepared = prepare(worker, push, pull);
  for (int i = 0; i < 4; ++i) {
    push.fill(i);
    const Handler late = worker.push_pull(prepared, soon());
    EXPECT_EQ(status_of([&] { worker.wait(late, Deadline::after(milliseconds(20))); }).code,
              Code::timeout);
    push.fill(50 + i);
    const Handler handler = worker.push_pull(prepared, soon());
    echo(cluster.server(0));
    echo(cluster.server(0));
    worker.wait(handler, soon());
    EXPECT_EQ(std::memcmp(pull.data(), push.data(), 1000), 0);
  }
}

// proves: P4, P13
TEST_P(PreparedTest, AWrongAnswerHarmsOnlyItself) {
  Cluster cluster(1, 1, options());
  Worker& worker = cluster.worker(0);
  Tensor push(Dtype::uint8, {10});
  Tensor pull(Dtype::uint8, {10});
  const PreparedRequest prepared = prepare(worker, push, pull);
  for (int i = 0; i < 4; ++i) {
    const Handler handler = worker.push_pull(prepared, soon());
    if (i % 2 == 0) {
      EXPECT_THROW(echo_nothing(cluster.server(0)), Error);
      EXPECT_EQ(status_of([&] { worker.wait(handler, soon()); }).code, Code::invalid_argument);
    } else {
      echo(cluster.server(0));
      worker.wait(handler, soon());
    }
  }
}

// proves: P6, P13
TEST_P(PreparedTest, ItLandsInABufferThatIsRegisteredLater) {
  Cluster cluster(1, 1, options());
  Worker& worker = cluster.worker(0);
  Server& server = cluster.server(0);
  Tensor push(Dtype::uint8, {100});
  Tensor pull(Dtype::uint8, {100});
  const PreparedRequest prepared = prepare(worker, push, pull);
  const auto memory = server.allocate(100);
  Tensor own(Dtype::uint8, {100});
  Tensor pooled(Dtype::uint8, {100});
  pooled.move_to(memory.get());
  for (Tensor* const buffer : {&own, &pooled}) {
    for (int i = 0; i < 8; ++i) {
      push.fill(i);
      const Handler handler = worker.push_pull(prepared, soon());
      if (i == 3) {  // it is under way, and the worker does not know of the buffer
        server.register_buffer(buffer->view(), std::array{0}, std::array{std::int64_t{1}}, memory);
      }
      const auto requests = batch(server);
      const TensorView& tensor = requests[0].tensors[0].tensor;
      EXPECT_EQ(tensor.data == buffer->data(), i >= 3) << i;
      EXPECT_THAT(tensor.shape, ElementsAre(100));
      server.respond(requests[0].handler, {&tensor, 1});
      worker.wait(handler, soon());
      EXPECT_EQ(std::memcmp(pull.data(), push.data(), 100), 0) << i;
    }
  }
}

// proves: P13
TEST_P(PreparedTest, TheSameTensorsAreRecognised) {
  Cluster cluster(1, 1, options());
  Tensor push(Dtype::uint8, {64});
  Tensor pull(Dtype::uint8, {64});
  for (int i = 0; i < often + 4; ++i) {
    push.fill(i);
    expect_echo(cluster, push.item(1), pull.item(2));
  }
  EXPECT_EQ(cluster.worker(0).counts().repeated, shared() ? 4U : 0U);
  const auto slots = cluster.worker(0).counts().slots;
  Tensor large(Dtype::uint8, {100'000});
  for (int i = 0; i < often + 4; ++i) expect_echo(cluster, large.item(1), large.item(2));
  EXPECT_EQ(cluster.worker(0).counts().repeated, shared() ? 4U : 0U) << "not worth it";
  EXPECT_EQ(cluster.worker(0).counts().slots, slots + 1);
}

// proves: P13
TEST_P(PreparedTest, WhatHasChangedIsNotTakenForTheSame) {
  Cluster cluster(1, 1, options());
  Worker& worker = cluster.worker(0);
  Tensor push(Dtype::uint8, {8, 8});
  Tensor pull(Dtype::uint8, {8, 8});
  const std::vector<std::int64_t> shape{4, 16};
  const std::vector<std::int64_t> strides{1, 8};
  const std::vector<std::int64_t> fewer{8, 4};
  for (int i = 0; i < often + 4; ++i) {
    push.fill(i);
    Item pushed = push.item(1);
    Item pulled = pull.item(2);
    expect_echo(cluster, pushed, pulled);
    pushed.tensor.strides = strides;
    expect_echo(cluster, pushed, pulled);
    pulled.tensor.strides = strides;
    expect_echo(cluster, pushed, pulled);
    pushed = push.item(1);
    pushed.tensor.shape = fewer;
    pulled.tensor.shape = fewer;
    expect_echo(cluster, pushed, pulled);
    pushed = push.item(7);
    pushed.tensor.dtype = Dtype::int8;
    const std::vector<std::int64_t> dense{16, 1};
    pushed.tensor.shape = shape;
    pushed.tensor.strides = dense;
    const Handler handler = worker.push_pull({&pushed, 1}, {}, soon());
    const auto requests = batch(cluster.server(0));
    EXPECT_EQ(requests[0].tensors[0].key, 7);
    EXPECT_EQ(requests[0].tensors[0].tensor.dtype, Dtype::int8);
    EXPECT_THAT(requests[0].tensors[0].tensor.shape, ElementsAre(4, 16));
    cluster.server(0).respond(requests[0].handler, {});
    worker.wait(handler, soon());
  }
}

// While one thread waits for room others send what is alike but for its tensors.
// proves: P13
TEST_P(PreparedTest, ThreadsThatRepeatThemselvesGetTheirOwn) {
  NodeOptions crowded = options();
  crowded.most_requests = 2;
  Cluster cluster(1, 1, crowded);
  constexpr int threads = 4;
  constexpr int times = 60;
  std::jthread server([&] {
    for (int i = 0; i < threads * times; ++i) echo(cluster.server(0));
  });
  const auto repeat = [&](int thread) {
    Tensor push(Dtype::uint8, {200});
    Tensor pull(Dtype::uint8, {200});
    for (int i = 0; i < times; ++i) {
      push.fill(50 * thread + i);
      Worker& worker = cluster.worker(0);
      worker.wait(worker.push_pull(std::array{push.item(1)}, std::array{pull.item(1)}, soon()),
                  soon());
      EXPECT_EQ(std::memcmp(push.data(), pull.data(), 200), 0) << thread << " " << i;
    }
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(repeat, thread);
  repeat(0);
}

// The address of memory that was freed belongs to whatever came in its place.
// proves: P13
TEST_P(PreparedTest, OtherMemoryAtTheAddressOfAPullTensorIsWhereTheAnswerGoes) {
  constexpr std::size_t bytes = 8192;
  NodeOptions with_pool = options();
  with_pool.pool = make_pool(bytes);  // a segment for every block
  Cluster cluster(1, 1, with_pool);
  Tensor push(Dtype::uint8, {bytes});
  Tensor pull(Dtype::uint8, {bytes});
  auto pooled = allocate(*with_pool.pool, bytes);
  std::byte* const address = pooled.get();
  pull.move_to(address);
  constexpr int times = often + 2;
  const auto expect_echoes = [&](int seed) {
    for (int i = 0; i < times; ++i) {
      push.fill(seed + i);
      expect_echo(cluster, push.item(1), pull.item(2));
    }
  };
  expect_echoes(0);
  EXPECT_EQ(cluster.worker(0).counts().answers_copied, 0U);
  pooled.reset();
  trim(*with_pool.pool);
  void* const mapped = ::mmap(address, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (mapped != address) GTEST_SKIP() << "something else came to the address";
  expect_echoes(100);
  EXPECT_EQ(cluster.worker(0).counts().answers_copied, shared() ? unsigned{times} : 0U);
  ::munmap(mapped, bytes);
}

// proves: P7, P13
TEST_P(PreparedTest, MoreThanCanBeRememberedAreRight) {
  Cluster cluster(1, 1, options());
  Tensor push(Dtype::uint8, {300});
  Tensor pull(Dtype::uint8, {300});
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t key = 0; key < 160; ++key) {
      for (int i = 0; i < often + 1; ++i) {
        push.fill(round + i + static_cast<int>(key));
        expect_echo(cluster, push.item(key), pull.item(key));
      }
    }
  }
  EXPECT_LE(cluster.worker(0).counts().slots, 130U);
  EXPECT_EQ(cluster.server(0).counts().requests, 0U);
}

INSTANTIATE_TEST_SUITE_P(All, PreparedTest, every_transport(), name_of);

}  // namespace
}  // namespace tensorbus::push_pull
