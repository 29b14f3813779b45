// MemAllocator for Python.

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

void bind_mem_allocator(py::module_& module) {
  // Never deleted: see `mem_allocator`.
  py::class_<MemAllocator, std::unique_ptr<MemAllocator, py::nodelete>>(module, "MemAllocator")
      .def("empty", empty, py::arg("size"), py::arg("dtype") = py::none(),
           py::call_guard<py::gil_scoped_release>())
      .def("empty_like", empty_like, py::arg("tensor"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("backend", &MemAllocator::backend);
  module.def("_mem_allocator", mem_allocator, py::arg("backend"),
             py::return_value_policy::reference);
}

}  // namespace ferrocomm
