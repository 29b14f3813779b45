// The GIL, signals, log records and the end of the interpreter. Must not know communicators.

#include "python_runtime.hpp"

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <deque>
#include <exception>
#include <memory>
#include <mutex>

#include "errors.hpp"
#include "ferrocomm.h"
#include "run_later.hpp"

namespace py = pybind11;

namespace ferrocomm {
namespace {

thread_local std::exception_ptr pending_interrupt;

// Python runs signal handlers on this thread only. A forked child's only thread is its main one,
// which a thread id remembered at import would miss.
bool on_main_thread() { return syscall(SYS_gettid) == getpid(); }

int32_t interrupt_callback(void*) { return interrupted() ? 1 : 0; }

// ---- log records

struct LogRecord {
  fc_log_level level;
  std::string target;
  std::string message;
};

// Records wait here because the thread that logs may be an engine thread, which must not take the
// GIL, and may log while the interpreter is busy.
struct LogQueue {
  static constexpr size_t kMost = 10000;
  std::mutex mutex;
  std::deque<LogRecord> records;
  size_t dropped = 0;
  bool draining = false;
  PyObject* callback = nullptr;  // read and changed under the GIL
};

LogQueue& log_queue() {
  static auto* queue = new LogQueue;  // engine threads may log during static destruction
  return *queue;
}

bool next_record(LogQueue& queue, LogRecord& record) {
  std::lock_guard<std::mutex> lock(queue.mutex);
  if (queue.dropped > 0) {
    record = {FC_LOG_WARN, "ferrocomm",
              std::to_string(queue.dropped) + " log records were dropped"};
    queue.dropped = 0;
    return true;
  }
  if (queue.records.empty()) {
    queue.draining = false;
    return false;
  }
  record = std::move(queue.records.front());
  queue.records.pop_front();
  return true;
}

void drain_log() {
  auto& queue = log_queue();
  LogRecord record;
  while (next_record(queue, record)) {
    py::gil_scoped_acquire gil;
    if (queue.callback == nullptr) continue;
    try {
      py::reinterpret_borrow<py::object>(queue.callback)(record.level, record.target,
                                                         record.message);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("torchcomms log callback");
    }
  }
}

void log_callback(void*, fc_log_level level, const char* target, const char* message) {
  auto& queue = log_queue();
  {
    std::lock_guard<std::mutex> lock(queue.mutex);
    if (queue.records.size() >= LogQueue::kMost) {
      ++queue.dropped;
      return;
    }
    queue.records.push_back({level, target, message});
    if (std::exchange(queue.draining, true)) return;
  }
  run_later(drain_log);
}

}  // namespace

void install_interrupt_check() { check(fc_set_interrupt_callback(interrupt_callback, nullptr)); }

bool interrupted() noexcept {
  if (pending_interrupt) return true;
  if (!on_main_thread() || Py_IsInitialized() == 0) return false;
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return false;
  set_interrupt(std::make_exception_ptr(py::error_already_set()));
  return true;
}

void set_interrupt(std::exception_ptr exception) noexcept {
  pending_interrupt = std::move(exception);
}

void rethrow_interrupt() {
  if (pending_interrupt) std::rethrow_exception(std::exchange(pending_interrupt, nullptr));
}

void report_unraisable(const std::exception_ptr& failure, const char* where) noexcept {
  try {
    std::rethrow_exception(failure);
  } catch (py::error_already_set& error) {
    py::gil_scoped_acquire gil;
    error.discard_as_unraisable(where);
  } catch (const std::exception& error) {
    py::gil_scoped_acquire gil;
    PyErr_SetString(PyExc_RuntimeError, error.what());
    PyErr_WriteUnraisable(py::str(where).ptr());
  }
}

void set_log_callback(PyObject* callback, unsigned level) {
  auto& queue = log_queue();
  if (callback == Py_None) {
    without_gil([] { check(fc_set_log_callback(nullptr, nullptr, FC_LOG_ERROR)); });
    Py_CLEAR(queue.callback);
    return;
  }
  Py_INCREF(callback);
  Py_XSETREF(queue.callback, callback);
  without_gil([level] { check(fc_set_log_callback(log_callback, nullptr, level)); });
}

}  // namespace ferrocomm
