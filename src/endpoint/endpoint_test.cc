#include "tensorbus/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <numeric>
#include <thread>

#include "base/clock.h"
#include "base/testing/calls.h"
#include "fabric/conformance/two_hosts.h"
#include "fabric/core/descriptor.h"
#include "fabric/core/pool.h"
#include "fabric/ucx/ucx.h"

namespace tensorbus::endpoint {
namespace {

using fabric::Child;
using fabric::Descriptor;
using fabric::NamespaceGuard;
using fabric::Pipe;
using fabric::Pool;
using fabric::TwoHosts;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// Whole numbers that every float holds, in memory of its own.
struct Numbers {
  explicit Numbers(Shape extents, std::shared_ptr<std::byte> where = nullptr)
      : shape(std::move(extents)) {
    std::int64_t count = 1;
    for (std::size_t dim = shape.size(); dim-- > 0; count *= shape[dim]) {
      strides.insert(strides.begin(), count);
    }
    size = static_cast<std::size_t>(count);
    memory = where != nullptr ? where
                              : std::shared_ptr<std::byte>(new std::byte[size * 4 + 4],
                                                           std::default_delete<std::byte[]>());
    std::ranges::fill(values(), -1.0F);
  }
  std::span<float> values() const { return {reinterpret_cast<float*>(memory.get()), size}; }
  void count_up(float from = 0) const { std::iota(values().begin(), values().end(), from); }
  TensorView view() const { return {memory.get(), Dtype::float32, shape, strides}; }

  Shape shape;
  Shape strides;
  std::size_t size = 0;
  std::shared_ptr<std::byte> memory;
};

EndpointOptions knowing(const std::string& secret) {
  EndpointOptions options;
  options.secret = secret;
  options.secret_in_descriptors = false;
  return options;
}

EndpointOptions bound_to(const std::string& address, const std::string& name) {
  EndpointOptions options;
  options.name = name;
  options.bind = address;
  return options;
}

Status outcome(const ReadOperation& read, Deadline deadline = soon()) {
  try {
    read.wait(deadline);
    return {};
  } catch (const Error& error) {
    return error.status();
  }
}

std::string expose(Endpoint& endpoint, const Numbers& numbers) {
  const TensorView view = numbers.view();
  return endpoint.expose({&view, 1});
}

ReadOperation read(Endpoint& endpoint, const std::string& descriptor, const Numbers& into,
                   Deadline deadline = Deadline::never()) {
  const TensorView view = into.view();
  return endpoint.read(descriptor, {&view, 1}, deadline);
}

// A process with an endpoint that exposes a tensor until it is told otherwise.
class Owner {
 public:
  explicit Owner(std::int64_t elements, bool pooled = false, EndpointOptions options = {})
      : child_([&] { serve(elements, pooled, std::move(options)); }), descriptor_(up_.get()) {}

  const std::string& descriptor() const { return descriptor_; }
  const Child& process() const { return child_; }
  void release() const {
    down_.put("release");
    up_.get();
  }

 private:
  void serve(std::int64_t elements, bool pooled, EndpointOptions options) const {
    options.name = "owner";
    options.pool = std::make_shared<Pool>();
    Endpoint endpoint(options);
    const Numbers numbers(
        {elements}, pooled ? endpoint.allocate(static_cast<std::size_t>(elements) * 4) : nullptr);
    numbers.count_up();
    const std::string descriptor = expose(endpoint, numbers);
    up_.put(descriptor);
    while (true) {
      pollfd told{down_.readable(), POLLIN, 0};
      if (::poll(&told, 1, -1) != 1) continue;
      if (down_.get() == "release") endpoint.release(descriptor);
      std::ranges::fill(numbers.values(), -7.0F);
      up_.put("done");
    }
  }

  Pipe up_;
  Pipe down_;
  Child child_;
  std::string descriptor_;
};

TEST(EndpointTest, ManyTensorsOfAllKindsComeInOneCall) {
  Endpoint source;
  Endpoint reader;
  const Numbers pooled({100, 30}, source.allocate(12'000));
  const Numbers own({2, 3, 4});
  const Numbers scalar({});
  const Numbers nothing({0, 5});
  for (const Numbers* each : {&pooled, &own, &scalar, &nothing}) each->count_up(7);
  // Every second column, transposed.
  const Shape strided_shape{15, 100};
  const Shape strided_strides{2, 30};
  const TensorView views[] = {
      pooled.view(),
      own.view(),
      scalar.view(),
      nothing.view(),
      {pooled.memory.get(), Dtype::float32, strided_shape, strided_strides}};
  const std::string descriptor = source.expose(views);
  EXPECT_EQ(Endpoint::describe(descriptor).tensors[4].shape, strided_shape);

  const Numbers targets[] = {Numbers({100, 30}), Numbers({2, 3, 4}), Numbers({}), Numbers({0, 5}),
                             Numbers({15, 100})};
  std::vector<TensorView> into;
  for (const Numbers& target : targets) into.push_back(target.view());
  reader.read(descriptor, into, Deadline::never()).wait(soon());
  EXPECT_TRUE(std::ranges::equal(targets[0].values(), pooled.values()));
  EXPECT_TRUE(std::ranges::equal(targets[1].values(), own.values()));
  EXPECT_EQ(targets[2].values()[0], 7.0F);
  EXPECT_EQ(targets[4].values()[101], pooled.values()[30 + 2]);
}

TEST(EndpointTest, TypesAreConvertedAndPathsAreCounted) {
  Endpoint source;
  Endpoint reader;
  const Numbers numbers({1000}, source.allocate(4000));
  numbers.count_up();
  const std::string descriptor = expose(source, numbers);
  std::vector<double> wide(1000);
  const TensorView into{reinterpret_cast<std::byte*>(wide.data()), Dtype::float64, numbers.shape,
                        numbers.strides};
  const ReadOperation operation = reader.read(descriptor, {&into, 1});
  operation.wait(soon());
  EXPECT_EQ(wide[999], 999.0);
  EXPECT_EQ(operation.path(), "mapped");
  EXPECT_EQ(reader.stats().paths["mapped"].reads, 1u);
  EXPECT_EQ(reader.stats().paths["mapped"].bytes, 4000u);
  EXPECT_EQ(reader.stats().connections, 1u);
  EXPECT_EQ(source.stats().exposures, 1u);
}

std::size_t lent_by(Pool& pool) { return pool.use().lent_bytes; }

template <typename Condition>
void eventually(Condition condition) {
  const Deadline deadline = soon();
  while (!condition() && !deadline.expired()) std::this_thread::sleep_for(milliseconds(2));
  EXPECT_TRUE(condition());
}

TEST(EndpointTest, FrozenTensorsAreAliasedAndTheirMemoryWaitsForTheLastAlias) {
  EndpointOptions options;
  options.pool = std::make_shared<Pool>();
  Endpoint source(options);
  Endpoint reader;
  auto numbers = std::make_unique<Numbers>(Shape{1'000'000}, source.allocate(4'000'000));
  numbers->count_up();
  const Numbers empty({0});
  const Shape every_second{500};
  const Shape stride{2};
  const TensorView views[] = {numbers->view(),
                              empty.view(),
                              {numbers->memory.get() + 400, Dtype::float32, every_second, stride}};
  const std::string descriptor = source.expose_frozen(views);
  EXPECT_TRUE(Endpoint::describe(descriptor).frozen);

  ReadOperation operation = reader.read_frozen(descriptor);
  operation.wait(soon());
  EXPECT_EQ(operation.path(), "alias");
  std::shared_ptr<const Received> first = operation.received();
  operation = reader.read_frozen(descriptor);
  operation.wait(soon());
  std::shared_ptr<const Received> second = operation.received();
  operation = reader.read_frozen(descriptor);
  operation.cancel();
  outcome(operation);
  operation = reader.read_frozen(descriptor);

  const auto at = [](const Received& aliases, std::size_t tensor, std::size_t index) -> float& {
    return reinterpret_cast<float*>(aliases.tensors[tensor])[index];
  };
  EXPECT_EQ(at(*first, 0, 999'999), 999'999.0F);
  EXPECT_EQ(first->tensors[1], nullptr);
  EXPECT_EQ(at(*first, 2, 2), 102.0F);
  at(*first, 0, 5) = -1;
  EXPECT_EQ(at(*second, 0, 5), 5.0F) << "what one writes is its own";
  EXPECT_EQ(numbers->values()[5], 5.0F);

  outcome(operation);
  const std::size_t lent = lent_by(*options.pool);
  source.release(descriptor);
  numbers.reset();
  EXPECT_EQ(outcome(reader.read_frozen(descriptor)).code, Code::withdrawn);
  operation = reader.read_frozen(descriptor);
  outcome(operation);
  first.reset();
  EXPECT_GE(lent_by(*options.pool), lent - 1000) << "the second alias still has it";
  EXPECT_EQ(at(*second, 0, 77), 77.0F);
  second.reset();
  eventually([&] { return lent_by(*options.pool) < 4'000'000; });
}

TEST(EndpointTest, OnlyPooledTensorsFreezeAndOnlyFrozenOnesAreAliased) {
  Endpoint endpoint;
  const Numbers own({10});
  const TensorView view = own.view();
  EXPECT_THROW(endpoint.expose_frozen({&view, 1}), Error);
  EXPECT_THROW(endpoint.read_frozen(expose(endpoint, own)), Error);
}

TEST(EndpointTest, AliasesOutliveTheirOwnerAndDieWithTheirHolder) {
  const Pipe up;
  const Pipe down;
  auto holder = std::make_unique<Child>([&] {
    auto reader = std::make_unique<Endpoint>();
    const ReadOperation operation = reader->read_frozen(down.get());
    operation.wait(soon());
    const auto aliases = operation.received();
    reader->close();  // the connection goes, the alias stays
    up.put("held");
    down.get();
    up.put(std::to_string(reinterpret_cast<const float*>(aliases->tensors[0])[99'999]));
    down.get();
  });
  EndpointOptions options;
  options.pool = std::make_shared<Pool>();
  auto source = std::make_unique<Endpoint>(options);
  auto numbers = std::make_unique<Numbers>(Shape{100'000}, source->allocate(400'000));
  numbers->count_up();
  const TensorView view = numbers->view();
  const std::string descriptor = source->expose_frozen({&view, 1});
  down.put(descriptor);
  EXPECT_EQ(up.get(), "held");
  source->release(descriptor);
  numbers.reset();
  // Whoever asks for memory now must not get theirs.
  const Numbers other({100'000}, source->allocate(400'000));
  std::ranges::fill(other.values(), -1.0F);
  down.put("look");
  EXPECT_EQ(up.get(), "99999.000000");
  const std::size_t lent = lent_by(*options.pool);
  holder.reset();
  eventually([&] { return lent_by(*options.pool) <= lent - 400'000; });
}

TEST(EndpointTest, AnEndpointReadsFromItself) {
  Endpoint endpoint;
  const Numbers numbers({10});
  numbers.count_up();
  const Numbers target({10});
  read(endpoint, expose(endpoint, numbers), target).wait(soon());
  EXPECT_EQ(target.values()[9], 9.0F);
}

TEST(EndpointTest, BadTargetsAreRefusedBeforeAnythingHappens) {
  Endpoint endpoint;
  const Numbers numbers({10});
  const std::string descriptor = expose(endpoint, numbers);
  const auto refusal = [&](const std::vector<TensorView>& into) {
    try {
      endpoint.read(descriptor, into);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      return std::string(error.what());
    }
    return std::string("was not refused");
  };
  EXPECT_THAT(refusal({}), HasSubstr("1 tensors, 0 targets"));
  EXPECT_THAT(refusal({Numbers({9}).view()}), HasSubstr("target 0 is float32"));
  TensorView read_only = numbers.view();
  read_only.read_only = true;
  EXPECT_THAT(refusal({read_only}), HasSubstr("read-only"));
}

// proves: G3.2
TEST(EndpointTest, BoxesComeByEveryPath) {
  Endpoint source;
  Endpoint reader;
  const Numbers pooled({100, 30}, source.allocate(12'000));
  const Numbers own({4, 5, 6});
  for (const Numbers* each : {&pooled, &own}) each->count_up();
  const TensorView views[] = {pooled.view(), own.view()};
  const std::string descriptor = source.expose(views);
  const Numbers rows({2, 30});
  const Numbers corner({1, 2, 3});
  const Numbers nothing({0, 5});
  const TensorView into[] = {rows.view(), corner.view(), nothing.view()};
  const Endpoint::Part parts[] = {{0, {98, 0}}, {1, {3, 3, 3}}, {0, {100, 25}}};
  const ReadOperation operation = reader.read(descriptor, into, parts);
  operation.wait(soon());
  EXPECT_EQ(rows.values()[59], 2999.0F);
  EXPECT_EQ(corner.values()[0], static_cast<float>(3 * 30 + 3 * 6 + 3));
  EXPECT_EQ(corner.values()[5], 119.0F);
  EXPECT_EQ(reader.stats().paths[operation.path()].bytes, (60u + 6u) * 4u);
  const Endpoint::Part outside[] = {{0, {99, 0}}, {1, {3, 3, 3}}, {0, {100, 25}}};
  EXPECT_THROW(reader.read(descriptor, into, outside), Error);
  EXPECT_THROW(reader.read(descriptor, into, std::span(parts).first(2)), Error);
}

TEST(EndpointTest, BadDescriptorsAreRefusedWithTheirReason) {
  Endpoint source;
  Endpoint reader;
  const Numbers numbers({10});
  const Numbers target({10});
  const std::string good = expose(source, numbers);
  EXPECT_THROW(read(reader, "nonsense", target), Error);

  const auto changed = [&](auto change) {
    Descriptor descriptor = fabric::decode_descriptor(good);
    change(descriptor);
    Endpoint fresh;  // has no connection yet
    return outcome(read(fresh, encode(descriptor), target));
  };
  const Status forged = changed([](Descriptor& d) { d.secret = "guess"; });
  EXPECT_EQ(forged.code, Code::denied);
  EXPECT_THAT(forged.message, HasSubstr("secret"));
  EXPECT_EQ(changed([](Descriptor& d) { d.owner.start_time += 1; }).code, Code::invalid_argument);
  EXPECT_EQ(changed([](Descriptor& d) { d.owner.id[0] ^= 1; }).code, Code::invalid_argument);
  EXPECT_EQ(changed([](Descriptor& d) { d.ways[0].region += 5; }).code, Code::withdrawn);
  const Status foreign = changed([](Descriptor& d) { d.owner.host = "elsewhere"; });
  EXPECT_EQ(foreign.code, Code::unreachable);
  EXPECT_THAT(foreign.message, HasSubstr("another host"));
  EXPECT_EQ(changed([](Descriptor& d) { d.ways[0].where += "x"; }).code, Code::unreachable);
  const Status lies = changed([](Descriptor& d) { d.forms[0].strides[0] = 1000; });
  EXPECT_THAT(lies.message, HasSubstr("does not describe what its owner exposes"));

  // The same over a connection that a good one opened.
  read(reader, good, target).wait(soon());
  Descriptor descriptor = fabric::decode_descriptor(good);
  descriptor.secret = "guess";
  EXPECT_EQ(outcome(read(reader, encode(descriptor), target)).code, Code::denied);
  descriptor = fabric::decode_descriptor(good);
  descriptor.owner.pid += 1;
  EXPECT_EQ(outcome(read(reader, encode(descriptor), target)).code, Code::invalid_argument);
}

TEST(EndpointTest, ReleasedTensorsAreWithdrawn) {
  Endpoint source;
  Endpoint reader;
  const Numbers numbers({10});
  const Numbers target({10});
  const std::string descriptor = expose(source, numbers);
  read(reader, descriptor, target).wait(soon());
  EXPECT_TRUE(source.release(descriptor));
  EXPECT_FALSE(source.release(descriptor));
  EXPECT_EQ(outcome(read(reader, descriptor, target)).code, Code::withdrawn);
  EXPECT_EQ(outcome(read(reader, descriptor, target)).code, Code::withdrawn);
  EXPECT_THROW(reader.release(descriptor), Error) << "it is another endpoint's";
}

TEST(EndpointTest, ASecretMayBeKnownWithoutTheDescriptor) {
  Endpoint source(knowing("both know it"));
  Endpoint friendly(knowing("both know it"));
  Endpoint stranger;
  const Numbers numbers({10});
  const Numbers target({10});
  const std::string descriptor = expose(source, numbers);
  EXPECT_EQ(descriptor.find("both know it"), std::string::npos);
  read(friendly, descriptor, target).wait(soon());
  EXPECT_EQ(outcome(read(stranger, descriptor, target)).code, Code::denied);
}

TEST(EndpointTest, CloseEndsWhatRuns) {
  const Owner owner(20'000'000);
  auto reader = std::make_unique<Endpoint>();
  const Numbers target({20'000'000});
  std::vector<ReadOperation> operations;
  for (int i = 0; i < 4; ++i) operations.push_back(read(*reader, owner.descriptor(), target));
  reader->close();
  for (const ReadOperation& operation : operations) {
    ASSERT_TRUE(operation.done());
    const Status status = outcome(operation);
    EXPECT_TRUE(status.ok() || status.code == Code::cancelled) << status.message;
  }
  EXPECT_EQ(outcome(operations.back()).code, Code::cancelled);
  try {
    read(*reader, owner.descriptor(), target);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::cancelled);
  }
  reader->close();
}

TEST(EndpointTest, CancelAndDeadlineEndARead) {
  const Owner owner(1'000'000);
  Endpoint reader;
  const Numbers target({1'000'000});
  read(reader, owner.descriptor(), target).wait(soon());
  const Owner stopped(1'000'000);
  stopped.process().signal(SIGSTOP);
  const ReadOperation cancelled = read(reader, stopped.descriptor(), target);
  EXPECT_EQ(outcome(cancelled, Deadline::after(milliseconds(50))).code, Code::timeout);
  EXPECT_FALSE(cancelled.done());
  cancelled.cancel();
  EXPECT_EQ(outcome(cancelled).code, Code::cancelled);
  const ReadOperation late =
      read(reader, stopped.descriptor(), target, Deadline::after(milliseconds(50)));
  const Status status = outcome(late);
  EXPECT_EQ(status.code, Code::timeout);
  EXPECT_THAT(status.message, HasSubstr("owner (pid"));
  EXPECT_TRUE(late.done());
}

TEST(EndpointTest, AReadDuringTheReleaseIsWholeOrRefused) {
  Endpoint reader;
  const Numbers target({4'000'000});
  int whole = 0;
  for (const bool pooled : {true, false}) {
    for (int i = 0; i < 6; ++i) {
      const Owner owner(4'000'000, pooled);
      std::ranges::fill(target.values(), -1.0F);
      const ReadOperation operation = read(reader, owner.descriptor(), target);
      std::this_thread::sleep_for(milliseconds(i));
      owner.release();  // and overwrites it
      const Status status = outcome(operation);
      if (!status.ok()) {
        EXPECT_EQ(status.code, Code::withdrawn) << status.message;
        continue;
      }
      ++whole;
      for (std::size_t at = 0; at < target.size; at += 4096) {
        ASSERT_EQ(target.values()[at], static_cast<float>(at));
      }
    }
  }
  RecordProperty("whole", whole);
}

TEST(EndpointTest, AKilledOwnerIsNamedAtOnce) {
  Endpoint reader;
  const Numbers target({20'000'000});
  auto owner = std::make_unique<Owner>(20'000'000);
  const Numbers first({20'000'000});
  read(reader, owner->descriptor(), first).wait(soon());
  const ReadOperation during = read(reader, owner->descriptor(), target);
  owner->process().signal(SIGKILL);
  const TimePoint killed = now();
  const Status status = outcome(during);
  EXPECT_LT(now() - killed, seconds(2));
  if (!status.ok()) {
    EXPECT_EQ(status.code, Code::peer_lost);
    EXPECT_THAT(status.message, HasSubstr("owner (pid"));
  }
  const Status after = outcome(read(reader, owner->descriptor(), target));
  EXPECT_LT(now() - killed, seconds(2));
  EXPECT_TRUE(after.code == Code::peer_lost || after.code == Code::unreachable) << after.message;
  EXPECT_THAT(after.message, HasSubstr("owner (pid"));
}

TEST(EndpointTest, ThreadsShareAnEndpoint) {
  Endpoint source;
  Endpoint reader;
  std::vector<std::future<void>> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.push_back(std::async(std::launch::async, [&, thread] {
      for (int i = 0; i < 50; ++i) {
        const Numbers numbers({1000});
        numbers.count_up(static_cast<float>(thread * 100 + i));
        const Numbers target({1000});
        const std::string descriptor = expose(source, numbers);
        read(reader, descriptor, target).wait(soon());
        EXPECT_TRUE(std::ranges::equal(target.values(), numbers.values()));
        EXPECT_TRUE(source.release(descriptor));
      }
    }));
  }
  for (auto& thread : threads) thread.get();
}

TEST(EndpointTest, AForkedChildIsRefusedAndHarmsNobody) {
  Endpoint source;
  Endpoint reader;
  const Numbers numbers({10});
  const Numbers target({10});
  const std::string descriptor = expose(source, numbers);
  read(reader, descriptor, target).wait(soon());
  const Pipe report;
  {
    const Child child([&] {
      auto local = std::make_unique<Endpoint>();  // its own works
      const std::string own = expose(*local, numbers);
      read(*local, own, target).wait(soon());
      try {
        read(reader, descriptor, target);
        report.put("read");
      } catch (const Error& error) {
        report.put(error.what());
      }
    });
    EXPECT_THAT(report.get(), HasSubstr("fork"));
  }
  read(reader, descriptor, target).wait(soon());
}

TEST(EndpointTest, OtherHostsAreReachedThroughTheNetwork) {
  if (!TwoHosts::unavailable().empty()) GTEST_SKIP() << TwoHosts::unavailable();
  if (!fabric::has_ucx()) GTEST_SKIP() << fabric::describe_ucx();
  const TwoHosts hosts;
  const Pipe up;
  const Pipe down;
  const Child owner([&] {
    hosts.enter(1);
    Endpoint endpoint(bound_to(TwoHosts::address(1), "owner"));
    const Numbers numbers({3'000'000}, endpoint.allocate(12'000'000));
    numbers.count_up();
    up.put(expose(endpoint, numbers));
    const TensorView view = numbers.view();
    up.put(endpoint.expose_frozen({&view, 1}));
    down.get();
  });
  const std::string descriptor = up.get();
  const std::string frozen = up.get();
  const NamespaceGuard guard;
  hosts.enter(0);
  const Numbers target({3'000'000});
  {
    Endpoint here_only;
    const Status status = outcome(read(here_only, descriptor, target));
    EXPECT_EQ(status.code, Code::unreachable);
    EXPECT_THAT(status.message, HasSubstr("ucx: this process uses no network"));
  }
  Endpoint reader(bound_to(TwoHosts::address(0), "reader"));
  const ReadOperation operation = read(reader, descriptor, target);
  operation.wait(soon());
  EXPECT_EQ(operation.path(), "network");
  EXPECT_EQ(target.values()[2'999'999], 2'999'999.0F);
  {
    const Numbers some({7});
    const Numbers others({3});
    const TensorView views[] = {some.view(), others.view()};
    const Endpoint::Part parts[] = {{0, {2'000'000}}, {0, {5}}};
    for (int i = 0; i < 2; ++i) {  // the second time the owner knows them
      const ReadOperation boxes = reader.read(descriptor, views, parts);
      boxes.wait(soon());
      EXPECT_EQ(boxes.path(), "network");
      EXPECT_EQ(some.values()[6], 2'000'006.0F);
      EXPECT_EQ(others.values()[2], 7.0F);
      some.count_up(-9);
    }
    EXPECT_EQ(reader.stats().paths["network"].bytes, 12'000'000u + 2 * 40);
  }
  const ReadOperation copied = reader.read_frozen(frozen);  // there is nothing to alias
  copied.wait(soon());
  EXPECT_EQ(copied.path(), "network");
  const auto* values = reinterpret_cast<const float*>(copied.received()->tensors[0]);
  EXPECT_EQ(values[2'999'999], 2'999'999.0F);
  owner.signal(SIGKILL);
  const Status status = outcome(read(reader, descriptor, target));
  EXPECT_EQ(status.code, Code::peer_lost) << status.message;
  EXPECT_THAT(status.message, HasSubstr("owner (pid"));
}

}  // namespace
}  // namespace tensorbus::endpoint
