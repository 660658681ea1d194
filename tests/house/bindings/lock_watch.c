// Preloaded into an interpreter: counts, per thread, what must never happen inside the extension.
//
// Either alone can wait for ever only together with the other, so a test that hopes for a deadlock
// finds it now and then; these counts find it always.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

typedef int (*Call)(pthread_mutex_t*);

static uintptr_t extension_begin;
static uintptr_t extension_end;
static int (*has_gil)(void);

static __thread long held;                // locks of the extension
static __thread long locks_with_gil;      // taken while the thread had the interpreter
static __thread long questions_with_lock; // for Ctrl-C, which take the interpreter
static __thread uintptr_t last_place;     // in the extension, of the last count

void lock_watch_start(uintptr_t begin, uintptr_t end, int (*gil_check)(void)) {
  has_gil = gil_check;
  extension_begin = begin;
  extension_end = end;
}
long lock_watch_locks_with_gil(void) { return locks_with_gil; }
long lock_watch_questions_with_lock(void) { return questions_with_lock; }
uintptr_t lock_watch_last_place(void) { return last_place; }

static int is_ours(const void* caller) {
  return (uintptr_t)caller >= extension_begin && (uintptr_t)caller < extension_end;
}

static void note(long* count, const void* caller) {
  ++*count;
  last_place = (uintptr_t)caller - extension_begin;
}

static Call real(const char* name) { return (Call)dlsym(RTLD_NEXT, name); }

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static Call lock;
  if (lock == 0) lock = real("pthread_mutex_lock");
  const void* const caller = __builtin_return_address(0);
  if (!is_ours(caller)) return lock(mutex);
  if (has_gil()) note(&locks_with_gil, caller);
  const int result = lock(mutex);
  if (result == 0) ++held;
  return result;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) {
  static Call trylock;
  if (trylock == 0) trylock = real("pthread_mutex_trylock");
  const void* const caller = __builtin_return_address(0);
  if (!is_ours(caller)) return trylock(mutex);
  if (has_gil()) note(&locks_with_gil, caller);  // whoever fails waits for it next
  const int result = trylock(mutex);
  if (result == 0) ++held;
  return result;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  static Call unlock;
  if (unlock == 0) unlock = real("pthread_mutex_unlock");
  if (is_ours(__builtin_return_address(0))) --held;
  return unlock(mutex);
}

// The question begins with it: only the main thread asks.
pid_t gettid(void) {
  const void* const caller = __builtin_return_address(0);
  if (is_ours(caller) && held > 0) note(&questions_with_lock, caller);
  return (pid_t)syscall(SYS_gettid);
}
