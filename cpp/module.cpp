// `torchcomms._comms`: what happens at import, the c10d backend class and the module's functions.
//
// Import starts no thread: processes fork after it. Must not know what the classes do.

#include <pybind11/chrono.h>
#include <torch/csrc/Exceptions.h>
#include <torch/headeronly/version.h>

#include <mutex>
#include <set>

#include "backend_wrapper.hpp"
#include "bindings.hpp"
#include "debug_handlers.hpp"
#include "reconfigure.hpp"
#include "run_later.hpp"

namespace ferrocomm {
namespace {

using Comm = std::shared_ptr<TorchComm>;

void require_abi() {
  if (fc_abi_version() == FC_ABI_VERSION) return;
  throw py::import_error("libferrocomm has C ABI version " + std::to_string(fc_abi_version()) +
                         ", torchcomms._comms was built for " + std::to_string(FC_ABI_VERSION) +
                         "; install the package again");
}

// torch's own bindings translate these; functions of this module need it said once more.
void translate(std::exception_ptr raised) {
  try {
    std::rethrow_exception(raised);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(raised);
  }
}

// Completions want the GIL, so they end before the interpreter does.
void end_of_process() {
  without_gil([] {
    abort_all_comms();
    stop_running_later();
  });
}

CommSpec spec_of(const std::string& backend, at::Device device, const std::string& name, int rank,
                 int size, int64_t timeout_ms,
                 const std::unordered_map<std::string, std::string>& hints) {
  CommSpec spec;
  spec.backend = backend;
  spec.device = device;
  spec.name = name;
  spec.rank = rank;
  spec.size = size;
  spec.timeout = std::chrono::milliseconds(timeout_ms);
  spec.hints = hints;
  return spec;
}

Comm new_comm(const std::string& backend, at::Device device, const std::string& name,
              const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int64_t timeout_ms,
              const std::unordered_map<std::string, std::string>& hints) {
  return TorchComm::create(spec_of(backend, device, name, rank, size, timeout_ms, hints), store);
}

Comm new_unconfigured_comm(const std::string& backend, at::Device device, const std::string& name,
                           int rank, int size, int64_t timeout_ms,
                           const std::unordered_map<std::string, std::string>& hints) {
  return create_unconfigured(spec_of(backend, device, name, rank, size, timeout_ms, hints));
}

std::string engine_info() {
  fc_string* json = nullptr;
  check(without_gil([&] { return fc_engine_info(&json); }));
  return take_string(json);
}

std::string recorder_dump(size_t max_entries, bool only_active) {
  fc_string* json = nullptr;
  check(without_gil([&] { return fc_recorder_dump(max_entries, only_active ? 1 : 0, &json); }));
  return take_string(json);
}

// Backends written in Python that the package registered; read by torch to route a name.
class RegisteredNames {
 public:
  void add(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    names_.insert(name);
  }
  bool has(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    return names_.count(name) > 0;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

RegisteredNames& registered_names() {
  static RegisteredNames names;
  return names;
}

void bind_backend_wrapper(py::module_& module) {
  // keep_alive: `get_comm` must return the very object it was made with, and torch keeps only this.
  py::class_<BackendWrapper, c10d::Backend, c10::intrusive_ptr<BackendWrapper>>(module,
                                                                                "_BackendWrapper")
      .def(py::init([](const Comm& comm, const std::string& name) {
             return c10::make_intrusive<BackendWrapper>(comm, name);
           }),
           py::arg("comm").none(false), py::arg("name") = "", py::keep_alive<1, 2>())
      .def("get_comm", [](const BackendWrapper& self) { return self.comm(); })
      .def(
          "register_mem_pool",
          [](const BackendWrapper& self, const py::object& pool, bool symm) {
            py::cast(self.comm()).attr("register_mem_pool")(pool, symm);
          },
          py::arg("pool"), py::arg("symm") = false)
      .def(
          "deregister_mem_pool",
          [](const BackendWrapper& self, const py::object& pool) {
            py::cast(self.comm()).attr("deregister_mem_pool")(pool);
          },
          py::arg("pool"));
}

// Written in Python, and looked for here by those who import everything from the extension.
void bind_options(py::module_& module) {
  const auto options = py::module_::import("torchcomms._options");
  for (const auto& name : options.attr("__all__")) module.attr(name) = options.attr(name);
}

void bind_functions(py::module_& module) {
  module.def("_new_comm", new_comm, py::arg("backend"), py::arg("device"), py::arg("name"),
             py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout_ms"),
             py::arg("hints"));
  module.def("_new_unconfigured_comm", new_unconfigured_comm, py::arg("backend"), py::arg("device"),
             py::arg("name"), py::arg("rank"), py::arg("size"), py::arg("timeout_ms"),
             py::arg("hints"));
  module.def("_engine_info", engine_info);
  module.def(
      "_locate_nccl",
      [](const std::optional<std::string>& path) {
        check(fc_nccl_locate(path ? path->c_str() : nullptr));
      },
      py::arg("path"));
  module.def("_recorder_dump", recorder_dump, py::arg("max_entries"), py::arg("only_active"));
  module.def("_recorder_reset", [] { check(fc_recorder_reset()); });
  module.def("_register_backend_name",
             [](const std::string& name) { registered_names().add(name); });
  module.def(
      "_is_backend_registered",
      [](const std::string& name) { return registered_names().has(name); }, py::arg("name"));
  module.def(
      "_set_log_callback",
      [](const py::object& callback, unsigned level) { set_log_callback(callback.ptr(), level); },
      py::arg("callback"), py::arg("level"));
  module.attr("_built_for_torch") =
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
}

}  // namespace
}  // namespace ferrocomm

PYBIND11_MODULE(_comms, module) {
  using namespace ferrocomm;
  require_abi();
  // Registers the base classes: Backend, Store, ReduceOp.
  py::module_::import("torch._C._distributed_c10d");
  py::register_local_exception_translator(translate);
  install_interrupt_check();
  bind_reduce_op(module);
  bind_work(module);
  bind_mem_allocator(module);
  bind_window(module);
  bind_reconfigure(module);
  bind_comm(module);
  bind_batch(module);
  bind_python_backend(module);
  bind_options(module);
  bind_backend_wrapper(module);
  bind_functions(module);
  register_debug_handlers();
#if TORCH_VERSION_MINOR < 12
  // Where torch 2.11 looks for it. The package has bound it before anything imports this.
  module.attr("new_comm") = py::module_::import("torchcomms").attr("new_comm");
#endif
  py::module_::import("atexit").attr("register")(py::cpp_function(end_of_process));
}
