// What the shim asks of the interpreter: the GIL, signals and the end of the process.
// Must not know the engine beyond the callbacks it installs.
#pragma once

#include <Python.h>
#include <unistd.h>

#include <exception>
#include <string>
#include <utility>

namespace ferrocomm {

/// Gives the GIL up for its lifetime when the thread holds it. Every blocking call runs under one.
class GilReleased {
 public:
  GilReleased() : state_(held() ? PyEval_SaveThread() : nullptr) {}
  /// Where the interpreter ends meanwhile, the thread stays here until the process has ended, as
  /// Python 3.14 does it. Older ones end the thread by unwinding it, which this must let pass.
  ~GilReleased() noexcept(false) {
    if (state_ == nullptr) return;
    while (ends()) pause();
    PyEval_RestoreThread(state_);
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  static bool ends() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
  }
  static bool held() { return Py_IsInitialized() != 0 && PyGILState_Check() != 0; }
  PyThreadState* state_;
};

/// Runs `call` without the GIL.
template <typename F>
decltype(auto) without_gil(F&& call) {
  GilReleased released;
  return std::forward<F>(call)();
}

/// Lets Ctrl-C end the engine's waits on the main thread.
void install_interrupt_check();

/// True when a signal handler raised on this thread, now or earlier. Any thread, with or without
/// the GIL. The exception waits for `rethrow_interrupt`.
bool interrupted() noexcept;

/// Remembers the exception being handled as this thread's interrupt. Needs the GIL.
void set_interrupt(std::exception_ptr exception) noexcept;

/// Raises the interrupt that waits on this thread, if there is one.
void rethrow_interrupt();

/// Tells an exception that has no caller to reach, as Python tells those of destructors. `where` is
/// a few words.
void report_unraisable(const std::exception_ptr& failure, const char* where) noexcept;

/// Passes log records up to `level` to the Python callable `callback(level, target, message)`, on
/// one background thread at a time and in order; None stops it. Needs the GIL.
void set_log_callback(PyObject* callback, unsigned level);

}  // namespace ferrocomm
