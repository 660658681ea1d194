// Memory that lies in another process than the fabric's: the worker's whose agent it is.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>

#include "fabric/conformance/party.h"
#include "fabric/core/pool.h"
#include "fabric/memory/fabric.h"
#include "fabric/shm/fabric.h"
#include "fabric/ucx/ucx.h"
#include "os/process/process.h"
#include "os/testing/quiet_fork.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

constexpr std::int64_t rows = 700;
constexpr std::int64_t columns = 1100;
constexpr std::size_t elements = rows * columns;

const Deadline never = Deadline::never();

// A process with a copy of `memory` at the same addresses, in which 1000 was added to each element.
// What is written to the one is not seen in the other.
class Worker {
 public:
  explicit Worker(std::vector<std::int32_t>& memory) {
    const Probe probe = own_probe();
    int ready[2];
    if (::pipe(ready) != 0) throw Error(Code::failed, "pipe");
    pid_ = os::fork_child([&] {
      for (std::int32_t& each : memory) each += 1000;
      if (::write(ready[1], "x", 1) != 1) ::_exit(1);
      while (true) ::pause();
    });
    char byte = 0;
    if (::read(ready[0], &byte, 1) != 1) throw Error(Code::failed, "no worker");
    ::close(ready[0]);
    ::close(ready[1]);
    lender_ = std::make_shared<Lender>(os::open_pidfd(pid_), probe);
  }
  ~Worker() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  const std::shared_ptr<const Lender>& lender() const { return lender_; }

  // A copy of the child's memory.
  std::vector<std::int32_t> look_at(const std::vector<std::int32_t>& memory) const {
    std::vector<std::int32_t> found(memory.size());
    const iovec local{found.data(), found.size() * 4};
    const iovec remote{const_cast<std::int32_t*>(memory.data()), memory.size() * 4};
    lender_->read({&local, 1}, {&remote, 1});
    return found;
  }

 private:
  pid_t pid_ = -1;
  std::shared_ptr<const Lender> lender_;
};

struct Kind {
  std::string name;
  std::string path;
  std::function<std::function<std::unique_ptr<Fabric>(std::string name)>()> network;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

std::vector<Kind> kinds() {
  const auto shm = [](bool read_process_memory) {
    return [=] {
      return [=](std::string name) {
        return make_shm_fabric({std::move(name), "s", nullptr, read_process_memory});
      };
    };
  };
  std::vector<Kind> all{{"memory", "mapped",
                         [] {
                           return [hub = make_memory_hub()](std::string name) {
                             return make_memory_fabric(hub, {std::move(name), "s"});
                           };
                         }},
                        {"shm", "process_vm_readv", shm(true)},
                        {"shm_packed", "packed", shm(false)}};
  if (has_ucx()) {
    all.push_back({"ucx", "network", [] {
                     return [](std::string name) {
                       UcxOptions options;
                       options.identity = {"here", 1, 1, random_id(), std::move(name)};
                       options.secret = "s";
                       return make_ucx_fabric(options);
                     };
                   }});
  }
  return all;
}

class LentTest : public testing::TestWithParam<Kind> {
 protected:
  LentTest() {
    std::iota(memory_.begin(), memory_.end(), 0);
    peer_ = reader_->connect(owner_->address(), "s", never);
    until([&] { return peer_->up(); });
  }

  template <typename Condition>
  void until(Condition holds) {
    const Deadline patience = Deadline::after(std::chrono::seconds(60));
    while (!holds()) {
      ASSERT_FALSE(patience.expired()) << "nothing happens";
      reader_.poll();
      owner_.poll();
    }
  }
  Completion finish(OpId id) {
    until([&] { return reader_.completion(id) != nullptr; });
    const Completion* done = reader_.completion(id);
    return done != nullptr ? *done : Completion{};
  }
  Source attach(const Region& region) {
    const auto id = static_cast<OpId>(++last_id_);
    reader_->attach(*peer_, region.number(), id, never);
    return {peer_, finish(id).region, 0};
  }
  OpId start(const Source& source, const std::vector<TensorView>& targets,
             std::shared_ptr<const Lender> lender = nullptr) {
    std::vector<Dtype> types;
    for (const TensorView& target : targets) types.push_back(target.dtype);
    const auto id = static_cast<OpId>(++last_id_);
    reader_->read({std::make_shared<plan::Stream>(whole_stream(source.region->forms(), types)),
                   0,
                   {source},
                   targets,
                   std::move(lender)},
                  id, never);
    return id;
  }

  std::vector<std::int32_t> memory_ = std::vector<std::int32_t>(elements);
  std::function<std::unique_ptr<Fabric>(std::string)> make_ = GetParam().network();
  Party reader_{make_("reader")};
  Party owner_{make_("owner")};
  std::shared_ptr<Peer> peer_;
  std::uint64_t last_id_ = 0;
};

// Of the same memory: all of it, its transpose, every third column, rows backwards.
struct Form {
  Shape shape;
  Shape strides;
  std::int64_t first = 0;
  std::int64_t at(std::int64_t i, std::int64_t j) const {
    return first + i * strides[0] + j * strides[1];
  }
};
const Form forms[] = {{{rows, columns}, {columns, 1}},
                      {{columns, rows}, {1, columns}},
                      {{rows, columns / 3}, {columns, 3}},
                      {{rows, 100}, {columns, 1}},
                      {{rows, columns}, {-columns, 1}, (rows - 1) * columns}};

TensorView view(std::vector<std::int32_t>& memory, const Form& form, bool elsewhere) {
  auto* first = reinterpret_cast<std::byte*>(memory.data() + form.first);
  return {first, Dtype::int32, form.shape, form.strides, false, elsewhere};
}

TEST_P(LentTest, ASourceIsReadInTheWorker) {
  const Worker worker(memory_);
  for (const Form& form : forms) {
    const TensorView source = view(memory_, form, true);
    const auto region = owner_->expose({&source, 1}, owner_->make_gate(), worker.lender());
    const Source attached = attach(*region);
    EXPECT_EQ(attached.region->path(), GetParam().path);
    for (const Dtype dtype : {Dtype::int32, Dtype::float64, Dtype::int16}) {
      const Shape strides = plan::contiguous_strides(form.shape);
      std::vector<std::byte> target(elements * 8);
      const Completion done =
          finish(start(attached, {{target.data(), dtype, form.shape, strides}}));
      ASSERT_TRUE(done.status.ok()) << done.status.message;
      for (std::int64_t i = 0; i < form.shape[0]; ++i) {
        for (std::int64_t j = 0; j < form.shape[1]; ++j) {
          const std::int64_t want = form.at(i, j) + 1000;
          const auto at = static_cast<std::size_t>(i * form.shape[1] + j);
          if (dtype == Dtype::int32) {
            ASSERT_EQ(reinterpret_cast<const std::int32_t*>(target.data())[at], want);
          } else if (dtype == Dtype::float64) {
            ASSERT_EQ(reinterpret_cast<const double*>(target.data())[at], double(want));
          } else {
            ASSERT_EQ(reinterpret_cast<const std::int16_t*>(target.data())[at],
                      static_cast<std::int16_t>(want));
          }
        }
      }
    }
  }
}

TEST_P(LentTest, ATargetIsWrittenInTheWorkerAndNothingElseThere) {
  const Worker worker(memory_);
  std::vector<double> source(elements);
  std::iota(source.begin(), source.end(), -5.0);
  for (const Form& form : forms) {
    const Shape strides = plan::contiguous_strides(form.shape);
    const TensorView exposed{reinterpret_cast<std::byte*>(source.data()), Dtype::float64,
                             form.shape, strides};
    const auto region = owner_->expose({&exposed, 1});
    std::vector<std::int32_t> want = worker.look_at(memory_);
    for (std::int64_t i = 0; i < form.shape[0]; ++i) {
      for (std::int64_t j = 0; j < form.shape[1]; ++j) {
        want[static_cast<std::size_t>(form.at(i, j))] =
            static_cast<std::int32_t>(source[static_cast<std::size_t>(i * form.shape[1] + j)]);
      }
    }
    const Completion done =
        finish(start(attach(*region), {view(memory_, form, true)}, worker.lender()));
    ASSERT_TRUE(done.status.ok()) << done.status.message;
    ASSERT_EQ(worker.look_at(memory_), want);
    for (double& each : source) each += 10;
  }
  for (std::size_t i = 0; i < elements; ++i) ASSERT_EQ(memory_[i], i) << "our own copy";
}

TEST_P(LentTest, ADeadWorkersMemoryIsNeitherReadNorWritten) {
  std::vector<std::int32_t> other(elements);
  const TensorView here = view(other, forms[0], false);
  for (const bool source_dies : {true, false}) {
    Worker worker(memory_);
    const TensorView lent = view(memory_, forms[0], true);
    const auto region = source_dies
                            ? owner_->expose({&lent, 1}, owner_->make_gate(), worker.lender())
                            : owner_->expose({&here, 1});
    const Source attached = attach(*region);
    const OpId running =
        source_dies ? start(attached, {here}) : start(attached, {lent}, worker.lender());
    worker.kill();
    const Completion done = finish(running);
    EXPECT_EQ(done.status.code, Code::peer_lost) << done.status.message;
    EXPECT_NE(done.status.message.find("died"), std::string::npos) << done.status.message;
    EXPECT_TRUE(peer_->up()) << "its agent lives";
  }
  EXPECT_EQ(other, std::vector<std::int32_t>(elements));
}

TEST_P(LentTest, TensorsElsewhereNeedALender) {
  const TensorView lent = view(memory_, forms[0], true);
  EXPECT_THROW(owner_->expose({&lent, 1}), Error);
  std::vector<std::int32_t> source(elements);
  const TensorView here = view(source, forms[0], false);
  const auto region = owner_->expose({&here, 1});
  const Source attached = attach(*region);
  EXPECT_THROW(start(attached, {lent}), Error);
}

INSTANTIATE_TEST_SUITE_P(All, LentTest, testing::ValuesIn(kinds()),
                         [](const auto& each) { return each.param.name; });

std::size_t mappings_of_pools() {
  std::ifstream file("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    count += line.find("tensorbus pool") != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(LentPoolTest, ReadersMapAnAdoptedSegmentAndLetItGo) {
  Pool worker({std::size_t{1} << 20});
  const std::shared_ptr<std::byte> block = worker.allocate(elements);
  const Place place = worker.find(block.get(), elements).value();
  std::memset(block.get(), 'w', elements);

  const auto pool = std::make_shared<Pool>();
  Party owner(make_shm_fabric({"owner", "s", pool}));
  Party reader(make_shm_fabric({"reader", "s", nullptr}));
  const auto until = [&](const auto& holds) {
    const Deadline patience = Deadline::after(std::chrono::seconds(60));
    while (!holds() && !patience.expired()) {
      owner.poll();
      reader.poll();
    }
    ASSERT_TRUE(holds());
  };
  const auto peer = reader->connect(owner->address(), "s", never);
  until([&] { return peer->up(); });
  // The words of both fabrics have their segments.
  auto first = owner->expose({});
  reader->attach(*peer, first->number(), OpId{1}, never);
  until([&] { return reader.completion(OpId{1}) != nullptr; });
  const std::size_t before = mappings_of_pools();

  std::shared_ptr<std::byte> adopted = pool->adopt(worker.lend(place.segment));
  const Shape shape{static_cast<std::int64_t>(elements)};
  const Shape strides{1};
  const TensorView view{adopted.get() + place.offset, Dtype::int8, shape, strides};
  auto region = owner->expose({&view, 1});
  reader->attach(*peer, region->number(), OpId{2}, never);
  until([&] { return reader.completion(OpId{2}) != nullptr; });
  EXPECT_EQ(reader.completion(OpId{2})->region->path(), "mapped");
  std::vector<std::byte> target(elements);
  const TensorView into{target.data(), Dtype::int8, shape, strides};
  const Dtype type = Dtype::int8;
  const auto& remote = reader.completion(OpId{2})->region;
  reader->read({std::make_shared<plan::Stream>(whole_stream(remote->forms(), {&type, 1})),
                0,
                {{peer, remote, 0}},
                {into}},
               OpId{3}, never);
  until([&] { return reader.completion(OpId{3}) != nullptr; });
  EXPECT_TRUE(std::ranges::all_of(target, [](std::byte each) { return each == std::byte{'w'}; }));
  EXPECT_EQ(mappings_of_pools(), before + 2) << "one at the owner, one at the reader";

  region.reset();
  adopted.reset();
  reader.completions.clear();
  until([&] { return mappings_of_pools() == before; });
}

}  // namespace
}  // namespace tensorbus::fabric
