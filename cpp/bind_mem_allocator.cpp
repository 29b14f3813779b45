// MemAllocator for Python: sizes and dtypes as torch.empty has them. Must not know communicators.

#include <c10/core/DefaultDtype.h>

#include "bindings.hpp"
#include "mem_allocator.hpp"

namespace ferrocomm {
namespace {

at::Tensor empty(MemAllocator& self, const std::vector<int64_t>& size,
                 std::optional<at::ScalarType> dtype) {
  return self.empty(size, dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

at::Tensor empty_like(MemAllocator& self, const at::Tensor& tensor) {
  return self.empty(tensor.sizes(), tensor.scalar_type());
}

}  // namespace

std::shared_ptr<c10::Allocator> pool_allocator() {
  using Holder = std::shared_ptr<c10::Allocator>;
  py::gil_scoped_acquire gil;
  const py::object made = py::module_::import("torchcomms._cuda").attr("pool_allocator")();
  // Of CUDAPluggableAllocator, which torch binds with a shared_ptr and whose first base, all the
  // way down, is c10::Allocator. Its own header wants those of CUDA.
  auto* instance = reinterpret_cast<py::detail::instance*>(made.ptr());
  return instance->get_value_and_holder().holder<Holder>();
}

at::Tensor empty_in_pool(int64_t size, at::ScalarType dtype, at::Device device) {
  py::gil_scoped_acquire gil;
  const py::object made =
      py::module_::import("torchcomms._cuda").attr("empty_in_pool")(size, dtype, device);
  return py::cast<at::Tensor>(made);
}

void bind_mem_allocator(py::module_& module) {
  // The holder that torch has for allocators: c10d hands ours to Python, too.
  py::class_<MemAllocator, std::shared_ptr<MemAllocator>>(module, "MemAllocator")
      .def("empty", empty, py::arg("size"), py::arg("dtype") = py::none(),
           py::call_guard<py::gil_scoped_release>())
      .def("empty_like", empty_like, py::arg("tensor"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("backend", &MemAllocator::backend);
  module.def("_mem_allocator", mem_allocator, py::arg("backend"));
}

}  // namespace ferrocomm
