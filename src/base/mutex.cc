#include "base/mutex.h"

#include <pthread.h>

#include <vector>

namespace tensorbus {
namespace {

// Never destroyed: forks happen until the very end.
struct ProcessMutexes {
  Mutex mutex;
  std::vector<ProcessMutex*> all GUARDED_BY(mutex);
};
ProcessMutexes& process_mutexes() {
  static ProcessMutexes& only = *new ProcessMutexes;
  return only;
}

// Takes all mutexes of the process, or none and returns the one that somebody else holds.
ProcessMutex* try_lock_all() LOCKS_UNCHECKED {
  ProcessMutexes& mutexes = process_mutexes();
  mutexes.mutex.lock();
  for (auto each = mutexes.all.begin(); each != mutexes.all.end(); ++each) {
    if ((*each)->try_lock()) continue;
    ProcessMutex* const busy = *each;
    while (each != mutexes.all.begin()) (*--each)->unlock();
    mutexes.mutex.unlock();
    return busy;
  }
  return nullptr;
}

// Holders may take further ones in any order, so nobody waits for one while he holds another.
void lock_all() {
  while (ProcessMutex* busy = try_lock_all()) {
    const Lock wait_for_its_holder(*busy);
  }
}

void unlock_all() LOCKS_UNCHECKED {
  ProcessMutexes& mutexes = process_mutexes();
  for (ProcessMutex* each : mutexes.all) each->unlock();
  mutexes.mutex.unlock();
}

[[maybe_unused]] const int registered = ::pthread_atfork(&lock_all, &unlock_all, &unlock_all);

}  // namespace

ProcessMutex::ProcessMutex() {
  ProcessMutexes& mutexes = process_mutexes();
  const Lock lock(mutexes.mutex);
  mutexes.all.push_back(this);
}

}  // namespace tensorbus
