// Asked of whichever device guard torch has registered. Must not know which one that is.

#include "streams.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace ferrocomm {
namespace {

c10::impl::VirtualGuardImpl implementation(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

c10::Stream current_stream(at::Device device) { return implementation(device).getStream(device); }

c10::Stream spare_stream(at::Device device) {
  return implementation(device).getStreamFromGlobalPool(device);
}

void* driver_handle(const c10::Stream& stream) { return stream.native_handle(); }

void record_on(const c10::Stream& stream, const std::vector<at::Tensor>& tensors) {
  const auto guard = implementation(stream.device());
  for (const auto& tensor : tensors) {
    if (tensor.has_storage()) guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  }
}

at::Device with_index(at::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return implementation(device).getDevice();
}

}  // namespace ferrocomm
