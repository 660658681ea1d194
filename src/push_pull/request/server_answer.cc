// Answers, and buffers that pushes land in.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "observe/registry.h"
#include "push_pull/request/pack.h"
#include "push_pull/request/server_core.h"
#include "tensor/view.h"

namespace tensorbus::push_pull {
Server::Impl::Incoming& Server::Impl::take_handler(Handler given) {
  const auto handler = static_cast<std::uint64_t>(given);
  Incoming* const incoming = by_handler_.find(handler);
  if (incoming == nullptr) {
    throw Error(Code::invalid_argument,
                by_handler_.was_given(handler)
                    ? fmt::format("request {} has been answered already", handler)
                    : fmt::format("there is no request {}", handler));
  }
  by_handler_.remove(handler);
  return *incoming;
}

std::string Server::Impl::mismatch(Incoming& incoming, std::span<const TensorView> tensors) const {
  if (tensors.size() != incoming.pulls.size()) {
    return fmt::format("{} tensors in answer to {}, which wants {}", tensors.size(),
                       incoming.worker->partner->name(), incoming.pulls.size());
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t bytes = incoming.answers.emplace_back(measure(tensors[i])).bytes;
    if (tensors[i].on_device()) {
      return fmt::format(
          "tensor {} of the answer to {} is on cuda:{}; answers lie in the host's "
          "memory",
          i, incoming.worker->partner->name(), tensors[i].device);
    }
    if (bytes != incoming.pulls[i].bytes) {
      return fmt::format("tensor {} of the answer to {} has {} bytes, its pull tensor {}", i,
                         incoming.worker->partner->name(), bytes, incoming.pulls[i].bytes);
    }
  }
  return {};
}

void Server::Impl::answer(Incoming& incoming, std::int64_t handed_over, const Status& status) {
  wire::Answer answer{incoming.number,
                      {incoming.received, incoming.given, handed_over, node_.ticker().now()},
                      static_cast<std::uint64_t>(status.code)};
  if (observe::registry().is_watched()) keep_span(incoming, answer.times, status.code);
  if (!incoming.worker->partner->shares_memory()) node_.ticker().to_nanoseconds(answer.times);
  message_.start(wire::Kind::answer);
  message_.put(answer);
  if (!status.ok()) message_.put_text(status.message);
  incoming.worker->partner->send(message_.bytes());
}

// By the worker's rank and the request's number the two find each other in a timeline.
void Server::Impl::keep_span(const Incoming& incoming, std::array<std::int64_t, 4> times,
                             Code code) {
  node_.ticker().to_nanoseconds(times);
  observe::Span span;
  span.work = observe::Work::answer;
  span.code = code;
  span.rank = node_.rank();
  span.begin = times[0];
  span.end = times[3];
  span.version = static_cast<std::int64_t>(incoming.number);
  span.in(observe::Phase::wait) = times[1] - times[0];
  span.in(observe::Phase::serve) = times[2] - times[1];
  span.in(observe::Phase::stage) = times[3] - times[2];
  for (const Measure& measured : incoming.answers) {
    span.bytes += static_cast<std::int64_t>(measured.bytes);
  }
  span.add_peer(node_.rank_of(*incoming.worker->partner));
  span.name = observe::ShortText<56>("push_pull");
  span.side = observe::ShortText<24>("server");
  node_.recorder().finish(span);
}

void Server::Impl::write_answers(Lock& lock, Incoming& incoming,
                                 std::span<const TensorView> tensors) {
  Partner& partner = *incoming.worker->partner;
  std::size_t bytes = 0;
  for (const Measure& measured : incoming.answers) bytes += measured.bytes;
  if (partner.shares_memory()) {
    if (bytes > long_copy) lock.unlock();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      pack(tensors[i], incoming.answers[i], incoming.targets[i]);
    }
    if (!lock.owns_lock()) node_.loop().lock_again(lock);
    return;
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [size, dense] = incoming.answers[i];
    if (dense) {
      partner.write(incoming.pulls[i].place, {tensors[i].data, size});
    } else {
      packed_.resize(std::max(packed_.size(), size));
      pack(tensors[i], packed_.data());
      partner.write(incoming.pulls[i].place, std::span(packed_).first(size));
    }
  }
}

void Server::Impl::respond(Handler handler, std::span<const TensorView> tensors) {
  const std::int64_t handed_over = node_.ticker().now();
  Lock lock = node_.loop().lock();
  Incoming& incoming = take_handler(handler);
  struct Release {
    Impl& impl;
    Incoming& incoming;
    ~Release() { impl.release(incoming); }
  } const at_the_end{*this, incoming};
  if (const std::string why = mismatch(incoming, tensors); !why.empty()) {
    const Status status{Code::invalid_argument, why};
    answer(incoming, handed_over, status);
    throw Error(status);
  }
  if (incoming.worker->partner->lost()) return;
  Status status;
  if (incoming.word == nullptr) {
    write_answers(lock, incoming, tensors);
  } else if (swap(*incoming.word, incoming.number, RequestState::pending, RequestState::writing)) {
    write_answers(lock, incoming, tensors);
    swap(*incoming.word, incoming.number, RequestState::writing, RequestState::written);
  } else {
    status = {Code::cancelled, "the worker waits no longer"};
  }
  // Before the worker hears of the answer: the worker's next push may land there.
  for (auto& landing : incoming.landed) {
    if (landing != nullptr) leave(*incoming.worker, *std::exchange(landing, nullptr));
  }
  answer(incoming, handed_over, status);
}

void Server::Impl::respond_rows(const TensorView& buffer, std::span<const TensorView> tensors,
                                std::span<const Handler> handlers, bool every_from_row_0) {
  if (tensors.size() != handlers.size()) {
    throw Error(Code::invalid_argument,
                fmt::format("{} tensors for {} handlers", tensors.size(), handlers.size()));
  }
  if (buffer.shape.empty()) {
    throw Error(Code::invalid_argument, "the buffer of answers has no rows");
  }
  std::int64_t rows = 0;
  for (const TensorView& tensor : tensors) {
    const std::int64_t wanted = tensor.shape.empty() ? 1 : tensor.shape.front();
    rows = every_from_row_0 ? std::max(rows, wanted) : rows + wanted;
  }
  if (rows > buffer.shape.front()) {
    throw Error(Code::invalid_argument, fmt::format("the answers take {} rows; the buffer has {}",
                                                    rows, buffer.shape.front()));
  }
  std::vector<std::int64_t> shape(buffer.shape.begin(), buffer.shape.end());
  TensorView slice = buffer;
  const auto row_bytes =
      buffer.strides.front() * static_cast<std::int64_t>(item_bytes(buffer.dtype));
  std::int64_t row = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    shape.front() = tensors[i].shape.empty() ? 1 : tensors[i].shape.front();
    slice.shape = shape;
    slice.data = buffer.data == nullptr ? nullptr : buffer.data + row * row_bytes;
    respond(handlers[i], {&slice, 1});
    if (!every_from_row_0) row += shape.front();
  }
}

// A request that lay in the landing is over.
void Server::Impl::leave(WorkerState& worker, Landing& landing) {
  if (!landing.retired) return give_back(*landing.word);
  std::erase_if(worker.retired, [&](const auto& each) { return each.get() == &landing; });
}

void Server::Impl::retire(WorkerState& worker, std::int64_t key) {
  const auto found = worker.landings.find(key);
  if (found == worker.landings.end()) return;
  const std::shared_ptr<Landing> landing = found->second;
  worker.landings.erase(found);
  landing->retired = true;
  // Whoever has the landing holds it to the end; nobody else takes it.
  if (!take(*landing->word, LandingState::delivered)) worker.retired.push_back(landing);
}

void Server::Impl::offer(WorkerState& worker, std::int64_t key, Landing& landing) {
  message_.start(wire::Kind::landing);
  message_.put(wire::Landing{key, landing.place, landing.bytes, landing.word_slot.place});
  worker.partner->send(message_.bytes());
}

void Server::Impl::register_buffer(const TensorView& tensor, std::span<const int> workers,
                                   std::span<const std::int64_t> keys,
                                   std::shared_ptr<const void> keep) {
  if (workers.empty() || workers.size() != keys.size()) {
    throw Error(Code::invalid_argument,
                fmt::format("{} worker ranks for {} keys; there must be as many, and at least one",
                            workers.size(), keys.size()));
  }
  const std::size_t total = bytes_of(tensor);
  if (total % keys.size() != 0) {
    throw Error(Code::invalid_argument,
                fmt::format("{} bytes cannot be divided into {} equal parts", total, keys.size()));
  }
  if (!is_dense(tensor) || tensor.read_only || tensor.on_device()) {
    throw Error(Code::invalid_argument,
                "the buffer must be contiguous, writable and in the host's memory");
  }
  std::set<std::pair<int, std::int64_t>> named;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    worker_at(workers[i]);
    if (keys[i] < 0) {
      throw Error(Code::invalid_argument, fmt::format("key {} is negative", keys[i]));
    }
    if (!named.emplace(workers[i], keys[i]).second) {
      throw Error(Code::invalid_argument,
                  fmt::format("key {} of worker {} is named twice", keys[i], workers[i]));
    }
  }
  const std::size_t bytes = total / keys.size();
  Lock lock = node_.loop().lock();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    WorkerState& worker = worker_at(workers[i]);
    retire(worker, keys[i]);
    auto landing = std::make_shared<Landing>();
    landing->memory = tensor.data + i * bytes;
    landing->bytes = bytes;
    landing->keep = keep;
    const bool shared = worker.partner->shares_memory() && !worker.partner->lost() && bytes > 0;
    const auto place =
        shared ? worker.partner->open_in(node_.pool(), landing->memory, bytes) : std::nullopt;
    if (place) {
      landing->place = *place;
      landing->word_slot = worker.partner->make_slot(sizeof(Word));
      landing->word = {landing->word_slot.memory, new (landing->word_slot.memory.get()) Word(0)};
    } else {
      landing->word = std::make_shared<Word>(0);
    }
    offer(worker, keys[i], *landing);
    worker.landings.emplace(keys[i], std::move(landing));
  }
}

}  // namespace tensorbus::push_pull
