// Streams of a device through c10 alone, so that one extension serves CPU and CUDA builds of torch.
// Must not know works or the engine.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <vector>

namespace ferrocomm {

/// Whether tensors of the device are worked on in streams, beside the host.
inline bool has_streams(at::Device device) { return !device.is_cpu(); }

/// The stream that the thread's work on `device` goes to. `device` has an index.
c10::Stream current_stream(at::Device device);

/// A stream that torch lends to whoever asks; others may use it, too.
c10::Stream spare_stream(at::Device device);

/// What the device's driver knows a stream under; null is the default stream.
void* driver_handle(const c10::Stream& stream);

/// Keeps the memory of `tensors` from being used again before what is on `stream` now, whoever
/// drops them. Free for memory that was allocated for that stream.
void record_on(const c10::Stream& stream, const std::vector<at::Tensor>& tensors);

/// `device` with an index: the current one of its kind where it has none.
at::Device with_index(at::Device device);

}  // namespace ferrocomm
