// The Python classes of `torchcomms._comms`, one function per noun. They translate arguments, and
// what an operation does is decided below them. Must not know how it is issued.
#pragma once

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "comm.hpp"
#include "time_limit.hpp"
#include "window.hpp"

namespace ferrocomm {

/// A work as Python code of the communicator face sees it.
struct TorchWork {
  WorkPtr work;
};

/// ReduceOp of this package; c10d's own converts to it.
struct PyReduceOp {
  c10d::ReduceOp op;
};

/// A `datetime.timedelta` of any length, within the limits of time-outs.
struct TimeSpan {
  std::chrono::milliseconds length{0};
};

using Timeout = std::optional<TimeSpan>;
using Hints = std::optional<HintMap>;

/// The limit that a caller gave; zero where there is none. Raises
/// ValueError for one that is no time at all.
std::chrono::milliseconds limit_of(const Timeout& timeout);

inline CallOptions call_of(bool async_op, const Timeout& timeout, const Hints& hints) {
  CallOptions call;
  call.timeout = limit_of(timeout);
  call.async = async_op;
  if (hints) call.hints = std::make_shared<const HintMap>(*hints);
  return call;
}

using CommClass = py::class_<TorchComm, std::shared_ptr<TorchComm>>;

/// A Python object that any thread may drop.
std::shared_ptr<PyObject> hold(const py::handle& object);

void bind_reduce_op(py::module_& module);
void bind_work(py::module_& module);
void bind_comm(py::module_& module);
void bind_batch(py::module_& module);
/// The arguments of an operation as hooks of Python get them. Needs the GIL.
py::object pre_args(const OpArgs& args);
/// RemovableHandle, and the methods of TorchComm and TorchWork that register hooks.
void bind_hooks(py::module_& module, CommClass& comm);
/// Persistent all_gather.
void bind_persistent(py::module_& module, CommClass& comm);
/// `_foreign_comm`: a communicator that a backend written in Python serves.
void bind_python_backend(py::module_& module);
void bind_mem_allocator(py::module_& module);
/// Registered memory, memory given up for a while, and the handle below, of a communicator.
void define_resources(py::class_<TorchComm, std::shared_ptr<TorchComm>>& comm);
void bind_window(py::module_& module);
void bind_reconfigure(py::module_& module);
/// What TorchComm has for it.
void define_reconfigure(py::class_<TorchComm, std::shared_ptr<TorchComm>>& comm);

}  // namespace ferrocomm

namespace pybind11::detail {

/// pybind's own counts microseconds, of which `timedelta.max` has more than fit.
template <>
struct type_caster<ferrocomm::TimeSpan> {
  PYBIND11_TYPE_CASTER(ferrocomm::TimeSpan, const_name("datetime.timedelta"));

  bool load(handle source, bool) {
    if (PyDateTimeAPI == nullptr) PyDateTime_IMPORT;
    std::chrono::milliseconds length;
    if (PyDelta_Check(source.ptr())) {
      length =
          std::chrono::hours(24) * static_cast<int64_t>(PyDateTime_DELTA_GET_DAYS(source.ptr()));
      length += std::chrono::seconds(PyDateTime_DELTA_GET_SECONDS(source.ptr()));
      length += std::chrono::milliseconds(PyDateTime_DELTA_GET_MICROSECONDS(source.ptr()) / 1000);
    } else if (PyFloat_Check(source.ptr())) {
      const std::chrono::duration<double> seconds(PyFloat_AS_DOUBLE(source.ptr()));
      if (!(seconds >= -ferrocomm::kLongest)) return false;  // nor is what is no number
      length = seconds > ferrocomm::kLongest
                   ? ferrocomm::kLongest
                   : std::chrono::duration_cast<std::chrono::milliseconds>(seconds);
    } else {
      return false;
    }
    value.length = ferrocomm::within_limits(length);
    return true;
  }

  static handle cast(const ferrocomm::TimeSpan& span, return_value_policy policy, handle parent) {
    return make_caster<std::chrono::milliseconds>::cast(span.length, policy, parent);
  }
};

}  // namespace pybind11::detail
