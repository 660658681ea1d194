// A mutex whose use clang checks (tools/check_clang.py): members say which mutex guards them,
// functions which one their caller holds. Other compilers see a std::mutex and nothing more.
#pragma once

#include <mutex>

#ifdef __clang__
#define TENSORBUS_CHECKED(attribute) __attribute__((attribute))
#else
#define TENSORBUS_CHECKED(attribute)
#endif

// A member that is read and written only by the holder of the mutex.
#define GUARDED_BY(mutex) TENSORBUS_CHECKED(guarded_by(mutex))
// A function, or a lambda, that only the holder of the mutex calls.
#define REQUIRES(mutex) TENSORBUS_CHECKED(requires_capability(mutex))
// A function that clang cannot follow. A comment says why.
#define LOCKS_UNCHECKED TENSORBUS_CHECKED(no_thread_safety_analysis)

namespace tensorbus {

class TENSORBUS_CHECKED(capability("mutex")) Mutex : public std::mutex {
 public:
  void lock() TENSORBUS_CHECKED(acquire_capability()) LOCKS_UNCHECKED { std::mutex::lock(); }
  void unlock() TENSORBUS_CHECKED(release_capability()) LOCKS_UNCHECKED { std::mutex::unlock(); }
  bool try_lock() TENSORBUS_CHECKED(try_acquire_capability(true)) LOCKS_UNCHECKED {
    return std::mutex::try_lock();
  }
};

// A mutex of the whole process, which lives as long as the process. A fork waits for the holder: a
// child finds the mutex free, and what it guards whole. The holder must not fork. The mutex is made
// when the program is loaded, so that no thread is about to make it when another one forks.
class ProcessMutex : public Mutex {
 public:
  ProcessMutex();
};

// Holds a mutex for as long as the Lock lives, but for what is between unlock() and lock(). What
// takes a std::unique_lock takes a Lock, too: base/waiting.h, condition variables.
class TENSORBUS_CHECKED(scoped_lockable) Lock : public std::unique_lock<std::mutex> {
 public:
  explicit Lock(Mutex& mutex) TENSORBUS_CHECKED(acquire_capability(mutex))
      : std::unique_lock<std::mutex>(mutex) {}
  ~Lock() TENSORBUS_CHECKED(release_capability()) {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void lock() TENSORBUS_CHECKED(acquire_capability()) LOCKS_UNCHECKED { unique_lock::lock(); }
  void unlock() TENSORBUS_CHECKED(release_capability()) LOCKS_UNCHECKED { unique_lock::unlock(); }
};

}  // namespace tensorbus
