// Operations as torch's profiler sees them.
//
// An event spans an operation from its call to its end, with the name and shapes that torch's own
// backends give it. It knows nothing of the engine. Costs one look when no profiler runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace ferrocomm {

/// Whether a profiler of this thread wants events.
bool profiled() noexcept;

/// `backend:operation` as torch's backends say it.
std::string profiled_title(const std::string& backend, c10d::OpType type, const char* operation);

/// Begins an event of this thread; calling what is returned, once and from any thread, ends it.
std::function<void()> begin_event(std::string title, const std::vector<at::Tensor>& inputs);

}  // namespace ferrocomm
