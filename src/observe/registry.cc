#include "observe/registry.h"

#include <unistd.h>

#include "observe/recorder.h"

namespace tensorbus::observe {
namespace {

// An entry of a list that lives as long as its handle.
template <typename Entries>
std::shared_ptr<void> handle_of(Mutex& mutex, Entries& entries, typename Entries::iterator entry) {
  return {nullptr, [&mutex, &entries, entry](void*) {
            const Lock lock(mutex);
            entries.erase(entry);
          }};
}

}  // namespace

// Never destroyed: recorders of other statics may outlive it.
Registry& registry() {
  static Registry& only = *new Registry;
  return only;
}
namespace {
[[maybe_unused]] const Registry& made_at_load = registry();
}

void Registry::enter(const Recorder& recorder) {
  const Lock lock(mutex_);
  recorders_.push_back(&recorder);
}

void Registry::leave(const Recorder& recorder) noexcept {
  const Lock lock(mutex_);
  for (const Look& look : looks_) look(recorder);
  std::erase(recorders_, &recorder);
}

std::shared_ptr<void> Registry::add(Collect collect) {
  const Lock lock(mutex_);
  return handle_of(mutex_, collects_, collects_.insert(collects_.end(), std::move(collect)));
}

std::shared_ptr<void> Registry::on_leave(Look look) {
  const Lock lock(mutex_);
  return handle_of(mutex_, looks_, looks_.insert(looks_.end(), std::move(look)));
}

std::shared_ptr<void> Registry::watch() {
  ++watchers_;
  return {nullptr, [this](void*) { --watchers_; }};
}

Families Registry::collect() const {
  Families families;
  families.add(MetricKind::gauge, "tensorbus_process", "1, with the process that answers.",
               {{"version", TENSORBUS_VERSION}, {"pid", std::to_string(::getpid())}}, 1);
  const Lock lock(mutex_);
  for (const Recorder* recorder : recorders_) recorder->collect(families);
  for (const Collect& collect : collects_) collect(families);
  return families;
}

void Registry::each(const Look& look) const {
  const Lock lock(mutex_);
  for (const Recorder* recorder : recorders_) look(*recorder);
}

}  // namespace tensorbus::observe
