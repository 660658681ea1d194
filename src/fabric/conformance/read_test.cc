// What is read: programs of every kind, every size and every number of tensors.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "copy/execute.h"
#include "fabric/conformance/conformance.h"
#include "plan/testing/random_case.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

TEST_P(FabricTest, ReadsAWholeRegion) {
  const std::vector<TestTensor> sources{
      new_tensor(Dtype::float32, {700, 1000}), new_tensor(Dtype::int8, {0}),
      new_tensor(Dtype::float64, {}), new_tensor(Dtype::complex128, {3})};
  for (const TestTensor& source : sources) fill(source);
  std::vector<TestTensor> targets;
  for (const TestTensor& source : sources) {
    targets.push_back(new_tensor(source.form->dtype, source.form->shape));
  }
  const auto region = owner_->expose(views(sources));
  const Source source = attach(reader_, connect(), *region);
  EXPECT_EQ(source.region->forms(), region->forms());
  const Completion done = read(reader_, whole(source, targets));
  EXPECT_TRUE(done.status.ok()) << done.status.message;
  for (std::size_t i = 0; i < sources.size(); ++i) expect_equal(targets[i], sources[i]);
}

TEST_P(FabricTest, TellsHowFarAReadIs) {
  // More than two polls of a fabric with four threads move.
  constexpr std::int64_t size = std::int64_t{40} << 20;
  const TestTensor from = new_tensor(Dtype::uint8, {size});
  const TestTensor into = new_tensor(Dtype::uint8, {size});
  const auto region = owner_->expose(views({from}));
  const Source source = attach(reader_, connect(), *region);
  const OpId id = next_id();
  reader_->read(whole(source, {into}), id, never);
  EXPECT_EQ(reader_->bytes_read(id), 0);
  std::int64_t read = 0;
  until([&] { return (read = reader_->bytes_read(id)) > 0; });
  EXPECT_LT(read, size);
  const std::int64_t before = read;
  until([&] { return (read = reader_->bytes_read(id)) != before; });
  EXPECT_GT(read, before);
  EXPECT_TRUE(finish(reader_, id).status.ok());
  EXPECT_EQ(reader_->bytes_read(id), 0) << "of a read that is over";
}

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
      sources.push_back(new_tensor(pair.source, local, strides));
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
      const TestTensor got = new_tensor(pair.target, local, strides);
      const TestTensor want = new_tensor(pair.target, local, strides);
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

TEST_P(FabricTest, BothReadFromEachOtherAtOnce) {
  const auto peer = connect();
  const auto back = accepted_;
  const TestTensor a = new_tensor(Dtype::int32, {3'000'000});
  const TestTensor b = new_tensor(Dtype::int32, {2'000'000});
  fill(a);
  fill(b);
  const auto region_a = owner_->expose(views({a}));
  const auto region_b = reader_->expose(views({b}));
  const TestTensor into_a = new_tensor(Dtype::int32, {3'000'000});
  const TestTensor into_b = new_tensor(Dtype::int32, {2'000'000});
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
    sources.push_back(new_tensor(Dtype::int32, {1 + i % 7}));
    fill(sources.back());
    regions.push_back(owner_->expose(views({sources.back()})));
  }
  for (std::size_t i = 0; i < sources.size(); i += 97) {
    const TestTensor target = new_tensor(Dtype::int32, sources[i].form->shape);
    const Source source = attach(reader_, peer, *regions[i]);
    EXPECT_TRUE(read(reader_, whole(source, {target})).status.ok());
    expect_equal(target, sources[i]);
  }
}

TEST_P(FabricTest, ManyTensorsAreOneRegion) {
  std::vector<TestTensor> sources;
  std::vector<TestTensor> targets;
  for (int i = 0; i < 3000; ++i) {
    sources.push_back(new_tensor(Dtype::int32, {1 + i % 5, 3}));
    fill(sources.back());
    targets.push_back(new_tensor(Dtype::int32, sources.back().form->shape));
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
  const TestTensor target = new_tensor(Dtype::int8, {2, 4});
  const Completion done = read(reader_, whole(attach(reader_, connect(), *region), {target}));
  EXPECT_TRUE(done.status.ok()) << done.status.message;
  EXPECT_EQ(std::memcmp(target.memory.get(), "abcdefgh", 8), 0);
}

TEST_P(FabricTest, CancelAtAnyMomentEndsARead) {
  const TestTensor tensor = new_tensor(Dtype::int8, {12'000'000});
  const auto region = owner_->expose(views({tensor}));
  const Source source = attach(reader_, connect(), *region);
  for (int polls = 0; polls < 12; ++polls) {
    const TestTensor target = new_tensor(Dtype::int8, {12'000'000});
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

// Several at once, some ended by their deadline; what is not cancelled is whole, and nothing is
// written after a completion.
TEST_P(FabricTest, ReadsThatAreCancelledAtRandomHarmNoOthers) {
  constexpr std::int64_t size = 700'000;
  const TestTensor tensor = new_tensor(Dtype::int8, {size});
  std::memset(tensor.memory.get(), 9, tensor.bytes());
  const auto region = owner_->expose(views({tensor}));
  const Source source = attach(reader_, connect(), *region);
  struct Running {
    OpId id;
    TestTensor target;
  };
  std::vector<Running> running;
  std::vector<TestTensor> left;  // with zeros in them since their reads were cancelled
  std::size_t whole_ones = 0;
  std::size_t cancelled = 0;
  const auto reap = [&](const Running& read) {
    const Completion* done = reader_.completion(read.id);
    if (done == nullptr) return false;
    if (done->status.ok()) {
      ++whole_ones;
      expect_equal(read.target, tensor);
    } else {
      ++cancelled;
      EXPECT_TRUE(done->status.code == Code::cancelled || done->status.code == Code::timeout)
          << done->status.message;
      std::memset(read.target.memory.get(), 0, read.target.bytes());
      left.push_back(read.target);
    }
    return true;
  };
  // A device is no faster for being polled: there it takes more steps until enough reads are whole.
  const Deadline patience = Deadline::after(std::chrono::seconds(30));
  for (int step = 0; step < 600 || (whole_ones <= 20 && !patience.expired()); ++step) {
    if (running.size() < 4) {
      Running next{next_id(), new_tensor(Dtype::int8, {size})};
      const Deadline deadline =
          random_() % 5 == 0 ? Deadline::after(std::chrono::microseconds(random_() % 500)) : never;
      reader_->read(whole(source, {next.target}), next.id, deadline);
      running.push_back(std::move(next));
    }
    if (random_() % 3 == 0) reader_->cancel(running[random_() % running.size()].id);
    for (std::size_t polls = random_() % 4; polls > 0; --polls) poll();
    std::erase_if(running, reap);
    reader_.completions.clear();
    if (left.size() > 20) {
      const TestTensor zeros = new_tensor(Dtype::int8, {size});
      for (const TestTensor& target : left) expect_equal(target, zeros);
      left.clear();
    }
  }
  until([&] {
    std::erase_if(running, reap);
    return running.empty();
  });
  EXPECT_GT(whole_ones, 20u);
  EXPECT_GT(cancelled, 20u);
}

TEST_P(FabricTest, ADeadlineEndsARead) {
  const TestTensor tensor = new_tensor(Dtype::int8, {4'000'000});
  const TestTensor target = new_tensor(Dtype::int8, {4'000'000});
  const auto region = owner_->expose(views({tensor}));
  const Source source = attach(reader_, connect(), *region);
  const OpId id = next_id();
  reader_->read(whole(source, {target}), id, Deadline::after(Duration(-1)));
  EXPECT_EQ(finish(reader_, id).status.code, Code::timeout);
}

// What was prepared for one read serves those that are like it, and no others.
TEST_P(FabricTest, AStreamIsReadAgainIntoOtherTensors) {
  const TestTensor first = new_tensor(Dtype::int32, {40, 50});
  const TestTensor second = new_tensor(Dtype::int32, {40, 50}, {1, 40});
  fill(first);
  fill(second);
  const auto first_region = owner_->expose(views({first}));
  const auto second_region = owner_->expose(views({second}));
  const auto peer = connect();
  const Source from_first = attach(reader_, peer, *first_region);
  const Source from_second = attach(reader_, peer, *second_region);
  const TestTensor dense = new_tensor(Dtype::int32, {40, 50});
  const TestTensor another = new_tensor(Dtype::int32, {40, 50});
  const TestTensor transposed = new_tensor(Dtype::int32, {40, 50}, {1, 40});
  const Read request = whole(from_first, {dense});
  const auto element = [](const TestTensor& tensor, std::int64_t i, std::int64_t j) {
    std::int32_t value = 0;
    const std::int64_t at = i * tensor.form->strides[0] + j * tensor.form->strides[1];
    std::memcpy(&value, tensor.memory.get() + tensor.first + at * 4, sizeof value);
    return value;
  };
  for (int round = 0; round < 3; ++round) {
    for (const auto& [source, tensor] : {std::pair(from_first, first), {from_second, second}}) {
      for (const TestTensor& target : {dense, another, transposed}) {
        std::memset(target.memory.get(), 0, target.bytes());
        Read again = request;
        again.sources = {source};
        again.targets = views({target});
        ASSERT_TRUE(read(reader_, again).status.ok());
        for (std::int64_t i = 0; i < 40; ++i) {
          for (std::int64_t j = 0; j < 50; ++j) {
            ASSERT_EQ(element(target, i, j), element(tensor, i, j));
          }
        }
      }
    }
    Read read_only = request;
    read_only.targets[0].read_only = true;
    EXPECT_THROW(reader_->read(read_only, next_id(), never), Error);
    const TestTensor other_type = new_tensor(Dtype::float32, {40, 50});
    Read other = request;
    other.targets = views({other_type});
    EXPECT_THROW(reader_->read(other, next_id(), never), Error);
  }
}

TEST_P(FabricTest, WhatDoesNotFitIsRefusedAtOnce) {
  const TestTensor tensor = new_tensor(Dtype::int8, {4});
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
  Read other_shape = whole(source, {new_tensor(Dtype::int8, {4})});
  const TestTensor longer = new_tensor(Dtype::int8, {5});
  other_shape.targets = views({longer});
  EXPECT_TRUE(refused(other_shape));
  const TestTensor target = new_tensor(Dtype::int8, {4});
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

}  // namespace
}  // namespace tensorbus::fabric
