#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "copy/cast.h"
#include "copy/execute.h"
#include "fabric/conformance.h"
#include "fabric/memory_fabric.h"
#include "fabric/pool.h"
#include "fabric/shm_fabric.h"
#include "fabric/ucx.h"
#include "os/poll.h"
#include "plan/random_case.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {

namespace {

std::shared_ptr<std::byte> private_memory(std::size_t bytes) {
  return {new std::byte[bytes + 1], std::default_delete<std::byte[]>()};
}

}  // namespace

std::vector<Kind> available_kinds() {
  std::vector<Kind> kinds;
  kinds.push_back({"memory",
                   [] {
                     return [hub = make_memory_hub()](std::string name, std::string secret) {
                       return make_memory_fabric(hub, {std::move(name), std::move(secret)});
                     };
                   },
                   private_memory});
  const auto shm = [](const std::string& name, bool pooled, bool read_process_memory) {
    const auto pool = std::make_shared<Pool>(PoolOptions{std::size_t{16} << 20});
    const auto make = [pool, read_process_memory](std::string party, std::string secret) {
      return make_shm_fabric({std::move(party), std::move(secret), pool, read_process_memory});
    };
    Kind kind{name, [make] { return make; }, private_memory};
    if (pooled) kind.allocate = [pool](std::size_t bytes) { return pool->allocate(bytes); };
    return kind;
  };
  kinds.push_back(shm("shm_pooled", true, true));
  kinds.push_back(shm("shm_private", false, true));
  kinds.push_back(shm("shm_packed", false, false));
  if (has_ucx()) {
    kinds.push_back({"ucx",
                     [] {
                       return [](std::string name, std::string secret) {
                         UcxOptions options;
                         options.identity = {"here", 1, 1, random_id(), std::move(name)};
                         options.secret = std::move(secret);
                         return make_ucx_fabric(options);
                       };
                     },
                     private_memory});
  }
  return kinds;
}

namespace {

using std::chrono::milliseconds;

const Deadline never = Deadline::never();

class FabricTest : public testing::TestWithParam<Kind> {
 protected:
  FabricTest()
      : make_(GetParam().network()), reader_(make_("reader", "r")), owner_(make_("owner", "o")) {}

  // Polls everybody until it holds; the test fails if it never does.
  template <typename Condition>
  void until(Condition holds) {
    const Deadline patience = Deadline::after(std::chrono::seconds(60));
    while (!holds()) {
      ASSERT_FALSE(patience.expired()) << "nothing happens";
      poll();
    }
  }
  void poll() {
    reader_.poll();
    owner_.poll();
    for (Party* party : others_) party->poll();
  }

  std::shared_ptr<Peer> connect() { return connect(reader_, owner_, "o"); }
  std::shared_ptr<Peer> connect(Party& from, Party& to, const std::string& secret) {
    auto peer = from->connect(to->address(), secret, never);
    until([&] { return peer->up() && !to.ups.empty(); });
    accepted_ = to.ups.back();
    return peer;
  }

  OpId next_id() { return static_cast<OpId>(++last_id_); }

  Completion finish(Party& party, OpId id) {
    until([&] { return party.completion(id) != nullptr; });
    const Completion* done = party.completion(id);
    return done != nullptr ? *done : Completion{};
  }

  Source attach(Party& party, const std::shared_ptr<Peer>& peer, const Region& region) {
    const OpId id = next_id();
    party->attach(*peer, region.number(), id, never);
    const Completion done = finish(party, id);
    EXPECT_TRUE(done.status.ok()) << done.status.message;
    return {peer, done.region, 0};
  }

  Completion read(Party& party, Read read) {
    const OpId id = next_id();
    party->read(std::move(read), id, never);
    return finish(party, id);
  }

  TestTensor tensor(Dtype dtype, const Shape& shape, const Shape& strides, bool shared = true) {
    TestTensor made{nullptr, std::make_shared<TensorForm>(TensorForm{dtype, shape, strides})};
    const Extent extent = extent_of(*made.form);
    const auto bytes = static_cast<std::size_t>(extent.end - extent.begin);
    made.memory = shared ? GetParam().allocate(bytes) : private_memory(bytes);
    made.first = -extent.begin;
    std::memset(made.memory.get(), 0, bytes);
    return made;
  }
  TestTensor dense(Dtype dtype, const Shape& shape, bool shared = true) {
    return tensor(dtype, shape, plan::contiguous_strides(shape), shared);
  }

  // Small numbers that every type holds.
  void fill(const TestTensor& tensor) {
    const Extent extent = extent_of(*tensor.form);
    const auto item = static_cast<std::ptrdiff_t>(item_bytes(tensor.form->dtype));
    for (std::ptrdiff_t at = 0; at < extent.end - extent.begin; at += item) {
      std::byte* element = tensor.memory.get() + at;
      if (!converts(tensor.form->dtype)) {
        *element = static_cast<std::byte>(random_());
        continue;
      }
      const auto value = static_cast<std::int32_t>(random_() % 5);
      copy::cast_between(Dtype::int32, tensor.form->dtype)
          .steps(reinterpret_cast<const std::byte*>(&value), 0, element, 0, 1);
    }
  }

  static std::vector<TensorView> views(const std::vector<TestTensor>& tensors) {
    std::vector<TensorView> all;
    for (const TestTensor& each : tensors) all.push_back(each.view());
    return all;
  }

  // All tensors of a region into tensors of the same types.
  Read whole(const Source& source, const std::vector<TestTensor>& targets) {
    std::vector<Dtype> types;
    for (const TestTensor& target : targets) types.push_back(target.form->dtype);
    return {std::make_shared<plan::Stream>(whole_stream(source.region->forms(), types)),
            0,
            {source},
            views(targets)};
  }

  // What a read of the stream must give, computed by the kernels alone.
  static void expect_equal(const TestTensor& a, const TestTensor& b) {
    const Extent extent = extent_of(*a.form);
    EXPECT_EQ(std::memcmp(a.memory.get(), b.memory.get(),
                          static_cast<std::size_t>(extent.end - extent.begin)),
              0);
  }

  std::function<std::unique_ptr<Fabric>(std::string, std::string)> make_;
  Party reader_;
  Party owner_;
  std::vector<Party*> others_;
  std::shared_ptr<Peer> accepted_;
  std::mt19937 random_{1};
  std::uint64_t last_id_ = 0;
};

TEST_P(FabricTest, ReadsAWholeRegion) {
  const std::vector<TestTensor> sources{dense(Dtype::float32, {700, 1000}), dense(Dtype::int8, {0}),
                                        dense(Dtype::float64, {}), dense(Dtype::complex128, {3})};
  for (const TestTensor& source : sources) fill(source);
  std::vector<TestTensor> targets;
  for (const TestTensor& source : sources) {
    targets.push_back(dense(source.form->dtype, source.form->shape, false));
  }
  const auto region = owner_->expose(views(sources));
  const Source source = attach(reader_, connect(), *region);
  EXPECT_EQ(source.region->forms(), region->forms());
  const Completion done = read(reader_, whole(source, targets));
  EXPECT_TRUE(done.status.ok()) << done.status.message;
  for (std::size_t i = 0; i < sources.size(); ++i) expect_equal(targets[i], sources[i]);
}

// Random layouts, strides and types; every reader reads from every owner it needs.
TEST_P(FabricTest, RunsProgramsOfEveryKind) {
  std::vector<std::unique_ptr<Party>> owners;
  std::vector<std::shared_ptr<Peer>> peers;
  for (int i = 0; i < 6; ++i) {
    owners.push_back(std::make_unique<Party>(make_("owner " + std::to_string(i), "x")));
    others_.push_back(owners.back().get());
    peers.push_back(connect(reader_, *owners.back(), "x"));
  }
  int reductions = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    plan::RandomCase random(seed);
    const Shape shape = random.shape();
    const Layout from = random.layout(shape.size(), true);
    const Layout to = random.layout(shape.size(), false);
    if (from.mesh().size() > owners.size()) continue;
    constexpr Dtype types[] = {Dtype::float32, Dtype::bfloat16, Dtype::int32, Dtype::float64};
    const plan::Types pair{types[random.below(4)], types[random.below(4)]};
    const plan::Plan batch[] = {plan::make(from, to, shape, pair)};

    std::vector<TestTensor> sources;
    std::vector<std::unique_ptr<Region>> regions;
    std::vector<Source> attached;
    const bool alike = random.below(2) == 0;
    for (std::size_t i = 0; i < from.mesh().size(); ++i) {
      const Shape local = from.local_shape(shape, from.mesh().ranks()[i]);
      const Shape strides = alike ? plan::contiguous_strides(local) : random.strides(local);
      sources.push_back(tensor(pair.source, local, strides));
      fill(sources.back());
      regions.push_back((*owners[i])->expose(views({sources.back()})));
    }
    for (const Rank rank : from.mesh().ranks()) {
      const std::size_t i = from.mesh().index_of(rank);
      for (const plan::Stream& stream : plan::serve_streams(batch, rank, 64)) {
        regions[i]->serve(static_cast<std::uint64_t>(stream.reader) * 1000 + 1 +
                              static_cast<std::uint64_t>(stream.source.ranks.front()),
                          stream);
      }
      attached.push_back(attach(reader_, peers[i], *regions[i]));
    }
    for (const Rank rank : to.mesh().ranks()) {
      const Shape local = to.local_shape(shape, rank);
      const Shape strides = random.strides(local);
      const TestTensor got = tensor(pair.target, local, strides, false);
      const TestTensor want = tensor(pair.target, local, strides, false);
      for (const plan::Stream& stream : plan::read_streams(batch, rank, 64)) {
        reductions += stream.source.reduces() ? 1 : 0;
        Read request{std::make_shared<plan::Stream>(stream),
                     static_cast<std::uint64_t>(rank) * 1000 + 1 +
                         static_cast<std::uint64_t>(stream.source.ranks.front()),
                     {},
                     views({got})};
        std::vector<std::span<const std::byte>> wires;
        std::vector<std::vector<std::byte>> packed;
        const plan::Strides want_strides{strides};
        const plan::Program target = plan::compile(stream, nullptr, &want_strides);
        std::vector<plan::Program> programs;
        for (const Rank member : stream.source.ranks) {
          const std::size_t i = from.mesh().index_of(member);
          request.sources.push_back(attached[i]);
          const plan::Strides source_strides{sources[i].form->strides};
          programs.push_back(plan::compile(stream, &source_strides, nullptr));
        }
        std::byte* want_first = want.view().data;
        for (std::size_t chunk = 0; chunk < target.chunks.size(); ++chunk) {
          packed.clear();
          wires.clear();
          for (std::size_t m = 0; m < programs.size(); ++m) {
            const std::size_t i = from.mesh().index_of(stream.source.ranks[m]);
            const std::byte* first = sources[i].view().data;
            packed.emplace_back(static_cast<std::size_t>(target.chunks[chunk].wire_bytes));
            copy::gather_chunk(programs[m], programs[m].chunks[chunk], {&first, 1}, packed.back());
          }
          for (const auto& bytes : packed) wires.emplace_back(bytes);
          if (stream.source.reduces()) {
            copy::reduce_packed_chunk(target, target.chunks[chunk], wires, {&want_first, 1});
          } else {
            copy::scatter_chunk(target, target.chunks[chunk], wires.front(), {&want_first, 1});
          }
        }
        const Completion done = read(reader_, std::move(request));
        ASSERT_TRUE(done.status.ok()) << done.status.message;
      }
      expect_equal(got, want);
    }
  }
  EXPECT_GT(reductions, 5);
  others_.clear();
}

TEST_P(FabricTest, MessagesComeInOrderAndOnceEach) {
  const auto peer = connect();
  const auto back = accepted_;
  constexpr std::uint32_t count = 2000;
  std::uint32_t sent = 0;
  std::uint32_t answered = 0;
  const auto number = [](const Message& message) {
    std::uint32_t value = 0;
    std::memcpy(&value, message.bytes.data(), sizeof value);
    return value;
  };
  const auto try_send = [](Party& party, Peer& to, std::uint32_t value) {
    std::vector<std::byte> bytes(sizeof value + value % 3000);
    std::memcpy(bytes.data(), &value, sizeof value);
    try {
      party->send(to, bytes);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::queue_full) << error.what();
      return false;
    }
  };
  until([&] {
    while (sent < count && try_send(reader_, *peer, sent)) ++sent;
    while (answered < owner_.messages.size() && try_send(owner_, *back, answered)) ++answered;
    return reader_.messages.size() == count;
  });
  for (std::uint32_t i = 0; i < count; ++i) {
    ASSERT_EQ(number(owner_.messages[i]), i);
    ASSERT_EQ(owner_.messages[i].bytes.size(), sizeof i + i % 3000);
    ASSERT_EQ(number(reader_.messages[i]), i);
  }
  EXPECT_EQ(owner_.messages.front().from, back);
}

TEST_P(FabricTest, MessagesOfAnySizeUpToTheLimitArrive) {
  const auto peer = connect();
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, max_message_bytes}) {
    const std::vector<std::byte> bytes(size, std::byte{7});
    reader_->send(*peer, bytes);
    until([&] { return !owner_.messages.empty(); });
    EXPECT_EQ(owner_.messages.front().bytes, std::string(size, '\7'));
    owner_.messages.clear();
  }
  EXPECT_THROW(reader_->send(*peer, std::vector<std::byte>(max_message_bytes + 1)), Error);
}

TEST_P(FabricTest, BothReadFromEachOtherAtOnce) {
  const auto peer = connect();
  const auto back = accepted_;
  const TestTensor a = dense(Dtype::int32, {3'000'000});
  const TestTensor b = dense(Dtype::int32, {2'000'000});
  fill(a);
  fill(b);
  const auto region_a = owner_->expose(views({a}));
  const auto region_b = reader_->expose(views({b}));
  const TestTensor into_a = dense(Dtype::int32, {3'000'000}, false);
  const TestTensor into_b = dense(Dtype::int32, {2'000'000}, false);
  const Source from_a = attach(reader_, peer, *region_a);
  const Source from_b = attach(owner_, back, *region_b);
  const OpId one = next_id();
  const OpId two = next_id();
  reader_->read(whole(from_a, {into_a}), one, never);
  owner_->read(whole(from_b, {into_b}), two, never);
  EXPECT_TRUE(finish(reader_, one).status.ok());
  EXPECT_TRUE(finish(owner_, two).status.ok());
  expect_equal(a, into_a);
  expect_equal(b, into_b);
}

TEST_P(FabricTest, ManyRegionsAreToldApart) {
  const auto peer = connect();
  std::vector<TestTensor> sources;
  std::vector<std::unique_ptr<Region>> regions;
  for (int i = 0; i < 2000; ++i) {
    sources.push_back(dense(Dtype::int32, {1 + i % 7}, i % 10 == 0));
    fill(sources.back());
    regions.push_back(owner_->expose(views({sources.back()})));
  }
  for (std::size_t i = 0; i < sources.size(); i += 97) {
    const TestTensor target = dense(Dtype::int32, sources[i].form->shape, false);
    const Source source = attach(reader_, peer, *regions[i]);
    EXPECT_TRUE(read(reader_, whole(source, {target})).status.ok());
    expect_equal(target, sources[i]);
  }
}

TEST_P(FabricTest, ManyTensorsAreOneRegion) {
  std::vector<TestTensor> sources;
  std::vector<TestTensor> targets;
  for (int i = 0; i < 3000; ++i) {
    sources.push_back(dense(Dtype::int32, {1 + i % 5, 3}, i % 10 == 0));
    fill(sources.back());
    targets.push_back(dense(Dtype::int32, sources.back().form->shape, false));
  }
  const auto region = owner_->expose(views(sources));
  const Source source = attach(reader_, connect(), *region);
  EXPECT_TRUE(read(reader_, whole(source, targets)).status.ok());
  for (std::size_t i = 0; i < sources.size(); ++i) expect_equal(targets[i], sources[i]);
}

TEST_P(FabricTest, ReadsAcrossMoreThan4GiB) {
  constexpr std::int64_t apart = (std::int64_t{5} << 30) + 64;
  constexpr std::size_t bytes = apart + 4096;
  // Never written but for two pages.
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const TestTensor source{
      {static_cast<std::byte*>(memory), [](auto* at) { ::munmap(at, bytes); }},
      std::make_shared<TensorForm>(TensorForm{Dtype::int8, {2, 4}, {apart, 1}})};
  std::memcpy(source.memory.get(), "abcd", 4);
  std::memcpy(source.memory.get() + apart, "efgh", 4);
  const auto region = owner_->expose(views({source}));
  const TestTensor target = dense(Dtype::int8, {2, 4}, false);
  const Completion done = read(reader_, whole(attach(reader_, connect(), *region), {target}));
  EXPECT_TRUE(done.status.ok()) << done.status.message;
  EXPECT_EQ(std::memcmp(target.memory.get(), "abcdefgh", 8), 0);
}

TEST_P(FabricTest, AReadThatTheGatePassedIsWithdrawn) {
  const TestTensor tensor = dense(Dtype::int8, {12'000'000});
  const TestTensor target = dense(Dtype::int8, {12'000'000}, false);
  const auto region = owner_->expose(views({tensor}));
  Source source = attach(reader_, connect(), *region);
  // Before, at any moment during, and with a ticket that is still good.
  for (int polls = 0; polls < 8; ++polls) {
    source.ticket = region->gate().value();
    const OpId id = next_id();
    reader_->read(whole(source, {target}), id, never);
    for (int i = 0; i < polls; ++i) poll();
    const bool was_over = reader_.completion(id) != nullptr;
    region->gate().move_to(source.ticket + 1);
    const Completion done = finish(reader_, id);
    EXPECT_EQ(done.status.code, was_over ? Code::ok : Code::withdrawn) << done.status.message;
    if (!was_over) {
      EXPECT_NE(done.status.message.find("owner"), std::string::npos);
    }
  }
  source.ticket = region->gate().value();
  EXPECT_TRUE(read(reader_, whole(source, {target})).status.ok());
}

TEST_P(FabricTest, ADroppedRegionIsNotReadAnyMore) {
  const TestTensor tensor = dense(Dtype::int8, {3'000'000});
  const TestTensor target = dense(Dtype::int8, {3'000'000}, false);
  auto region = owner_->expose(views({tensor}));
  const std::uint64_t number = region->number();
  const Source source = attach(reader_, connect(), *region);
  const OpId running = next_id();
  reader_->read(whole(source, {target}), running, never);
  region.reset();
  EXPECT_EQ(finish(reader_, running).status.code, Code::withdrawn);
  EXPECT_EQ(read(reader_, whole(source, {target})).status.code, Code::withdrawn);
  const OpId late = next_id();
  reader_->attach(*source.peer, number, late, never);
  EXPECT_EQ(finish(reader_, late).status.code, Code::withdrawn);
}

TEST_P(FabricTest, AWordIsSwappedOnceAndOnlyWhileTheGateIsOpen) {
  const TestTensor tensor = dense(Dtype::int8, {4});
  const auto region = owner_->expose(views({tensor}));
  const auto peer = connect();
  const Source source = attach(reader_, peer, *region);
  const Word word = owner_->make_word(*accepted_, 17);
  const Word second = owner_->make_word(*accepted_, 99);
  EXPECT_NE(word.number, second.number);
  const auto swap = [&](std::uint64_t expected, std::uint64_t desired) {
    const OpId id = next_id();
    reader_->swap({source, word.number, expected, desired}, id, never);
    return finish(reader_, id);
  };
  EXPECT_EQ(swap(17, 18).value, 17u);
  EXPECT_EQ(word.value->load(), 18u);
  EXPECT_EQ(swap(17, 19).value, 18u);
  EXPECT_EQ(word.value->load(), 18u);
  if (const auto* seen = reader_->watch(*peer, word.number)) {
    EXPECT_EQ(seen->load(), 18u);
  }
  region->gate().move_to(1);
  EXPECT_EQ(swap(18, 20).status.code, Code::withdrawn);
  EXPECT_EQ(word.value->load(), 18u);
  EXPECT_EQ(second.value->load(), 99u);
}

TEST_P(FabricTest, CancelAtAnyMomentEndsARead) {
  const TestTensor tensor = dense(Dtype::int8, {12'000'000});
  const auto region = owner_->expose(views({tensor}));
  const Source source = attach(reader_, connect(), *region);
  for (int polls = 0; polls < 12; ++polls) {
    const TestTensor target = dense(Dtype::int8, {12'000'000}, false);
    const OpId id = next_id();
    reader_->read(whole(source, {target}), id, never);
    for (int i = 0; i < polls; ++i) poll();
    reader_->cancel(id);
    const Completion done = finish(reader_, id);
    EXPECT_TRUE(done.status.ok() || done.status.code == Code::cancelled) << done.status.message;
    if (polls == 0) {
      EXPECT_EQ(done.status.code, Code::cancelled);
    }
  }
  for (int i = 0; i < 20; ++i) poll();
  EXPECT_EQ(reader_.completions.size(), 13u) << "one completion each, the attach included";
  reader_->cancel(next_id());
}

TEST_P(FabricTest, ADeadlineEndsARead) {
  const TestTensor tensor = dense(Dtype::int8, {4'000'000});
  const TestTensor target = dense(Dtype::int8, {4'000'000}, false);
  const auto region = owner_->expose(views({tensor}));
  const Source source = attach(reader_, connect(), *region);
  const OpId id = next_id();
  reader_->read(whole(source, {target}), id, Deadline::after(Duration(-1)));
  EXPECT_EQ(finish(reader_, id).status.code, Code::timeout);
}

TEST_P(FabricTest, AWrongSecretIsDenied) {
  const auto peer = reader_->connect(owner_->address(), "guess", never);
  until([&] { return !reader_.losses.empty(); });
  EXPECT_EQ(reader_.losses.front().reason.code, Code::denied)
      << reader_.losses.front().reason.message;
  EXPECT_FALSE(peer->up());
  EXPECT_TRUE(owner_.ups.empty());
}

TEST_P(FabricTest, AnotherProcessThanTheAddressNamesIsRefused) {
  for (int field = 0; field < 3; ++field) {
    Address stale = owner_->address();
    if (field == 0) stale.identity.start_time += 1;
    if (field == 1) stale.identity.pid += 1;
    if (field == 2) stale.identity.id[3] = static_cast<char>(stale.identity.id[3] + 1);
    reader_->connect(stale, "o", never);
    until([&] { return !reader_.losses.empty(); });
    const Code code = reader_.losses.front().reason.code;
    EXPECT_TRUE(code == Code::invalid_argument || code == Code::unreachable)
        << reader_.losses.front().reason.message;
    reader_.losses.clear();
  }
  EXPECT_TRUE(owner_.ups.empty());
}

TEST_P(FabricTest, DisconnectEndsWhatRunsAndTellsBoth) {
  const TestTensor tensor = dense(Dtype::int8, {4'000'000});
  const TestTensor target = dense(Dtype::int8, {4'000'000}, false);
  const auto region = owner_->expose(views({tensor}));
  const auto peer = connect();
  const Source source = attach(reader_, peer, *region);
  const OpId id = next_id();
  reader_->read(whole(source, {target}), id, never);
  reader_->disconnect(*peer);
  EXPECT_EQ(finish(reader_, id).status.code, Code::cancelled);
  until([&] { return !reader_.losses.empty() && !owner_.losses.empty(); });
  EXPECT_EQ(reader_.losses.front().peer, peer);
  EXPECT_EQ(owner_.losses.front().peer, accepted_);
  EXPECT_NE(owner_.losses.front().reason.message.find("reader"), std::string::npos);
  EXPECT_THROW(reader_->send(*peer, {}), Error);
  EXPECT_THROW(reader_->read(whole(source, {target}), next_id(), never), Error);
  // And a new connection works.
  EXPECT_TRUE(connect()->up());
}

TEST_P(FabricTest, AFabricThatClosesWhileBusyIsLostToItsPeers) {
  const TestTensor tensor = dense(Dtype::int8, {20'000'000});
  const TestTensor target = dense(Dtype::int8, {20'000'000}, false);
  auto region = owner_->expose(views({tensor}));
  const Source source = attach(reader_, connect(), *region);
  const OpId id = next_id();
  reader_->read(whole(source, {target}), id, never);
  poll();
  region.reset();
  owner_.kill();
  const Completion done = finish(reader_, id);
  EXPECT_FALSE(done.status.ok());
  until([&] { return !reader_.losses.empty(); });
  EXPECT_EQ(reader_.losses.front().reason.code, Code::peer_lost);
  EXPECT_NE(reader_.losses.front().reason.message.find("owner"), std::string::npos);
}

TEST_P(FabricTest, WhatDoesNotFitIsRefusedAtOnce) {
  const TestTensor tensor = dense(Dtype::int8, {4});
  const auto region = owner_->expose(views({tensor}));
  const Source source = attach(reader_, connect(), *region);
  const auto refused = [&](Read request) {
    try {
      reader_->read(std::move(request), next_id(), never);
    } catch (const Error& error) {
      return error.code() == Code::invalid_argument;
    }
    return false;
  };
  Read other_shape = whole(source, {dense(Dtype::int8, {4}, false)});
  const TestTensor longer = dense(Dtype::int8, {5}, false);
  other_shape.targets = views({longer});
  EXPECT_TRUE(refused(other_shape));
  const TestTensor target = dense(Dtype::int8, {4}, false);
  Read two_sources = whole(source, {target});
  two_sources.sources.push_back(source);
  EXPECT_TRUE(refused(two_sources));
  Read read_only = whole(source, {target});
  read_only.targets[0].read_only = true;
  EXPECT_TRUE(refused(read_only));
  Read no_stream = whole(source, {target});
  no_stream.stream = nullptr;
  EXPECT_TRUE(refused(no_stream));
}

TEST_P(FabricTest, AnArmedFabricIsWokenByAMessage) {
  const auto peer = connect();
  const auto armed = [&](Party& party) { until([&] { return party->arm(); }); };
  armed(owner_);
  armed(reader_);
  pollfd wake{owner_->fd(), POLLIN, 0};
  reader_->send(*peer, std::vector<std::byte>(3));
  EXPECT_EQ(::poll(&wake, 1, 5000), 1);
  owner_.poll();
  EXPECT_EQ(owner_.messages.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(All, FabricTest, testing::ValuesIn(available_kinds()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace tensorbus::fabric
