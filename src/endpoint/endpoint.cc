#include "tensorbus/endpoint.h"
#include "base/mutex.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <utility>

#include "base/clock.h"
#include "base/secret.h"
#include "endpoint/loop.h"
#include "fabric/core/pool.h"
#include "fabric/route/station.h"
#include "observe/show/metrics_page.h"
#include "observe/show/trace_file.h"
#include "os/process/fork.h"
#include "tensor/view.h"

namespace tensorbus {
namespace {

using fabric::Descriptor;

std::string text(Dtype dtype, std::span<const std::int64_t> shape) {
  return std::string(to_string(dtype)) + " " + to_string(Shape(shape.begin(), shape.end()));
}

// Two endpoints of a process may have one name, and none; their numbers are apart.
std::string label_of(const EndpointOptions& options) {
  static std::atomic<std::uint64_t> made{0};
  const std::string number = std::to_string(++made);
  return options.name.empty() ? number : options.name + " " + number;
}

void check_targets(const Descriptor& descriptor, std::span<const TensorView> into) {
  if (into.size() != descriptor.forms.size()) {
    throw Error(Code::invalid_argument, "the descriptor has " +
                                            std::to_string(descriptor.forms.size()) + " tensors, " +
                                            std::to_string(into.size()) + " targets were given");
  }
  for (std::size_t i = 0; i < into.size(); ++i) {
    const TensorForm& source = descriptor.forms[i];
    if (!std::ranges::equal(into[i].shape, source.shape)) {
      throw Error(Code::invalid_argument,
                  "target " + std::to_string(i) + " is " + text(into[i].dtype, into[i].shape) +
                      ", the tensor is " + text(source.dtype, source.shape));
    }
  }
}

fabric::Forms copy_forms(std::span<const TensorView> views) {
  fabric::Forms forms;
  forms.reserve(views.size());
  for (const TensorView& view : views) forms.push_back(fabric::form_of(view));
  return forms;
}

std::vector<fabric::TensorBox> boxes_of(std::span<const Endpoint::Part> parts,
                                        std::span<const TensorView> into) {
  if (parts.size() != into.size()) {
    throw Error(Code::invalid_argument, std::to_string(parts.size()) + " parts, but " +
                                            std::to_string(into.size()) + " targets were given");
  }
  std::vector<fabric::TensorBox> boxes;
  boxes.reserve(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    boxes.push_back(
        {parts[i].tensor, parts[i].start, Shape(into[i].shape.begin(), into[i].shape.end())});
  }
  // Whoever cannot see the owner's memory names the boxes in one message.
  const std::size_t bytes = endpoint::encode(endpoint::PartsWanted{0, 0, boxes}).size();
  if (bytes > fabric::max_message_bytes) {
    throw Error(Code::invalid_argument, std::to_string(parts.size()) +
                                            " parts are more than one read takes; read them in "
                                            "several");
  }
  return boxes;
}

std::shared_ptr<const plan::Stream> stream_into(const endpoint::PendingRead& read) {
  std::vector<Dtype> types;
  for (const TensorView& target : read.targets) types.push_back(target.dtype);
  const fabric::Forms& forms = read.descriptor.forms;
  auto stream = std::make_shared<const plan::Stream>(
      read.boxes ? fabric::box_stream(forms, *read.boxes, types)
                 : fabric::whole_stream(forms, types));
  fabric::check_target(*stream, read.targets);
  return stream;
}

void set_targets(endpoint::PendingRead& read, std::span<const TensorView> into) {
  read.target_forms = copy_forms(into);
  for (std::size_t i = 0; i < into.size(); ++i) {
    const TensorForm& form = read.target_forms[i];
    read.targets.push_back({into[i].data, form.dtype, form.shape, form.strides, into[i].read_only,
                            false, into[i].device});
  }
  read.stream = stream_into(read);
}

void copy_into(fabric::Pool& pool, endpoint::PendingRead& read) {
  auto received = std::make_shared<Received>();
  auto blocks = std::make_shared<std::vector<std::shared_ptr<std::byte>>>();
  std::vector<TensorView> targets;
  received->forms = read.descriptor.forms;
  for (TensorForm& form : received->forms) {
    form.strides = plan::contiguous_strides(form.shape);
    const std::size_t bytes =
        static_cast<std::size_t>(element_count(form.shape)) * item_bytes(form.dtype);
    blocks->push_back(bytes == 0 ? nullptr : pool.allocate(bytes));
    received->tensors.push_back(blocks->back().get());
    targets.push_back({blocks->back().get(), form.dtype, form.shape, form.strides});
  }
  received->memory = std::move(blocks);
  set_targets(read, targets);
  read.state->set_received(std::move(received));
}

}  // namespace

class Endpoint::Impl {
 public:
  explicit Impl(EndpointOptions options)
      : secret_(options.secret ? *options.secret : to_hex(view(random_id()))),
        secret_in_descriptors_(options.secret_in_descriptors),
        pool_(options.pool != nullptr ? options.pool : std::make_shared<fabric::Pool>()),
        shown_(std::make_unique<Shown>(observe::open_metrics(options.metrics),
                                       observe::open_trace(std::nullopt))),
        counters_({{"endpoint", label_of(options)}}) {
    if (secret_.empty()) throw Error(Code::invalid_argument, "an empty secret protects nothing");
    auto station =
        std::make_unique<fabric::Station>(fabric::StationOptions{options.name, secret_, pool_});
    if (!options.bind.empty()) {
      station->open_network({options.bind, {options.first_port, options.last_port}});
    }
    loop_ = std::make_unique<endpoint::Loop>(std::make_unique<endpoint::Core>(
        std::move(station), secret_in_descriptors_ ? secret_ : std::string(), counters_));
    mailbox_ = loop_->mailbox();
  }

  bool forked() const noexcept { return os::fork_generation() != generation_; }

  std::string expose(std::span<const TensorView> tensors) {
    return on_loop<std::string>([&](endpoint::Core& core) { return core.expose(tensors); });
  }

  std::string expose_frozen(std::span<const TensorView> tensors) {
    std::vector<std::shared_ptr<void>> memory;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].empty()) continue;
      memory.push_back(pool_->keep(tensors[i].data));
      if (memory.back() == nullptr) {
        throw Error(Code::invalid_argument,
                    "tensor " + std::to_string(i) + " is not in the pool, so it cannot be frozen");
      }
    }
    return on_loop<std::string>(
        [&](endpoint::Core& core) { return core.expose_frozen(tensors, std::move(memory)); });
  }

  bool release(std::string_view bytes) {
    const Descriptor descriptor = fabric::decode_descriptor(bytes);
    return on_loop<bool>([&](endpoint::Core& core) { return core.release(descriptor); });
  }

  ReadOperation read(std::string_view bytes, std::span<const TensorView> into, Deadline deadline) {
    endpoint::PendingRead read = pending(bytes, deadline);
    check_targets(read.descriptor, into);
    set_targets(read, into);
    return start(std::move(read));
  }

  ReadOperation read(std::string_view bytes, std::span<const TensorView> into,
                     std::span<const Part> parts, Deadline deadline) {
    endpoint::PendingRead read = pending(bytes, deadline);
    read.boxes = boxes_of(parts, into);
    set_targets(read, into);
    read.bytes = static_cast<std::uint64_t>(read.stream->payload_bytes);
    return start(std::move(read));
  }

  ReadOperation read_frozen(std::string_view bytes, Deadline deadline) {
    endpoint::PendingRead read = pending(bytes, deadline);
    const auto way = std::ranges::find(read.descriptor.ways, "shm", &fabric::Way::kind);
    if (!read.descriptor.frozen || way == read.descriptor.ways.end()) {
      throw Error(Code::invalid_argument, "these tensors are not frozen: give targets");
    }
    read.copy_instead = [pool = pool_](endpoint::PendingRead& given) { copy_into(*pool, given); };
    read.let_go = [mailbox = mailbox_, generation = generation_, owner = read.descriptor.owner.id,
                   region = way->region] {
      if (os::fork_generation() != generation) return;
      mailbox->post([=](endpoint::Core& core) { core.let_go(owner, region); });
    };
    return start(std::move(read));
  }

  std::shared_ptr<std::byte> allocate(std::size_t bytes) { return pool_->allocate(bytes); }

  EndpointStats stats() const {
    EndpointStats stats;
    for (const auto& path : counters_.paths) {
      stats.paths[path.name] = {path.reads.value(), path.bytes.value()};
    }
    stats.failed_reads = counters_.failed_reads.value();
    stats.exposures = counters_.exposures.value();
    stats.connections = counters_.connections.value();
    return stats;
  }

  void close() noexcept {
    if (forked()) return;
    const Lock lock(closing_);
    loop_.reset();
  }

  // Of a forked child, which has no such thread, and perhaps a lock that is held for ever.
  void abandon() noexcept LOCKS_UNCHECKED {
    [[maybe_unused]] const endpoint::Loop* const lost = loop_.release();
    [[maybe_unused]] const Shown* const parents = shown_.release();
  }

 private:
  // What shows this process, if somebody asked for that; it has threads, too.
  struct Shown {
    Shown(std::shared_ptr<observe::HttpServer> metrics, std::shared_ptr<observe::TraceFile> spans)
        : page(std::move(metrics)), trace(std::move(spans)) {}
    std::shared_ptr<observe::HttpServer> page;
    std::shared_ptr<observe::TraceFile> trace;
  };

  [[noreturn]] static void throw_closed() {
    throw Error(Code::cancelled, "the endpoint is closed");
  }

  endpoint::PendingRead pending(std::string_view bytes, Deadline deadline) const {
    os::check_not_forked(generation_, "endpoint");
    endpoint::PendingRead read;
    read.descriptor = fabric::decode_descriptor(bytes);
    read.secret = read.descriptor.secret.empty() ? secret_ : read.descriptor.secret;
    read.deadline = deadline;
    read.asked_at = now();
    for (const TensorForm& form : read.descriptor.forms) {
      read.bytes += static_cast<std::uint64_t>(element_count(form.shape)) * item_bytes(form.dtype);
    }
    return read;
  }

  ReadOperation start(endpoint::PendingRead read) {
    const fabric::OpId id{next_id_.fetch_add(1)};
    read.state = std::make_shared<ReadOperation::State>(
        "read from " + fabric::to_string(read.descriptor.owner), [mailbox = mailbox_, id] {
          mailbox->post([id](endpoint::Core& core) { core.cancel(id); });
        });
    const auto state = read.state;
    const auto shared = std::make_shared<endpoint::PendingRead>(std::move(read));
    const bool posted =
        mailbox_->post([id, shared](endpoint::Core& core) { core.start(id, std::move(*shared)); });
    if (!posted) throw_closed();
    return ReadOperation(state);
  }

  // Soon: the loop never blocks.
  template <typename Result, typename Call>
  Result on_loop(Call call) {
    os::check_not_forked(generation_, "endpoint");
    const auto result = std::make_shared<std::promise<Result>>();
    std::future<Result> future = result->get_future();
    const bool posted = mailbox_->post([result, &call](endpoint::Core& core) {
      try {
        result->set_value(call(core));
      } catch (...) {
        result->set_exception(std::current_exception());
      }
    });
    if (!posted) throw_closed();
    return future.get();
  }

  const unsigned generation_ = os::fork_generation();
  const std::string secret_;
  const bool secret_in_descriptors_;
  const std::shared_ptr<fabric::Pool> pool_;
  std::unique_ptr<Shown> shown_;
  endpoint::Counters counters_;
  std::atomic<std::uint64_t> next_id_{1};
  Mutex closing_;
  std::unique_ptr<endpoint::Loop> loop_ GUARDED_BY(closing_);
  std::shared_ptr<endpoint::Mailbox> mailbox_;
};

Endpoint::Endpoint(EndpointOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Endpoint::~Endpoint() {
  if (impl_->forked()) impl_->abandon();
}

std::string Endpoint::expose(std::span<const TensorView> tensors) { return impl_->expose(tensors); }

std::string Endpoint::expose_frozen(std::span<const TensorView> tensors) {
  return impl_->expose_frozen(tensors);
}

bool Endpoint::release(std::string_view descriptor) { return impl_->release(descriptor); }

Endpoint::Description Endpoint::describe(std::string_view bytes) {
  Descriptor descriptor = fabric::decode_descriptor(bytes);
  return {std::move(descriptor.forms), descriptor.frozen};
}

ReadOperation Endpoint::read(std::string_view descriptor, std::span<const TensorView> into,
                             Deadline deadline) {
  return impl_->read(descriptor, into, deadline);
}

ReadOperation Endpoint::read(std::string_view descriptor, std::span<const TensorView> into,
                             std::span<const Part> parts, Deadline deadline) {
  return impl_->read(descriptor, into, parts, deadline);
}

ReadOperation Endpoint::read_frozen(std::string_view descriptor, Deadline deadline) {
  return impl_->read_frozen(descriptor, deadline);
}

std::shared_ptr<std::byte> Endpoint::allocate(std::size_t bytes) { return impl_->allocate(bytes); }

EndpointStats Endpoint::stats() const { return impl_->stats(); }

void Endpoint::close() noexcept { impl_->close(); }

}  // namespace tensorbus
