// TorchComm, BatchSendRecv, TorchWork and ReduceOp for Python. The GIL is released where the engine
// may block: inside `Operation::issue`, the waits and the life-cycle calls of TorchComm. Must not
// know how an operation is issued.

#include <pybind11/chrono.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <type_traits>

#include "bindings.hpp"
#include "mem_allocator.hpp"
#include "window.hpp"

namespace ferrocomm {
namespace {

using Comm = std::shared_ptr<TorchComm>;

// `factor` is a number or a tensor of one element.
template <typename Factor>
PyReduceOp premul_sum(const Factor& factor) {
  if constexpr (std::is_same_v<Factor, at::Tensor>) {
    if (!factor.defined() || factor.numel() != 1) {
      throw py::value_error("factor must have one element, got " +
                            std::to_string(factor.defined() ? factor.numel() : 0));
    }
  }
  c10d::ReduceOp op;
  op.op_ = c10d::ReduceOp::PREMUL_SUM;
  op.supplement_ = c10::make_intrusive<PremulSupplement>(factor);
  return {op};
}

enum class WorkStatus { kNotStarted, kInProgress, kCompleted, kTimedOut, kError };

WorkStatus status_of(const TorchWork& self) {
  switch (self.work->status()) {
    case FC_IN_PROGRESS:
      return self.work->has_begun() ? WorkStatus::kInProgress : WorkStatus::kNotStarted;
    case FC_OK:
      return WorkStatus::kCompleted;
    case FC_ERR_TIMEOUT:
    case FC_ERR_STORE_TIMEOUT:
      return WorkStatus::kTimedOut;
    default:
      return WorkStatus::kError;
  }
}

py::object exception_of(const TorchWork& self) {
  self.work->isCompleted();
  const auto failure = self.work->exception();
  if (!failure) return py::none();
  torch::translate_exception_to_python(failure);
  return py::error_already_set().value();
}

// A work is handed out once the engine has the operation, so it has started.
void on_start(const TorchWork&, const py::function& hook) { hook(); }

// At once where the work is over; else on a thread of the shim's, where nobody hears an exception.
void on_end(const TorchWork& self, const py::function& hook) {
  const auto future = self.work->getFutureResult();
  if (future->completed()) {
    hook();
    return;
  }
  future->addCallback([held = hold(hook)](c10::ivalue::Future&) {
    py::gil_scoped_acquire gil;
    try {
      py::handle(held.get())();
    } catch (...) {
      report_unraisable(std::current_exception(), "torchcomms work hook");
    }
  });
}

std::shared_ptr<MemAllocator> mem_allocator_of(const TorchComm& self) {
  return mem_allocator(self.backend());
}

// Whether it is one of a class of `torchcomms._options`.
bool is_instance(const py::object& object, const char* name) {
  return py::isinstance(object, py::module_::import("torchcomms._options").attr(name));
}

std::string type_of(const py::object& object) {
  return py::str(py::type::of(object).attr("__name__"));
}

// `torchcomms.CommOptions` as they stand now.
py::object options_of(const TorchComm& self) {
  const auto options = py::module_::import("torchcomms._options").attr("CommOptions");
  py::object of = options();
  of.attr("timeout") = self.timeout();
  const HintMap hints = self.hints();
  of.attr("hints") = hints;
  // Of nccl alone, where the factory always says it as a hint.
  const auto abort = hints.find("abort_process_on_timeout_or_error");
  if (abort != hints.end()) {
    of.attr("abort_process_on_timeout_or_error") = abort->second == "true" || abort->second == "1";
  }
  of.attr("enable_reconfigure") = self.is_reconfigurable();
  of.attr("name") = self.name();
  of.attr("rank") = self.rank();
  of.attr("size") = self.size();
  return of;
}

// The backend written in Python that serves the communicator, else what the engine's one is called
// by: the engine has no object behind the communicator that Python could hold.
py::object backend_of(const py::object& self) {
  const auto& foreign = py::cast<const TorchComm&>(self).foreign();
  return foreign ? py::reinterpret_steal<py::object>(foreign->implementation()) : self;
}

void define_common(CommClass& comm) {
  comm.def("get_rank", &TorchComm::rank)
      .def("get_size", &TorchComm::size)
      .def("get_name", &TorchComm::name)
      .def("get_device", &TorchComm::device)
      .def("get_backend", &TorchComm::backend)
      .def("get_backend_version",
           [](const TorchComm& self) {
             return self.foreign() ? self.foreign()->version() : std::string(fc_version());
           })
      .def("get_mem_allocator", mem_allocator_of)
      .def_property_readonly("mem_allocator", mem_allocator_of)
      .def("get_sequence", &TorchComm::sequence)
      .def("get_timeout", &TorchComm::timeout)
      .def(
          "set_timeout",
          [](TorchComm& self, const TimeSpan& timeout) { self.set_timeout(timeout.length); },
          py::arg("timeout"))
      .def("get_options", options_of)
      .def("get_hints", &TorchComm::hints)
      .def("set_hints", &TorchComm::set_hints, py::arg("hints"))
      .def("get_backend_impl", backend_of)
      .def("unsafe_get_backend", backend_of)
      .def("tensor_register", &TorchComm::tensor_register, py::arg("tensor"))
      .def("tensor_deregister", &TorchComm::tensor_deregister, py::arg("tensor"))
      .def("is_abort_supported", [](const TorchComm&) { return true; })
      .def("is_aborted", [](const TorchComm& self) { return self.state() == "aborted"; })
      .def("state", &TorchComm::state)
      .def("error", &TorchComm::error)
      .def("info", &TorchComm::info)
      .def("finalize", &TorchComm::finalize)
      .def("abort", &TorchComm::abort)
      .def(
          "split",
          [](TorchComm& self, const std::vector<int>& ranks, const std::string& name,
             const Hints& hints, const Timeout& timeout) {
            return self.split(ranks, name, limit_of(timeout), hints.value_or(HintMap()));
          },
          py::arg("ranks"), py::arg("name") = "", py::arg("hints") = py::none(),
          py::arg("timeout") = py::none())
      .def("__copy__", [](const py::object& self) { return self; })
      .def("__deepcopy__", [](const py::object& self, const py::dict&) { return self; })
      .def("__repr__", [](const TorchComm& self) {
        return "TorchComm(name='" + self.name() + "', backend='" + self.backend() + "', device='" +
               self.device().str() + "', rank=" + std::to_string(self.rank()) +
               ", size=" + std::to_string(self.size()) + ", state='" + self.state() + "')";
      });
}

// Binds an operation: its own arguments, then async_op, hints and timeout as every operation has.
template <typename... Args, typename F, typename... Names>
void define(CommClass& comm, const char* name, F operation, Names... names) {
  comm.def(
      name,
      [operation](TorchComm& self, Args... args, bool async_op, const Hints& hints,
                  const Timeout& timeout) {
        return TorchWork{operation(self, args..., call_of(async_op, timeout, hints))};
      },
      names..., py::arg("async_op") = false, py::arg("hints") = py::none(),
      py::arg("timeout") = py::none());
}

CallOptions uneven(CallOptions call) {
  call.uneven = true;
  return call;
}

void define_collectives(CommClass& comm) {
  using T = const at::Tensor&;
  using L = const Tensors&;
  using R = const PyReduceOp&;
  using Call = const CallOptions&;
  const auto tensor = py::arg("tensor");
  const auto tensor_list = py::arg("tensor_list");
  const auto input = py::arg("input");
  const auto output = py::arg("output");
  const auto root = py::arg("root");
  const auto op = py::arg("op");
  define<T, int>(
      comm, "broadcast",
      [](TorchComm& c, T t, int r, Call call) { return c.broadcast(t, r, call); }, tensor, root);
  define<T, R>(
      comm, "all_reduce",
      [](TorchComm& c, T t, R o, Call call) { return c.all_reduce({t}, o.op, call); }, tensor, op);
  define<T, int, R>(
      comm, "reduce",
      [](TorchComm& c, T t, int r, R o, Call call) { return c.reduce(t, r, o.op, call); }, tensor,
      root, op);
  const auto gather_lists = [](TorchComm& c, L out, T in, Call call) {
    return c.all_gather(out, in, call);
  };
  define<L, T>(comm, "all_gather", gather_lists, tensor_list, tensor);
  define<L, T>(
      comm, "all_gather_v",
      [](TorchComm& c, L out, T in, Call call) { return c.all_gather(out, in, uneven(call)); },
      tensor_list, tensor);
  define<T, T>(
      comm, "all_gather_single",
      [](TorchComm& c, T out, T in, Call call) { return c.all_gather_single({out}, {in}, call); },
      output, input);
  const auto scatter_lists = [](TorchComm& c, T out, L in, R o, Call call) {
    return c.reduce_scatter(out, in, o.op, call);
  };
  define<T, L, R>(comm, "reduce_scatter", scatter_lists, output, py::arg("input_list"), op);
  define<T, L, R>(
      comm, "reduce_scatter_v",
      [](TorchComm& c, T out, L in, R o, Call call) {
        return c.reduce_scatter(out, in, o.op, uneven(call));
      },
      output, py::arg("input_list"), op);
  define<T, T, R>(
      comm, "reduce_scatter_single",
      [](TorchComm& c, T out, T in, R o, Call call) {
        return c.reduce_scatter_single({out}, {in}, o.op, call);
      },
      output, input, op);
  define<L, L>(
      comm, "all_to_all",
      [](TorchComm& c, L out, L in, Call call) { return c.all_to_all(out, in, call); },
      py::arg("output_tensor_list"), py::arg("input_tensor_list"));
  define<T, T>(
      comm, "all_to_all_single",
      [](TorchComm& c, T out, T in, Call call) {
        return c.all_to_all_single(out, in, {}, {}, call);
      },
      output, input);
  define<T, T, const Splits&, const Splits&>(
      comm, "all_to_all_v_single",
      [](TorchComm& c, T out, T in, const Splits& out_splits, const Splits& in_splits, Call call) {
        return c.all_to_all_single(out, in, out_splits, in_splits, call);
      },
      output, input, py::arg("output_split_sizes"), py::arg("input_split_sizes"));
  define<T, L, int>(
      comm, "scatter",
      [](TorchComm& c, T out, L in, int r, Call call) { return c.scatter(out, in, r, call); },
      py::arg("output_tensor"), py::arg("input_tensor_list"), root);
  define<L, T, int>(
      comm, "gather",
      [](TorchComm& c, L out, T in, int r, Call call) { return c.gather(out, in, r, call); },
      py::arg("output_tensor_list"), py::arg("input_tensor"), root);
  define<T, T, int>(
      comm, "gather_single",
      [](TorchComm& c, T out, T in, int r, Call call) { return c.gather_single(out, in, r, call); },
      output, input, root);
  define<>(comm, "barrier", [](TorchComm& c, Call call) { return c.barrier(call); });
}

void define_point_to_point(CommClass& comm) {
  using T = const at::Tensor&;
  using Call = const CallOptions&;
  const auto tensor = py::arg("tensor");
  define<T, int>(
      comm, "send", [](TorchComm& c, T t, int peer, Call call) { return c.send(t, peer, 0, call); },
      tensor, py::arg("dst"));
  define<T, int>(
      comm, "recv", [](TorchComm& c, T t, int peer, Call call) { return c.recv(t, peer, 0, call); },
      tensor, py::arg("src"));
  comm.def(
      "new_window",
      [](const Comm& self, const std::optional<at::Tensor>& tensor, const Hints& hints,
         const Timeout& timeout) {
        return new_window(self, tensor, limit_of(timeout), hints.value_or(HintMap()));
      },
      py::arg("tensor") = py::none(), py::arg("hints") = py::none(),
      py::arg("timeout") = py::none());
  comm.def("batch_op_create", [](const Comm& self) { return std::make_shared<Batch>(self); });
}

}  // namespace

std::chrono::milliseconds limit_of(const Timeout& timeout) {
  if (!timeout) return std::chrono::milliseconds(0);
  if (timeout->length.count() <= 0) {
    throw_status(FC_ERR_INVALID_ARGUMENT, "invalid argument: the time-out is too short, got " +
                                              std::to_string(timeout->length.count()) +
                                              " ms, expected at least 1 ms; leave it out to have "
                                              "the communicator's");
  }
  return timeout->length;
}

void bind_reduce_op(py::module_& module) {
  py::class_<PyReduceOp> reduce_op(module, "ReduceOp");
  reduce_op.def(py::init([](const c10d::ReduceOp& op) { return PyReduceOp{op}; }))
      .def(py::init([](c10d::ReduceOp::RedOpType op) { return PyReduceOp{op}; }))
      .def_property_readonly("type", [](const PyReduceOp& self) { return self.op.op_; })
      .def_static("PREMUL_SUM", premul_sum<double>, py::arg("factor"))
      .def_static("PREMUL_SUM", premul_sum<at::Tensor>, py::arg("factor"))
      .def("__copy__", [](const PyReduceOp& self) { return self; })
      .def("__deepcopy__", [](const PyReduceOp& self, const py::dict&) { return self; })
      .def(
          "__eq__",
          [](const PyReduceOp& self, const PyReduceOp& other) {
            return self.op.op_ == other.op.op_ && self.op.supplement_ == other.op.supplement_;
          },
          py::is_operator())
      .def("__hash__", [](const PyReduceOp& self) { return static_cast<int>(self.op.op_); })
      .def("__repr__", [](const PyReduceOp& self) {
        return py::str("ReduceOp({})").format(py::cast(self.op.op_));
      });
  using Op = c10d::ReduceOp::RedOpType;
  const std::pair<const char*, Op> plain[] = {
      {"SUM", Op::SUM},   {"PRODUCT", Op::PRODUCT}, {"MIN", Op::MIN},   {"MAX", Op::MAX},
      {"BAND", Op::BAND}, {"BOR", Op::BOR},         {"BXOR", Op::BXOR}, {"AVG", Op::AVG}};
  for (const auto& [name, op] : plain) reduce_op.attr(name) = PyReduceOp{op};
  py::implicitly_convertible<c10d::ReduceOp, PyReduceOp>();
  py::implicitly_convertible<Op, PyReduceOp>();
  module.attr("RedOpType") =
      py::module_::import("torch._C._distributed_c10d").attr("ReduceOp").attr("RedOpType");
}

void bind_work(py::module_& module) {
  py::enum_<WorkStatus>(module, "WorkStatus")
      .value("NOT_STARTED", WorkStatus::kNotStarted)
      .value("INPROGRESS", WorkStatus::kInProgress)
      .value("COMPLETED", WorkStatus::kCompleted)
      .value("TIMEDOUT", WorkStatus::kTimedOut)
      .value("ERROR", WorkStatus::kError);
  py::class_<TorchWork>(module, "TorchWork")
      .def(
          "wait",
          [](const TorchWork& self, const Timeout& timeout) { self.work->wait(limit_of(timeout)); },
          py::arg("timeout") = py::none())
      .def("wait_blocking", [](const TorchWork& self) { self.work->wait_blocking(); })
      .def("is_completed", [](const TorchWork& self) { return self.work->isCompleted(); })
      .def_property_readonly("status", status_of)
      .def("exception", exception_of)
      .def("register_work_start_hook", on_start, py::arg("hook"))
      .def("register_work_end_hook", on_end, py::arg("hook"))
      .def("cancel", [](const TorchWork& self) { self.work->abort(); })
      .def("source_rank", [](const TorchWork& self) { return self.work->sourceRank(); })
      .def("sequence", [](const TorchWork& self) { return self.work->getSequencenumber(); })
      .def("result", [](const TorchWork& self) { return self.work->result(); });
}

void bind_comm(py::module_& module) {
  CommClass comm(module, "TorchComm", py::dynamic_attr());
  define_common(comm);
  bind_hooks(module, comm);
  bind_persistent(module, comm);
  define_collectives(comm);
  define_point_to_point(comm);
  define_resources(comm);
  define_reconfigure(comm);
}

void bind_batch(py::module_& module) {
  py::class_<Batch, std::shared_ptr<Batch>>(module, "BatchSendRecv")
      .def(
          "send", [](Batch& self, const at::Tensor& tensor, int dst) { self.send(tensor, dst, 0); },
          py::arg("tensor"), py::arg("dst"))
      .def(
          "recv", [](Batch& self, const at::Tensor& tensor, int src) { self.recv(tensor, src, 0); },
          py::arg("tensor"), py::arg("src"))
      .def(
          "add",
          [](Batch& self, const py::object& operation) {
            if (!is_instance(operation, "P2POp")) {
              throw py::type_error("operation must be a P2POp, got " + type_of(operation));
            }
            const auto tensor = py::cast<at::Tensor>(operation.attr("tensor"));
            const auto peer = py::cast<int>(operation.attr("peer"));
            if (py::cast<std::string>(operation.attr("name")) == "send") {
              self.send(tensor, peer, 0);
            } else {
              self.recv(tensor, peer, 0);
            }
          },
          py::arg("operation"))
      .def(
          "issue",
          [](Batch& self, bool async_op, const py::object& options, const Hints& hints,
             const Timeout& timeout) {
            const bool given = !options.is_none();
            if (given && !is_instance(options, "OperationOptions")) {
              throw py::type_error("options must be BatchP2POptions, got " + type_of(options));
            }
            const auto own =
                given && !timeout ? py::cast<Timeout>(options.attr("timeout")) : timeout;
            const auto wishes = given && !hints ? py::cast<Hints>(options.attr("hints")) : hints;
            return TorchWork{self.issue(call_of(async_op, own, wishes))};
          },
          py::arg("async_op") = false, py::arg("options") = py::none(),
          py::arg("hints") = py::none(), py::arg("timeout") = py::none());
}

}  // namespace ferrocomm
