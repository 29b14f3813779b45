// Persistent all_gather for Python: the output is checked once, the inputs change. The engine knows
// nothing of it: each call is an all_gather_single.

#include "bindings.hpp"

namespace ferrocomm {
namespace {

using Comm = std::shared_ptr<TorchComm>;

/// An output that is gathered into again and again.
class PersistentAllGather {
 public:
  PersistentAllGather(const Comm& comm, at::Tensor output, Timeout timeout, Hints hints)
      : comm_(comm), timeout_(timeout), hints_(std::move(hints)), output_(std::move(output)) {}

  /// How one of its calls is made: what the call says, else what the handle was made with.
  CallOptions call(bool async_op, const Timeout& timeout, const Hints& hints) const {
    return call_of(async_op, timeout ? timeout : timeout_, hints ? hints : hints_);
  }

  /// The output, for a call on `comm` that is called `operation`.
  at::Tensor output_for(const Comm& comm, const char* operation) {
    const Site site = comm->site(operation);
    if (comm_.lock() != comm) {
      throw_invalid(site, {"the handle belongs to another communicator", "", "",
                           "use it with the communicator whose all_gather_p_init made it"});
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (!output_.defined()) {
      throw_invalid(site,
                    {"the handle was freed", "", "", "make a new one with all_gather_p_init"});
    }
    return output_;
  }

  void free() {
    at::Tensor last;  // let go with no lock held
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(last, output_);
  }

 private:
  const std::weak_ptr<TorchComm> comm_;
  const Timeout timeout_;
  const Hints hints_;
  std::mutex mutex_;
  at::Tensor output_;
};

using Handle = std::shared_ptr<PersistentAllGather>;

Handle init(const Comm& self, const at::Tensor& output, const Hints& hints,
            const Timeout& timeout) {
  static_cast<void>(limit_of(timeout));
  const Site site = self->site("all_gather_p_init");
  Holdings holdings;
  const Buffer buffer = Stage(site, self->device(), holdings).output("output", output);
  if (buffer.count % static_cast<size_t>(self->size()) != 0) {
    throw_invalid(site, {"the output has no equal part for each rank",
                         std::to_string(buffer.count) + " elements",
                         "a multiple of " + std::to_string(self->size()), ""});
  }
  return std::make_shared<PersistentAllGather>(self, output, timeout, hints);
}

}  // namespace

void bind_persistent(py::module_& module, CommClass& comm) {
  py::class_<PersistentAllGather, Handle>(module, "AllGatherHandle");
  comm.def("all_gather_p_init", init, py::arg("output"), py::arg("hints") = py::none(),
           py::arg("timeout") = py::none())
      .def(
          "all_gather_p_exec",
          [](const Comm& self, const Handle& handle, const at::Tensor& input, bool async_op,
             const Hints& hints, const Timeout& timeout) {
            const at::Tensor output = handle->output_for(self, "all_gather_p_exec");
            const CallOptions call = handle->call(async_op, timeout, hints);
            return TorchWork{self->all_gather_single({output}, {input}, call)};
          },
          py::arg("handle").none(false), py::arg("input"), py::arg("async_op") = false,
          py::arg("hints") = py::none(), py::arg("timeout") = py::none())
      .def(
          "all_gather_p_free",
          [](const Comm& self, const Handle& handle) {
            static_cast<void>(handle->output_for(self, "all_gather_p_free"));
            handle->free();
          },
          py::arg("handle").none(false));
}

}  // namespace ferrocomm
