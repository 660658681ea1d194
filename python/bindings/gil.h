// The interpreter's lock (GIL).
//
// Two rules keep the GIL and the core's locks apart: a binding lets go of the interpreter before it
// takes a lock of the core, and the core never takes the interpreter while it holds a lock. So
// Python objects that the core keeps are not let go where the core drops them, but where a call of
// ours has the interpreter anyway.
#pragma once

#include <memory>
#include <optional>

#include "bindings.h"

namespace tensorbus::python {

// Lets go of the interpreter for as long as the object lives, and then of what was buried
// meanwhile. A thread that comes back when the interpreter has begun to end rests for ever:
// before 3.14 Python ends such threads by unwinding their stacks, which aborts the process at the
// first destructor.
class WithoutGil {
 public:
  WithoutGil() noexcept;
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};
using Release = nb::call_guard<WithoutGil>;

// Whether this thread has the interpreter, as far as our own calls let go of it. (The interface
// that serves several Pythons has no PyGILState_Check.)
bool has_gil() noexcept;

// WithoutGil for destructors, which may run on a thread that has no interpreter to let go of.
class WithoutGilIfHeld {
 public:
  WithoutGilIfHeld() {
    if (has_gil()) without_.emplace();
  }

 private:
  std::optional<WithoutGil> without_;
};

// Has the interpreter for as long as the object lives. For threads that hold no lock of the core,
// and that ask only while the interpreter lives.
class WithGil {
 public:
  WithGil() noexcept;
  ~WithGil();
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  nb::gil_scoped_acquire gil_;
  int calls_without_;
};

template <typename Call>
auto call_without_gil(Call call) {
  const WithoutGil without_gil;
  return call();
}

// Keeps a Python object until C++ needs it no more, on whatever thread and under whatever lock: the
// object is only buried there.
std::shared_ptr<const void> keep(nb::object object);
// The same for a Python object that wraps a `T`.
template <typename T>
std::shared_ptr<T> keep_as(nb::object object) {
  T* const inside = nb::cast<T*>(object);
  return {keep(std::move(object)), inside};
}
// Lets go of what was buried. With the interpreter, without locks.
void let_go_of_the_buried() noexcept;

// What nanobind calls for an object of a type whose destructor takes locks or joins threads.
template <typename T>
void destroy_without_gil(void* object) noexcept {
  const WithoutGilIfHeld without;
  static_cast<T*>(object)->~T();
}

}  // namespace tensorbus::python
