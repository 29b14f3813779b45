// TorchCommWindow for Python. The GIL is released where the engine may block: inside
// `Operation::issue`, the waits, and what all ranks do together. Must not know how the memory of
// others is reached.

#include <torch/csrc/DynamicTypes.h>

#include "bindings.hpp"
#include "window.hpp"

namespace ferrocomm {
namespace {

enum class WinAccessType { kUnified, kSeparate };

struct WindowAttr {
  WinAccessType access_type;
};

using Self = Window&;

py::object dtype_of(Self self) {
  return py::reinterpret_borrow<py::object>(
      reinterpret_cast<PyObject*>(torch::getTHPDtype(self.dtype())));
}

py::object shape_of(Self self) { return py::module_::import("torch").attr("Size")(self.shape()); }

void define_tensor(py::class_<Window, std::shared_ptr<Window>>& window) {
  window.def_property_readonly("dtype", dtype_of)
      .def_property_readonly("shape", shape_of)
      .def_property_readonly("device", &Window::device)
      .def("get_size", &Window::numel)
      .def("get_tensor", &Window::tensor)
      .def(
          "tensor_register",
          [](Self self, const at::Tensor& tensor, bool owning, const Timeout& timeout,
             const Hints& hints) {
            self.register_tensor(tensor, owning, limit_of(timeout), hints.value_or(HintMap()));
          },
          py::arg("tensor"), py::arg("owning") = true, py::arg("timeout") = py::none(),
          py::arg("hints") = py::none())
      .def(
          "tensor_deregister",
          [](Self self, const Timeout& timeout, const Hints&) {
            self.deregister_tensor(limit_of(timeout));
          },
          py::arg("timeout") = py::none(), py::arg("hints") = py::none())
      .def("map_remote_tensor", &Window::map_remote_tensor, py::arg("rank"))
      .def(
          "get_attr",
          [](Self self, int rank) {
            return WindowAttr{self.is_unified(rank) ? WinAccessType::kUnified
                                                    : WinAccessType::kSeparate};
          },
          py::arg("peer_rank"));
}

// Binds an operation: its own arguments, then async_op, hints and timeout as every operation has.
template <typename... Args, typename F, typename... Names>
void define(py::class_<Window, std::shared_ptr<Window>>& window, const char* name, F operation,
            Names... names) {
  window.def(
      name,
      [operation](Self self, Args... args, bool async_op, const Hints& hints,
                  const Timeout& timeout) {
        return TorchWork{operation(self, args..., call_of(async_op, timeout, hints))};
      },
      names..., py::arg("async_op") = false, py::arg("hints") = py::none(),
      py::arg("timeout") = py::none());
}

void define_operations(py::class_<Window, std::shared_ptr<Window>>& window) {
  using T = const at::Tensor&;
  using Call = const CallOptions&;
  const auto tensor = py::arg("tensor");
  const auto dst = py::arg("dst_rank");
  const auto peer = py::arg("peer_rank");
  const auto target = py::arg("target_offset_nelems");
  define<T, int, int64_t>(
      window, "put",
      [](Self w, T t, int r, int64_t at, Call call) { return w.put(t, r, at, false, call); },
      tensor, dst, target);
  define<T, int, int64_t>(
      window, "put_signal",
      [](Self w, T t, int r, int64_t at, Call call) { return w.put(t, r, at, true, call); }, tensor,
      dst, target);
  define<T, int, int64_t>(
      window, "get",
      [](Self w, T t, int r, int64_t at, Call call) { return w.get(t, r, at, call); }, tensor,
      py::arg("src_rank"), py::arg("source_offset_nelems"));
  define<int>(window, "signal", [](Self w, int r, Call call) { return w.signal(r, call); }, dst);
  define<int>(
      window, "wait_signal", [](Self w, int r, Call call) { return w.wait_signal(r, call); }, peer);
}

}  // namespace

void bind_window(py::module_& module) {
  py::enum_<WinAccessType>(module, "TorchCommWinAccessType")
      .value("WIN_ACCESS_TYPE_UNIFIED", WinAccessType::kUnified)
      .value("WIN_ACCESS_TYPE_SEPARATE", WinAccessType::kSeparate);
  py::class_<WindowAttr>(module, "TorchCommWindowAttr")
      .def_readonly("access_type", &WindowAttr::access_type);
  py::class_<Window, std::shared_ptr<Window>> window(module, "TorchCommWindow");
  define_tensor(window);
  define_operations(window);
}

std::shared_ptr<Window> new_window(const std::shared_ptr<TorchComm>& comm,
                                   const std::optional<at::Tensor>& tensor,
                                   std::chrono::milliseconds timeout, const HintMap& hints) {
  TORCH_CHECK_NOT_IMPLEMENTED(!comm->foreign(), "new_window: the backend '", comm->backend(),
                              "' is written in Python, which has no windows; use gloo or nccl");
  Hooked hooked(*comm, [&] {
    OpArgs args{OpName::kNewWindow};
    if (tensor) args.inputs.push_back(*tensor);
    return args;
  });
  auto window = std::make_shared<Window>(comm);
  if (tensor) window->register_tensor(*tensor, true, timeout, hints);
  OpResult result;
  result.product = [window] { return py::cast(window).release().ptr(); };
  hooked.done(result);
  return window;
}

}  // namespace ferrocomm
