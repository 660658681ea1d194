#include "store/etcd/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tensorbus::store::etcd {

EtcdWatch::EtcdWatch(std::shared_ptr<Access> access, const std::string& prefix, bool current,
                     Deadline deadline)
    : access_(access), prefix_(prefix), feed_(access, KeyRange::prefix(prefix), current) {
  const Call until = call(deadline, nullptr);
  auto first = feed_.next(until);
  for (StoreEvent& event : first->events) {
    if (is_own(event.key)) continue;
    known_.insert(event.key);
    if (current) events_.push_back(std::move(event));
  }
  revision_ = first->revision;
  feed_.want_values();
  if (!feed_.connect(until)) {
    throw Error(Code::timeout, access_->gateway.name() + " did not take the watch in time");
  }
}

Call EtcdWatch::call(Deadline deadline, Cancellation* cancellation) {
  Call made = access_->call(deadline, cancellation);
  made.closing_watch = &closing_;
  return made;
}

void EtcdWatch::wait(Deadline deadline, Cancellation* cancellation) {
  const Call until = call(deadline, cancellation);
  if (closing_.cancelled()) throw Error(Code::cancelled, "the watch was closed");
  while (events_.empty()) {
    auto step = feed_.next(until);
    if (!step) {
      throw Error(Code::timeout,
                  fmt::format("no key under \"{}\" changed before the deadline", prefix_));
    }
    report(std::move(*step));
  }
}

StoreEvent EtcdWatch::next(Deadline deadline, Cancellation* cancellation) {
  wait(deadline, cancellation);
  StoreEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

std::vector<StoreEvent> EtcdWatch::next_all(Deadline deadline, Cancellation* cancellation) {
  wait(deadline, cancellation);
  std::vector<StoreEvent> all(std::make_move_iterator(events_.begin()),
                              std::make_move_iterator(events_.end()));
  events_.clear();
  return all;
}

void EtcdWatch::report(Feed::Step step) {
  if (step.snapshot) {
    report_difference(std::move(step));
    return;
  }
  revision_ = step.revision;
  for (StoreEvent& event : step.events) {
    if (is_own(event.key)) continue;
    if (event.kind == StoreEvent::Kind::put) {
      known_.insert(event.key);
    } else {
      known_.erase(event.key);
    }
    events_.push_back(std::move(event));
  }
}

void EtcdWatch::report_difference(Feed::Step snapshot) {
  std::set<std::string> present;
  std::vector<StoreEvent> changes;
  for (StoreEvent& event : snapshot.events) {
    if (is_own(event.key)) continue;
    present.insert(event.key);
    if (snapshot.new_data || event.revision > revision_) changes.push_back(std::move(event));
  }
  std::stable_sort(changes.begin(), changes.end(), [](const StoreEvent& a, const StoreEvent& b) {
    return a.revision < b.revision;
  });
  for (const std::string& key : known_) {
    if (!present.contains(key)) {
      changes.push_back({StoreEvent::Kind::erase, key, {}, snapshot.revision});
    }
  }
  known_ = std::move(present);
  revision_ = snapshot.revision;
  std::move(changes.begin(), changes.end(), std::back_inserter(events_));
}

}  // namespace tensorbus::store::etcd
