// The Python classes of `torchcomms._comms`, one function per noun. They translate arguments, and
// what an operation does is decided below them.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "comm.hpp"
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

using Timeout = std::optional<std::chrono::milliseconds>;
using Hints = std::optional<HintMap>;

/// The limit that a caller gave, cut to what the engine can count; zero where there is none. Raises
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
