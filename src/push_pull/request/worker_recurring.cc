// Requests that come again: those that were prepared, and those that were seen before.
#include <algorithm>

#include "push_pull/request/worker_core.h"

namespace tensorbus::push_pull {
namespace {

// Whatever is larger takes longer to copy than to make.
constexpr std::size_t largest_that_stands = 16 * 1024;

// Items whose shapes and strides are in `extents`, which has room for all.
std::vector<Item> with_own_extents(std::span<const Item> items,
                                   std::vector<std::int64_t>& extents) {
  std::vector<Item> own(items.begin(), items.end());
  for (Item& item : own) {
    for (std::span<const std::int64_t>* each : {&item.tensor.shape, &item.tensor.strides}) {
      const std::size_t first = extents.size();
      extents.insert(extents.end(), each->begin(), each->end());
      *each = std::span<const std::int64_t>(extents).subspan(first);
    }
  }
  return own;
}

std::size_t count_extents(std::span<const Item> items) {
  std::size_t count = 0;
  for (const Item& item : items) count += item.tensor.shape.size() + item.tensor.strides.size();
  return count;
}

}  // namespace

std::shared_ptr<PreparedRequest::Content> Worker::Impl::prepare(
    std::span<const Item> pushes, std::span<const Item> pulls,
    std::shared_ptr<const void> keep) const {
  check_items(pushes, pulls);
  auto content = std::make_shared<PreparedRequest::Content>();
  content->worker = self_;
  content->extents.reserve(count_extents(pushes) + count_extents(pulls));
  content->pushes = with_own_extents(pushes, content->extents);
  content->pulls = with_own_extents(pulls, content->extents);
  content->likeness.take(pushes, pulls);
  content->keep = std::move(keep);
  return content;
}

Handler Worker::Impl::push_pull(PreparedRequest::Content* prepared, Deadline deadline) {
  const std::int64_t handed_over = node_.ticker().now();
  if (prepared == nullptr || prepared->worker.owner_before(self_) ||
      self_.owner_before(prepared->worker)) {
    throw Error(Code::invalid_argument, "this worker has not prepared the request");
  }
  std::vector<std::shared_ptr<const void>> dropped;  // before the lock: let go after it
  Lock lock = node_.loop().lock();
  if (!dropped_.empty()) std::swap(dropped, dropped_);
  const Likeness* const likeness =
      Likeness::is_worth_it(prepared->pushes, prepared->pulls) ? &prepared->likeness : nullptr;
  return send_or_make(
      lock, {prepared->pushes, prepared->pulls, likeness, &prepared->standing, handed_over},
      deadline, prepared->keep);
}

Handler Worker::Impl::send_or_make(Lock& lock, const Wish& wish, Deadline deadline,
                                   std::shared_ptr<const void> keep) {
  if (SentRequest* const request = ready_again(wish)) {
    request->under_way = true;
    fill(lock, *request, wish.pushes);
    ++counts_.repeated;
    return dispatch(*request, wish, std::move(keep));
  }
  if (wish.standing == nullptr) check_items(wish.pushes, wish.pulls);
  SentRequest& request = make(lock, wish, deadline);
  // The lock may have been let go, and another thread have sent something.
  if (wish.standing == nullptr && wish.likeness != nullptr) likeness_.take(wish.pushes, wish.pulls);
  stand(request, wish);
  return dispatch(request, wish, std::move(keep));
}

Worker::Impl::SentRequest* Worker::Impl::find_again(const Wish& wish) {
  if (wish.standing != nullptr) {
    if (SentRequest* const request = recurring_.find(*wish.standing)) return request;
  }
  SentRequest* const request = wish.likeness != nullptr ? recurring_.find(*wish.likeness) : nullptr;
  if (request != nullptr && wish.standing != nullptr) {
    *wish.standing = recurring_.standing(request->standing);
  }
  return request;
}

// The request that the servers know and that can be sent now; null if there is none.
Worker::Impl::SentRequest* Worker::Impl::ready_again(const Wish& wish) {
  SentRequest* const request = find_again(wish);
  if (request == nullptr || request->under_way) return nullptr;
  check_servers();
  if (!may_stand() || !lies_as_before(*request)) {
    forget(*request);
    return nullptr;
  }
  return crowded(request->bytes) == nullptr ? request : nullptr;
}

// On a network memory is opened for every request anew; what lands in a registered buffer has its
// place there.
bool Worker::Impl::may_stand() const {
  return std::ranges::all_of(states_, [](const ServerState& state) {
    return state.partner->shares_memory() && state.landings.empty();
  });
}

// Memory of a pool may have gone back to the system, and other memory come to its address.
bool Worker::Impl::lies_as_before(SentRequest& request) {
  const std::uint64_t changes = node_.pool().changes();
  if (changes == request.pool_changes) return true;
  for (std::size_t server = 0; server < servers(); ++server) {
    for (const Target& target : targets(request, server)) {
      if (!target.measured.dense || target.measured.bytes == 0) continue;
      const auto place =
          states_[server].partner->open_in(node_.pool(), target.data, target.measured.bytes);
      if (place.has_value() != straight(target)) return false;
      if (place && *place != target.place) return false;
    }
  }
  request.pool_changes = changes;
  return true;
}

bool Worker::Impl::is_small(const SentRequest& request) {
  std::size_t pulled = 0;
  for (const Target& target : request.pulls) pulled += target.measured.bytes;
  return std::max(pulled, request.bytes) <= largest_that_stands;
}

bool Worker::Impl::has_landed(const SentRequest& request) {
  return std::ranges::any_of(request.legs, [](const Leg& leg) {
    return std::ranges::any_of(leg.pushes,
                               [](const UsedSlot& used) { return used.landing != nullptr; });
  });
}

// From now on the servers know it, if it comes again and is worth it.
void Worker::Impl::stand(SentRequest& request, const Wish& wish) {
  if (wish.likeness == nullptr || !is_small(request) || !may_stand() || has_landed(request)) return;
  if (wish.standing == nullptr && !recurring_.comes_often(*wish.likeness)) return;
  if (recurring_.find(*wish.likeness) != nullptr) return;  // under way
  auto* const place = recurring_.place_for(
      *wish.likeness, [](const SentRequest& other) { return !other.under_way; });
  if (place == nullptr) return;
  if (place->request != nullptr) forget(*place->request);
  request.standing = recurring_.number_of(*place);
  recurring_.put(*place, *wish.likeness, request);
}

void Worker::Impl::forget(SentRequest& request) {
  message_.start(wire::Kind::forget);
  message_.put(wire::Forget{request.standing});
  for (const ServerState& state : states_) state.partner->send(message_.bytes());
  recurring_.remove(request.standing);
  request.standing = 0;
  request.known = false;
  release(request);
}

}  // namespace tensorbus::push_pull
