// The Python classes of `torchcomms._comms`, one function per noun.
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
using Hints = std::optional<std::unordered_map<std::string, std::string>>;

inline CallOptions call_of(bool async_op, const Timeout& timeout) {
  return {timeout.value_or(std::chrono::milliseconds(0)), async_op, nullptr};
}

void bind_reduce_op(py::module_& module);
void bind_work(py::module_& module);
void bind_comm(py::module_& module);
void bind_batch(py::module_& module);
void bind_mem_allocator(py::module_& module);
/// Registered memory, memory given up for a while, and the handle below, of a communicator.
void define_resources(py::class_<TorchComm, std::shared_ptr<TorchComm>>& comm);
void bind_window(py::module_& module);

/// A window on `comm`, of `tensor` where there is one: then it is collective.
std::shared_ptr<Window> new_window(const std::shared_ptr<TorchComm>& comm,
                                   const std::optional<at::Tensor>& tensor, const Timeout& timeout);

}  // namespace ferrocomm
