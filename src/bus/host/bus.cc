#include "tensorbus/bus.h"

#include "bus/host/bus_impl.h"
#include "tensorbus/plan.h"

namespace tensorbus {
namespace {

bus::EmbeddedOptions embedded_options(const BusOptions& options) {
  bus::EmbeddedOptions embedded;
  embedded.rank = options.rank;
  embedded.space = options.space;
  embedded.pool = options.pool;
  embedded.bind = options.bind;
  embedded.ports = {options.first_port, options.last_port};
  embedded.copy_threads = options.copy_threads;
  embedded.metrics = options.metrics;
  return embedded;
}

}  // namespace

namespace bus {

ReadBy read_by(ReaderOutcome outcome) {
  switch (outcome) {
    case ReaderOutcome::read:
      return ReadBy::read;
    case ReaderOutcome::lost:
      return ReadBy::lost;
    case ReaderOutcome::failed:
      break;
  }
  return ReadBy::failed;
}

TransferResult result_of(const Outcome& outcome) {
  TransferResult result;
  result.round = outcome.round;
  for (const auto& [rank, how] : outcome.readers) result.readers[rank] = read_by(how);
  return result;
}

}  // namespace bus

struct BusBatch::Impl {
  std::shared_ptr<Bus::Impl> bus;
  std::string batch;
  std::optional<std::string> role;
  std::vector<BusTensor> tensors;  // whose shapes the views borrow
  std::vector<TensorView> views;
  std::uint64_t registration = 0;
  bool open = true;

  TransferResult transfer(bus::Direction direction, Deadline deadline) {
    if (!open) throw Error(Code::invalid_argument, "batch \"" + batch + "\" was closed");
    try {
      return bus::result_of(
          bus->client.transfer(batch, direction, role, views, true, deadline)->wait(deadline));
    } catch (const bus::CommandError& error) {
      throw TransferError(error.status(), bus::result_of(error.outcome()));
    }
  }
};

BusBatch::BusBatch(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BusBatch::BusBatch(BusBatch&&) noexcept = default;
BusBatch& BusBatch::operator=(BusBatch&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

BusBatch::~BusBatch() {
  if (impl_ == nullptr || !impl_->open) return;
  try {
    close(Deadline::after(std::chrono::seconds(5)));
  } catch (const Error&) {
    // The agent is gone, and with it all that it held.
  }
}

TransferResult BusBatch::send(Deadline deadline) {
  return impl_->transfer(bus::Direction::send, deadline);
}

TransferResult BusBatch::recv(Deadline deadline) {
  return impl_->transfer(bus::Direction::recv, deadline);
}

bool BusBatch::published() {
  return impl_->bus->client.query_signal({impl_->batch, false, std::nullopt, impl_->role},
                                         Deadline::after(std::chrono::seconds(5)));
}

void BusBatch::close(Deadline deadline) {
  if (!std::exchange(impl_->open, false)) return;
  impl_->bus->client.close_batch({impl_->batch, impl_->registration}, true, deadline);
}

Bus::Bus(const std::string& store, const BusOptions& options)
    : Bus(connect(StoreUrl::parse(store), {options.deadline, std::nullopt}), options) {}

Bus::Bus(std::shared_ptr<Store> store, const BusOptions& options)
    : impl_(std::make_shared<Impl>(std::move(store), embedded_options(options), options.deadline)) {
}

Bus::~Bus() = default;

std::shared_ptr<std::byte> Bus::allocate(std::size_t bytes) {
  return impl_->agent.pool()->allocate(bytes);
}

Rank Bus::rank() const { return impl_->agent.rank(); }

void Bus::init_pair(const PairSide& side, Deadline deadline) {
  bus::InitPair command{side.pair, side.local, side.remote, side.world_size, std::nullopt};
  if (!side.mesh.empty() || !side.placements.empty()) {
    command.layout = bus::SideLayout{side.mesh, side.placements, side.coordinate};
  }
  impl_->agent.check(command);
  impl_->client.init_pair(command, true, deadline);
}

BusBatch Bus::register_tensors(const std::string& batch, std::span<const BusTensor> tensors,
                               Deadline deadline, const std::optional<std::string>& role) {
  auto impl = std::make_unique<BusBatch::Impl>();
  impl->bus = impl_;
  impl->batch = batch;
  impl->role = role;
  impl->tensors.assign(tensors.begin(), tensors.end());
  std::vector<bus::BatchTensor> items;
  for (BusTensor& tensor : impl->tensors) {
    if (tensor.strides.empty()) tensor.strides = plan::contiguous_strides(tensor.shape);
    if (tensor.strides.size() != tensor.shape.size()) {
      throw Error(Code::invalid_argument, "a tensor has other strides than dimensions");
    }
    impl->views.push_back(
        {static_cast<std::byte*>(tensor.data), tensor.dtype, tensor.shape, tensor.strides});
    items.push_back({impl->views.back(), tensor.pair, tensor.name, tensor.global_shape});
  }
  bus::RegisterOptions options;
  options.role = role;
  impl->registration = impl_->client.register_tensors(batch, items, options, deadline);
  return BusBatch(std::move(impl));
}

}  // namespace tensorbus
