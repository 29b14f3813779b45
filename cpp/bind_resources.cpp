// What TorchComm holds beside its operations, for Python. Which memory a pool has is asked of torch
// in Python, so that the shim needs no library of CUDA's. Must not know CUDA.

#include "bindings.hpp"
#include "run_later.hpp"

namespace ferrocomm {
namespace {

void drop(py::object* object) {
  py::gil_scoped_acquire gil;
  delete object;
}

// A reference that threads without the GIL may drop, such as one that ends the communicator.
std::shared_ptr<void> owner_of(py::object object) {
  return {new py::object(std::move(object)), [](void* kept) {
            auto* object = static_cast<py::object*>(kept);
            if (PyGILState_Check() != 0) {
              drop(object);
            } else {
              run_later([object] { drop(object); });
            }
          }};
}

size_t deregister_memory_of(TorchComm& self, const py::object& owner) {
  PyObject* wanted = owner.ptr();
  return self.deregister_memory(
      [wanted](void* kept) { return static_cast<py::object*>(kept)->ptr() == wanted; });
}

}  // namespace

void define_resources(py::class_<TorchComm, std::shared_ptr<TorchComm>>& comm) {
  comm.def("suspend", &TorchComm::suspend)
      .def("resume", &TorchComm::resume)
      .def("memory_stats", &TorchComm::memory_stats)
      .def("get_nccl_comm_ptr", &TorchComm::native)
      .def(
          "_register_memory",
          [](TorchComm& self, uintptr_t address, size_t bytes, py::object owner) {
            self.register_memory(address, bytes, owner_of(std::move(owner)));
          },
          py::arg("address"), py::arg("bytes"), py::arg("owner"))
      .def("_deregister_memory_of", deregister_memory_of, py::arg("owner"))
      .def(
          "register_mem_pool",
          [](const py::object& self, const py::object& pool, bool symm) {
            py::module_::import("torchcomms._pools").attr("register")(self, pool, symm);
          },
          py::arg("pool"), py::arg("symm") = false)
      .def(
          "deregister_mem_pool",
          [](const py::object& self, const py::object& pool) {
            py::module_::import("torchcomms._pools").attr("deregister")(self, pool);
          },
          py::arg("pool"));
}

}  // namespace ferrocomm
