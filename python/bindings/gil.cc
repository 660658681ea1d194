#include "gil.h"

#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <utility>

namespace tensorbus::python {
namespace {

// How many calls of this thread have let go of the interpreter: one that has will come back.
thread_local int calls_without_gil = 0;

// A stack without a lock: it is filled under any and emptied with the interpreter.
struct Grave {
  PyObject* object;
  Grave* below;
};
std::atomic<Grave*> graves{nullptr};

int let_go_on_the_main_thread(void*) {
  let_go_of_the_buried();
  return 0;
}

void bury(Grave* grave) noexcept {
  if (Py_IsInitialized() == 0) return;  // nobody will let go of it any more
  grave->below = graves.load(std::memory_order_relaxed);
  while (!graves.compare_exchange_weak(grave->below, grave, std::memory_order_release,
                                       std::memory_order_relaxed)) {
  }
  if (calls_without_gil == 0) Py_AddPendingCall(&let_go_on_the_main_thread, nullptr);
}

[[noreturn]] void rest_for_ever() {
  while (true) ::pause();
}

}  // namespace

WithoutGil::WithoutGil() noexcept : state_(PyEval_SaveThread()) { ++calls_without_gil; }

WithoutGil::~WithoutGil() {
  --calls_without_gil;
  try {
    PyEval_RestoreThread(state_);
  } catch (abi::__forced_unwind&) {
    rest_for_ever();
  }
  let_go_of_the_buried();
}

bool has_gil() noexcept {
  return calls_without_gil == 0 && PyGILState_GetThisThreadState() != nullptr;
}

WithGil::WithGil() noexcept : calls_without_(std::exchange(calls_without_gil, 0)) {}

WithGil::~WithGil() { calls_without_gil = calls_without_; }

std::shared_ptr<const void> keep(nb::object object) {
  auto grave = std::make_unique<Grave>(Grave{nullptr, nullptr});
  PyObject* const kept = object.ptr();
  std::shared_ptr<const void> result(kept, [dug = grave.get()](const void*) { bury(dug); });
  grave.release()->object = object.release().ptr();
  return result;
}

void let_go_of_the_buried() noexcept {
  if (graves.load(std::memory_order_relaxed) == nullptr) return;
  // Destructors of Python must not meet the exception that the call ends with.
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  Grave* top = graves.exchange(nullptr, std::memory_order_acquire);
  while (top != nullptr) {
    const std::unique_ptr<Grave> grave(std::exchange(top, top->below));
    Py_DECREF(grave->object);
  }
  PyErr_Restore(type, value, traceback);
}

}  // namespace tensorbus::python
