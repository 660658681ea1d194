// All that this process can show of itself. One for the process, as a page or a trace is about the
// process. Thread safe.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "observe/metrics.h"

namespace tensorbus::observe {

class Recorder;

class Registry {
 public:
  using Collect = std::function<void(Families&)>;
  using Look = std::function<void(const Recorder&)>;

  void enter(const Recorder& recorder);
  // Whoever looks at recorders looks at this one for the last time.
  void leave(const Recorder& recorder) noexcept;

  // Adds more numbers, of parts that count for themselves, until the handle is gone; the call is
  // not under way then either. The call must not touch the registry.
  [[nodiscard]] std::shared_ptr<void> add(Collect collect);
  // Told of every recorder that ends, on its thread; until the handle is gone.
  [[nodiscard]] std::shared_ptr<void> on_leave(Look look);

  // Somebody looks at this process: it has a page or writes a timeline. Parts whose work is as
  // short as recording it record only then.
  [[nodiscard]] std::shared_ptr<void> watch();
  bool is_watched() const noexcept { return watchers_.load(std::memory_order_relaxed) > 0; }

  Families collect() const;
  void each(const Look& look) const;

 private:
  std::atomic<int> watchers_{0};
  mutable ProcessMutex mutex_;
  std::vector<const Recorder*> recorders_ GUARDED_BY(mutex_);
  std::list<Collect> collects_ GUARDED_BY(mutex_);
  std::list<Look> looks_ GUARDED_BY(mutex_);
};

Registry& registry();

}  // namespace tensorbus::observe
