// What the suite runs on, and what its tests have in common. The tests are in
// conformance_*_test.cc.
#include "fabric/conformance/conformance.h"

#include <cstring>

#include "copy/cast.h"
#include "fabric/conformance/device_fabric.h"
#include "fabric/conformance/lending_fabric.h"
#include "fabric/conformance/two_hosts.h"
#include "fabric/core/pool.h"
#include "fabric/memory/fabric.h"
#include "fabric/route/station.h"
#include "fabric/shm/fabric.h"
#include "fabric/ucx/ucx.h"

namespace tensorbus::fabric {
namespace {

std::shared_ptr<std::byte> private_memory(std::size_t bytes) {
  return {new std::byte[bytes + 1], std::default_delete<std::byte[]>()};
}

Kind memory_kind() {
  return {"memory",
          [] {
            return [hub = make_memory_hub()](std::string name, std::string secret) {
              return Party(make_memory_fabric(hub, {std::move(name), std::move(secret)}));
            };
          },
          private_memory};
}

enum class Memory { pooled, private_, both };

Kind shm_kind(const std::string& name, Memory memory, bool read_process_memory, bool lent = false,
              std::size_t threads = 1) {
  const auto pool = std::make_shared<Pool>(PoolOptions{std::size_t{16} << 20});
  const auto make = [=](std::string party, std::string secret) {
    auto fabric = make_shm_fabric({std::move(party), std::move(secret), pool, read_process_memory,
                                   &steady_clock(), std::make_shared<copy::Crew>(threads)});
    if (lent) fabric = std::make_unique<LendingFabric>(std::move(fabric), pool);
    return Party(std::move(fabric));
  };
  // In turns, so that regions and targets have tensors of both kinds.
  const auto turns = std::make_shared<unsigned>(0);
  const auto allocate = [=](std::size_t bytes) {
    const bool pooled = memory == Memory::pooled || (memory == Memory::both && ++*turns % 3 == 0);
    return pooled ? pool->allocate(bytes) : private_memory(bytes);
  };
  return {name, [make] { return make; }, allocate};
}

std::unique_ptr<Fabric> ucx_fabric(std::string name, std::string secret, std::string bind,
                                   UcxOptions options = {}) {
  options.identity = {"here", 1, 1, random_id(), std::move(name)};
  options.secret = std::move(secret);
  options.bind = std::move(bind);
  return make_ucx_fabric(options);
}

Kind ucx_kind() {
  return {"ucx",
          [] {
            return [](std::string name, std::string secret) {
              return Party(ucx_fabric(std::move(name), std::move(secret), "127.0.0.1"));
            };
          },
          private_memory};
}

// The first party is on one host, all others are on the other.
Kind ucx_hosts_kind() {
  struct Network {
    NamespaceGuard guard;
    TwoHosts hosts;
    bool first = true;
  };
  return {"ucx_hosts",
          [] {
            const auto network = std::make_shared<Network>();
            // Both call the device by the same name, so the one's /sys serves both.
            network->hosts.enter(0);
            return [network](std::string name, std::string secret) {
              const int host = std::exchange(network->first, false) ? 0 : 1;
              const auto visit = [network, host] { network->hosts.enter_network(host); };
              visit();
              return Party(ucx_fabric(std::move(name), std::move(secret), TwoHosts::address(host)),
                           visit);
            };
          },
          private_memory};
}

// Alone on its host, or with a network; with a reason against shared memory that one serves.
Kind station_kind(const std::string& name, bool network, const std::string& no_shm) {
  const auto pool = std::make_shared<Pool>(PoolOptions{std::size_t{16} << 20});
  const auto make = [=](std::string party, std::string secret) {
    auto station = std::make_unique<Station>(
        StationOptions{std::move(party), std::move(secret), pool, no_shm});
    if (network) station->open_network({"127.0.0.1"});
    return Party(std::move(station));
  };
  return {name, [make] { return make; },
          [pool](std::size_t bytes) { return pool->allocate(bytes); }};
}

// All tensors are on a device, of a driver that is new for each test.
using MakeOnDevice =
    std::function<std::unique_ptr<Fabric>(std::string, std::string, device::Copiers::Open)>;
Kind device_kind(const std::string& name, const device::Standin::Variables& variables,
                 const MakeOnDevice& make) {
  const auto current = std::make_shared<std::weak_ptr<TestDevice>>();
  const auto network = [=] {
    const auto device = std::make_shared<TestDevice>(variables);
    *current = device;
    return [=](std::string party, std::string secret) {
      const auto open = [device](device::Id) -> device::Device& { return device->device(); };
      return Party(
          std::make_unique<DeviceFabric>(make(std::move(party), std::move(secret), open), device));
    };
  };
  const auto allocate = [=](std::size_t bytes) {
    const std::shared_ptr<TestDevice> device = current->lock();
    return std::shared_ptr<std::byte>(device->allocate(bytes + 1),
                                      [device](std::byte* seen) { device->free(seen); });
  };
  return {name, network, allocate};
}

device::Standin::Variables lazy_mode() { return {{"STANDIN_LAZY", "1"}}; }
device::Standin::Variables random_mode() { return {{"STANDIN_DELAY_US", "50"}}; }
// What can goes through a window in device memory, which two processes would have.
device::Standin::Variables with_windows(device::Standin::Variables variables) {
  variables["STANDIN_IPC_SELF"] = "1";
  return variables;
}

std::unique_ptr<Fabric> shm_on_device(std::string name, std::string secret,
                                      device::Copiers::Open open) {
  ShmOptions options;
  options.name = std::move(name);
  options.secret = std::move(secret);
  options.open_device = std::move(open);
  return make_shm_fabric(std::move(options));
}

std::unique_ptr<Fabric> ucx_on_device(std::string name, std::string secret,
                                      device::Copiers::Open open) {
  UcxOptions options;
  options.open_device = std::move(open);
  return ucx_fabric(std::move(name), std::move(secret), "127.0.0.1", std::move(options));
}

// The same with all tensors lent.
Kind lent(Kind kind) {
  kind.name += "_lent";
  kind.network = [network = kind.network] {
    return [make = network()](std::string name, std::string secret) {
      return Party(std::make_unique<LendingFabric>(
          make(std::move(name), std::move(secret)).release(), nullptr));
    };
  };
  return kind;
}

}  // namespace

std::vector<Kind> available_kinds() {
  std::vector<Kind> kinds{
      memory_kind(),
      shm_kind("shm_pooled", Memory::pooled, true),
      shm_kind("shm_private", Memory::private_, true),
      shm_kind("shm_packed", Memory::private_, false),
      shm_kind("shm_mixed", Memory::both, true),
      shm_kind("shm_mixed_packed", Memory::both, false),
      lent(memory_kind()),
      shm_kind("shm_lent", Memory::private_, true, true),
      shm_kind("shm_mixed_lent", Memory::both, true, true),
      shm_kind("shm_mixed_packed_lent", Memory::both, false, true),
      shm_kind("shm_pooled_threads", Memory::pooled, true, false, 4),
      shm_kind("shm_private_threads", Memory::private_, true, false, 4),
      shm_kind("shm_packed_threads", Memory::private_, false, false, 4),
      shm_kind("shm_mixed_threads_lent", Memory::both, true, true, 4),
      station_kind("shm_station_alone", false, ""),
      device_kind("shm_device_lazy", lazy_mode(), shm_on_device),
      device_kind("shm_device_random", random_mode(), shm_on_device),
      device_kind("shm_window_lazy", with_windows(lazy_mode()), shm_on_device),
      device_kind("shm_window_random", with_windows(random_mode()), shm_on_device)};
  if (has_ucx()) {
    kinds.push_back(device_kind("ucx_device_lazy", lazy_mode(), ucx_on_device));
    kinds.push_back(device_kind("ucx_device_random", random_mode(), ucx_on_device));
    kinds.push_back(ucx_kind());
    kinds.push_back(lent(ucx_kind()));
    kinds.push_back(station_kind("shm_station", true, ""));
    kinds.push_back(station_kind("ucx_station", true, "not wanted here"));
    if (TwoHosts::unavailable().empty()) kinds.push_back(ucx_hosts_kind());
  }
  return kinds;
}

std::vector<TensorView> views(const std::vector<TestTensor>& tensors) {
  std::vector<TensorView> all;
  for (const TestTensor& each : tensors) all.push_back(each.view());
  return all;
}

void expect_equal(const TestTensor& a, const TestTensor& b) {
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(std::memcmp(a.memory.get(), b.memory.get(), a.bytes()), 0);
}

FabricTest::FabricTest()
    : make_(GetParam().network()), reader_(make_("reader", "r")), owner_(make_("owner", "o")) {}

void FabricTest::poll() {
  reader_.poll();
  owner_.poll();
  for (Party* party : others_) party->poll();
}

std::shared_ptr<Peer> FabricTest::connect(Party& from, Party& to, const std::string& secret) {
  const std::size_t before = to.ups.size();
  const Address address = to->address();
  auto peer = from->connect(address, secret, never);
  until([&] { return peer->up() && to.ups.size() > before; });
  if (to.ups.size() > before) accepted_ = to.ups.back();
  return peer;
}

Completion FabricTest::finish(Party& party, OpId id) {
  until([&] { return party.completion(id) != nullptr; });
  const Completion* done = party.completion(id);
  return done != nullptr ? *done : Completion{id, {Code::failed, "it never ended"}, 0, {}};
}

Source FabricTest::attach(Party& party, const std::shared_ptr<Peer>& peer, const Region& region) {
  const OpId id = next_id();
  party->attach(*peer, region.number(), id, never);
  const Completion done = finish(party, id);
  EXPECT_TRUE(done.status.ok()) << done.status.message;
  return {peer, done.region, 0};
}

Completion FabricTest::read(Party& party, Read read) {
  const OpId id = next_id();
  party->read(std::move(read), id, never);
  return finish(party, id);
}

Read FabricTest::whole(const Source& source, const std::vector<TestTensor>& targets) {
  std::vector<Dtype> types;
  for (const TestTensor& target : targets) types.push_back(target.form->dtype);
  return {std::make_shared<plan::Stream>(whole_stream(source.region->forms(), types)),
          0,
          {source},
          views(targets)};
}

TestTensor FabricTest::new_tensor(Dtype dtype, const Shape& shape, const Shape& strides) {
  TestTensor made{nullptr, std::make_shared<TensorForm>(TensorForm{dtype, shape, strides})};
  made.memory = GetParam().allocate(made.bytes());
  made.first = -extent_of(*made.form).begin;
  std::memset(made.memory.get(), 0, made.bytes());
  return made;
}

TestTensor FabricTest::new_tensor(Dtype dtype, const Shape& shape) {
  return new_tensor(dtype, shape, plan::contiguous_strides(shape));
}

void FabricTest::fill(const TestTensor& tensor) {
  const auto bytes = static_cast<std::ptrdiff_t>(tensor.bytes());
  const auto item = static_cast<std::ptrdiff_t>(item_bytes(tensor.form->dtype));
  for (std::ptrdiff_t at = 0; at < bytes; at += item) {
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

INSTANTIATE_TEST_SUITE_P(All, FabricTest, testing::ValuesIn(available_kinds()),
                         [](const auto& each) { return each.param.name; });

}  // namespace tensorbus::fabric
