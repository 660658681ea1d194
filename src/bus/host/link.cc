#include "tensorbus/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <set>
#include <thread>

#include "base/mutex.h"
#include "base/refuse.h"
#include "base/waiting.h"
#include "bus/host/bus_impl.h"
#include "bus/link/link.h"
#include "bus/link/padding.h"
#include "device/cuda/device.h"
#include "os/process/process.h"
#include "tensorbus/plan.h"

namespace tensorbus {
namespace {

using bus::Direction;

// Tensors as a caller gave them, with what the views of them borrow.
struct Given {
  std::vector<LinkTensor> tensors;  // in the order of their names
  bus::LinkTensors taken;

  void fill_padding() const {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const LinkTensor& each = tensors[i];
      if (each.pad) bus::fill_padding(taken.views[i], *each.whole, *each.start, *each.pad);
    }
  }
};

void check(LinkTensor& tensor) {
  const auto refuse_it = [&](const char* why) {
    refuse(fmt::format("tensor \"{}\" {}", tensor.name, why));
  };
  if (tensor.name.empty()) refuse("a tensor of a link has a name");
  if (tensor.strides.empty()) tensor.strides = plan::contiguous_strides(tensor.shape);
  if (tensor.strides.size() != tensor.shape.size()) refuse_it("has other strides than dimensions");
  if (tensor.start && tensor.layout) refuse_it("has a start and a layout");
  if ((tensor.start || tensor.layout) && !tensor.whole) refuse_it("does not say of what whole");
  if (tensor.pad && !tensor.start) refuse_it("has a pad and is no box");
  if (tensor.pad && tensor.device != host_memory) refuse_it("has a pad and is on a device");
}

// On the caller's thread, whose streams they are.
device::Moments moments_of(std::span<const LinkTensor> tensors) {
  std::set<std::pair<std::int32_t, std::uintptr_t>> streams;
  for (const LinkTensor& each : tensors) {
    if (each.device != host_memory) streams.emplace(each.device, each.stream);
  }
  device::Moments moments;
  for (const auto& [ordinal, stream] : streams) {
    device::Device& device = device::cuda::open({ordinal});
    moments.push_back({&device, device.moment({stream})});
  }
  return moments;
}

std::shared_ptr<const Given> take(std::span<const LinkTensor> tensors) {
  auto given = std::make_shared<Given>();
  given->tensors.assign(tensors.begin(), tensors.end());
  std::ranges::stable_sort(given->tensors, {}, &LinkTensor::name);
  auto form = std::make_shared<bus::LinkForm>();
  for (LinkTensor& each : given->tensors) {
    check(each);
    form->names.push_back(each.name);
    form->wholes.push_back(each.whole);
    form->starts.push_back(each.start);
    auto& layout = form->layouts.emplace_back();
    if (each.layout) {
      layout = bus::SideLayout{each.layout->mesh, each.layout->placements, each.layout->coordinate,
                               each.layout->mesh_id};
    }
    given->taken.views.push_back(
        {static_cast<std::byte*>(each.data), each.dtype, each.shape, each.strides});
    given->taken.views.back().device = each.device;
  }
  given->taken.moments = moments_of(given->tensors);
  given->taken.form = std::move(form);
  return given;
}

// The tensors live as long as they are registered.
bus::LinkTensors owned(const std::shared_ptr<const Given>& given) {
  bus::LinkTensors tensors = given->taken;
  tensors.owner = given;
  return tensors;
}

std::map<Rank, ReadBy> readers_of(const std::map<Rank, bus::ReaderOutcome>& outcomes) {
  std::map<Rank, ReadBy> readers;
  for (const auto& [rank, how] : outcomes) readers[rank] = bus::read_by(how);
  return readers;
}

delta::Mode mode_of(LinkDelta wanted) {
  constexpr delta::Mode modes[] = {delta::Mode::off, delta::Mode::automatic, delta::Mode::always};
  return modes[static_cast<std::size_t>(wanted)];
}

// Errors as the public header has them.
template <typename Call>
auto translated(Call call) {
  try {
    return call();
  } catch (const bus::CommandError& error) {
    const bus::Outcome& outcome = error.outcome();
    if (outcome.absence == bus::Absence::gone) throw VersionGone(error.status());
    if (outcome.absence == bus::Absence::ended) {
      throw EndOfStream(error.status(), outcome.version);
    }
    throw TransferError(error.status(), bus::result_of(outcome));
  }
}

std::vector<WholeTensor> chosen(const std::string& name, const std::vector<WholeTensor>& found,
                                const std::optional<std::vector<std::string>>& names) {
  if (!names) return found;
  std::vector<WholeTensor> wanted;
  for (const std::string& each : *names) {
    const auto at = std::ranges::find(found, each, &WholeTensor::name);
    if (at == found.end()) refuse(fmt::format("\"{}\" has no tensor \"{}\"", name, each));
    wanted.push_back(*at);
  }
  return wanted;
}

bool is_same(const std::vector<WholeTensor>& a, const std::vector<WholeTensor>& b) {
  return std::ranges::equal(a, b, [](const WholeTensor& one, const WholeTensor& other) {
    return one.name == other.name && one.dtype == other.dtype && one.shape == other.shape;
  });
}

}  // namespace

struct Link::Impl {
  Impl(std::shared_ptr<Bus::Impl> owner, bus::LinkSides sides)
      : host(std::move(owner)),
        link([this]() -> bus::Client& { return host->client; }, host->agent.pool(),
             std::move(sides), std::nullopt) {}

  std::int64_t send(bus::LinkCall& call, const std::shared_ptr<const Given>& given,
                    const LinkSend& how, Deadline deadline) {
    return translated([&] {
      return link.send(call, owned(given), {how.version, how.allow_lost, how.min_readers},
                       deadline);
    });
  }
  std::int64_t pull(bus::LinkCall& call, const std::shared_ptr<const Given>& given,
                    const LinkPull& how, Deadline deadline,
                    bus::PullPart part = bus::PullPart::all) {
    // First: nobody writes to what the next pull may patch.
    if (part != bus::PullPart::fetch) given->fill_padding();
    return translated([&] {
      return link.pull(
          call, owned(given),
          {how.version, how.newer_than, how.together, how.subset, !how.delta, part, how.scratch},
          deadline);
    });
  }

  const std::shared_ptr<Bus::Impl> host;
  bus::Link link;
};

struct LinkHandle::Impl {
  Impl(std::shared_ptr<bus::LinkCall> running, std::function<std::int64_t()> work)
      : call(std::move(running)), thread([this, work = std::move(work)] { run(work); }) {}
  ~Impl() {
    call->running.cancel();
    thread.join();
  }

  void run(const std::function<std::int64_t()>& work) noexcept {
    os::block_signals_in_this_thread();
    std::int64_t got = 0;
    std::exception_ptr failed;
    try {
      got = work();
    } catch (...) {
      failed = std::current_exception();
    }
    call->leave();
    const Lock lock(mutex);
    version = got;
    error = failed;
    over = true;
    changed.notify_all();
  }

  void wait(Deadline deadline) {
    Lock lock(mutex);
    if (!tensorbus::wait(lock, changed, deadline, [&]() REQUIRES(mutex) { return over; })) {
      throw Error(Code::timeout, "the call is not over yet");
    }
  }

  const std::shared_ptr<bus::LinkCall> call;
  Mutex mutex;
  std::condition_variable changed;
  bool over GUARDED_BY(mutex) = false;
  std::int64_t version GUARDED_BY(mutex) = 0;
  std::exception_ptr error GUARDED_BY(mutex);
  std::thread thread;
};

LinkHandle::LinkHandle(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LinkHandle::~LinkHandle() = default;
LinkHandle::LinkHandle(LinkHandle&&) noexcept = default;
LinkHandle& LinkHandle::operator=(LinkHandle&&) noexcept = default;

bool LinkHandle::done() const {
  const Lock lock(impl_->mutex);
  return impl_->over;
}

void LinkHandle::wait(Deadline deadline) { impl_->wait(deadline); }

std::int64_t LinkHandle::result(Deadline deadline) {
  impl_->wait(deadline);
  const Lock lock(impl_->mutex);
  if (impl_->error != nullptr) std::rethrow_exception(impl_->error);
  return impl_->version;
}

void LinkHandle::cancel() noexcept { impl_->call->running.cancel(); }

std::pair<std::int64_t, std::int64_t> LinkHandle::progress() const {
  return impl_->call->running.progress();
}

void LinkHandle::wait_until_staged(Deadline deadline) {
  if (impl_->call->wait_until_staged(deadline)) return;
  throw Error(Code::timeout, "the tensors are not copied yet, or are read where they are");
}

std::map<Rank, ReadBy> LinkHandle::readers() const { return readers_of(impl_->call->readers()); }

Link::Link(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Link::~Link() = default;
Link::Link(Link&&) noexcept = default;
Link& Link::operator=(Link&&) noexcept = default;

std::int64_t Link::send(const std::string& name, std::span<const LinkTensor> tensors,
                        Deadline deadline, const LinkSend& how) {
  const auto given = take(tensors);
  const auto call = impl_->link.begin({name, Direction::send, false});
  return impl_->send(*call, given, how, deadline);
}

LinkHandle Link::send_async(const std::string& name, std::span<const LinkTensor> tensors,
                            Deadline deadline, const LinkSend& how) {
  const auto given = take(tensors);
  const auto call = impl_->link.begin({name, Direction::send, false});
  return LinkHandle(
      std::make_unique<LinkHandle::Impl>(call, [impl = impl_, call, given, how, deadline] {
        return impl->send(*call, given, how, deadline);
      }));
}

std::int64_t Link::recv(const std::string& name, std::span<const LinkTensor> tensors,
                        Deadline deadline, const LinkRecv& how) {
  const auto given = take(tensors);
  const auto call = impl_->link.begin({name, Direction::recv, false});
  const std::int64_t version = translated([&] {
    return impl_->link.recv(*call, owned(given), {how.version, how.subset}, deadline);
  });
  given->fill_padding();
  return version;
}

std::int64_t Link::publish(const std::string& name, std::span<const LinkTensor> tensors,
                           Deadline deadline, const LinkPublish& how) {
  if (how.patience < Duration::zero()) refuse("patience is negative");
  const auto given = take(tensors);
  const auto call = impl_->link.begin({name, Direction::send, true});
  return translated([&] {
    const bus::PublishOptions options{how.version, how.patience, how.withdraw, mode_of(how.delta)};
    return impl_->link.publish(*call, owned(given), {options, how.keep, how.dtype}, deadline);
  });
}

std::int64_t Link::pull(const std::string& name, std::span<const LinkTensor> tensors,
                        Deadline deadline, const LinkPull& how) {
  const auto given = take(tensors);
  const auto call = impl_->link.begin({name, Direction::recv, true});
  return impl_->pull(*call, given, how, deadline);
}

std::int64_t Link::fetch(const std::string& name, std::span<const LinkTensor> tensors,
                         Deadline deadline, const LinkPull& how) {
  const auto given = take(tensors);
  const auto call = impl_->link.begin({name, Direction::recv, true});
  return impl_->pull(*call, given, how, deadline, bus::PullPart::fetch);
}

std::int64_t Link::apply(const std::string& name, std::span<const LinkTensor> tensors,
                         std::int64_t version, Deadline deadline) {
  const auto given = take(tensors);
  const auto call = impl_->link.begin({name, Direction::recv, true});
  LinkPull how;
  how.version = version;
  how.together = false;
  return impl_->pull(*call, given, how, deadline, bus::PullPart::apply);
}

LinkHandle Link::pull_async(const std::string& name, std::span<const LinkTensor> tensors,
                            Deadline deadline, const LinkPull& how) {
  const auto given = take(tensors);
  const auto call = impl_->link.begin({name, Direction::recv, true});
  return LinkHandle(
      std::make_unique<LinkHandle::Impl>(call, [impl = impl_, call, given, how, deadline] {
        return impl->pull(*call, given, how, deadline);
      }));
}

std::vector<WholeTensor> Link::describe(const std::string& name, Deadline deadline) {
  const auto contents = translated([&] { return impl_->link.contents(name, deadline); });
  std::vector<WholeTensor> tensors;
  for (const bus::Content& each : contents) tensors.push_back({each.name, each.dtype, each.shape});
  return tensors;
}

PulledTensors Link::pull_new(const std::string& name, Deadline deadline,
                             const std::optional<std::vector<std::string>>& names, LinkPull how) {
  how.subset = names.has_value();
  while (true) {
    const std::vector<WholeTensor> found = describe(name, deadline);
    PulledTensors pulled;
    std::vector<LinkTensor> targets;
    for (const WholeTensor& each : chosen(name, found, names)) {
      const auto elements = static_cast<std::size_t>(element_count(each.shape));
      const std::size_t bytes = elements * item_bytes(each.dtype);
      auto memory = bytes == 0 ? nullptr : impl_->host->agent.pool()->allocate(bytes);
      targets.push_back({each.name, memory.get(), each.dtype, each.shape});
      pulled.tensors.push_back({each.name, each.dtype, each.shape, std::move(memory)});
    }
    try {
      pulled.version = pull(name, targets, deadline, how);
      return pulled;
    } catch (const Error& error) {
      // Something else may be published since then.
      if (error.code() != Code::invalid_argument || is_same(describe(name, deadline), found)) {
        throw;
      }
    }
  }
}

std::int64_t Link::newest(const std::string& name, Deadline deadline) {
  return translated([&] { return impl_->link.newest(name, deadline); });
}

std::map<std::string, std::map<Rank, std::int64_t>> Link::versions(const std::string& name,
                                                                   Deadline deadline) {
  return translated([&] { return impl_->link.versions(name, deadline); });
}

std::optional<LinkUpdate> Link::last_update(const std::string& name) const {
  const auto last = impl_->link.last_update(name);
  if (!last) return std::nullopt;
  const bus::Update& update = last->update;
  using std::chrono::nanoseconds;
  return LinkUpdate{last->version,
                    update.why == delta::Why::patch,
                    std::string(delta::to_string(update.why)),
                    update.elements,
                    update.values,
                    update.bytes,
                    nanoseconds(update.asking),
                    nanoseconds(update.fetching),
                    nanoseconds(update.applying),
                    nanoseconds(update.verifying),
                    update.verified};
}

std::optional<LinkSent> Link::last_send(const std::string& name) const {
  const auto sent = impl_->link.last_send(name);
  if (!sent) return std::nullopt;
  return LinkSent{sent->version, readers_of(sent->readers)};
}

void Link::close(Deadline deadline) {
  translated([&] {
    impl_->link.close(deadline);
    return 0;
  });
}

Link Bus::link(const std::string& local, const std::optional<std::string>& remote) {
  return link(local, remote, {});
}

Link Bus::link(const std::string& local, const std::optional<std::string>& remote,
               const LinkOptions& options) {
  if (options.delta_memory.value_or(0) < 0) refuse("delta_memory is negative");
  if (options.verify_every < 0) refuse("verify_every is negative");
  return Link(std::make_shared<Link::Impl>(
      impl_, bus::LinkSides{local, remote, options.world_size, options.delta, options.delta_memory,
                            options.verify_every}));
}

}  // namespace tensorbus
