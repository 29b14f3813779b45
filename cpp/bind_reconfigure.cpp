// Reconfiguration for Python: ReconfigureOptions and what TorchComm does with it. Must not know the
// C ABI.

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "bindings.hpp"
#include "reconfigure.hpp"

namespace ferrocomm {
namespace {

std::optional<std::chrono::milliseconds> limit_given(const Timeout& timeout) {
  return timeout ? std::optional(timeout->length) : std::nullopt;
}

std::string describe(const ReconfigureOptions& options) {
  const auto count =
      std::visit([](const auto& handles) { return handles.size(); }, options.init_handles);
  const bool ordered = std::holds_alternative<std::vector<std::string>>(options.init_handles);
  return "ReconfigureOptions(uuid=" + std::to_string(options.uuid) + ", init_handles=<" +
         (ordered ? "list" : "set") + " of " + std::to_string(count) + ">)";
}

}  // namespace

void bind_reconfigure(py::module_& module) {
  using Options = ReconfigureOptions;
  // Its signature first, as the functions of this module have it.
  py::class_<Options>(module, "ReconfigureOptions",
                      "ReconfigureOptions(uuid: int, init_handles: list[str] | set[str], "
                      "timeout: datetime.timedelta | None = None, "
                      "hints: dict[str, str] | None = None) -> ReconfigureOptions\n\n"
                      "The arguments of TorchComm.reconfigure; the same on all members.")
      .def(py::init(
               [](int64_t uuid, InitHandles handles, const Timeout& timeout, const Hints& hints) {
                 return Options{uuid, std::move(handles), limit_given(timeout), hints};
               }),
           py::arg("uuid"), py::arg("init_handles"), py::arg("timeout") = py::none(),
           py::arg("hints") = py::none())
      .def_readwrite("uuid", &Options::uuid)
      .def_readwrite("init_handles", &Options::init_handles)
      .def_property(
          "timeout", [](const Options& self) { return self.timeout; },
          [](Options& self, const Timeout& timeout) { self.timeout = limit_given(timeout); })
      .def_readwrite("hints", &Options::hints)
      .def("__repr__", describe);
}

void define_reconfigure(py::class_<TorchComm, std::shared_ptr<TorchComm>>& comm) {
  comm.def("get_init_handle", init_handle)
      .def(
          "reconfigure",
          [](TorchComm& self, int64_t uuid, InitHandles handles, const Timeout& timeout,
             const Hints& hints) {
            return TorchWork{
                reconfigure(self, {uuid, std::move(handles), limit_given(timeout), hints})};
          },
          py::arg("uuid"), py::arg("init_handles"), py::arg("timeout") = py::none(),
          py::arg("hints") = py::none())
      .def(
          "reconfigure",
          [](TorchComm& self, const ReconfigureOptions& options) {
            return TorchWork{reconfigure(self, options)};
          },
          py::arg("options"));
}

}  // namespace ferrocomm
