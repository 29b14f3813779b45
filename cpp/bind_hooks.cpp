// Hooks for Python: from an operation to the typed arguments of `torchcomms._hook_args`. When they
// are called is not known here; hooks.hpp says it.

#include "bindings.hpp"

namespace ferrocomm {
namespace {

using Comm = std::shared_ptr<TorchComm>;

// The classes of torchcomms._hook_args, in the order of OpName.
struct Classes {
  py::tuple names;
  py::tuple pre;
  py::tuple post;
};

const Classes& classes() {
  // Leaked: hooks may run while the interpreter ends. The GIL is held here, which guards the first
  // use.
  static const Classes* all = nullptr;
  if (all == nullptr) {
    const auto module = py::module_::import("torchcomms._hook_args");
    all = new Classes{py::tuple(module.attr("OpName")), module.attr("PRE"), module.attr("POST")};
  }
  return *all;
}

py::object one(const std::vector<at::Tensor>& tensors) {
  return tensors.empty() ? py::none() : py::cast(tensors.front());
}

py::object op_of(const OpArgs& args) {
  return args.op ? py::cast(PyReduceOp{*args.op}) : py::none();
}

}  // namespace

py::object pre_args(const OpArgs& args) {
  const py::object make = classes().pre[static_cast<size_t>(args.name)];
  const auto& in = args.inputs;
  const auto& out = args.outputs;
  switch (args.name) {
    case OpName::kSend:
      return make(one(in), args.root, args.async);
    case OpName::kRecv:
      return make(one(out), args.root, args.async);
    case OpName::kBroadcast:
      return make(one(in), args.root, args.async);
    case OpName::kAllReduce:
      return make(one(in), op_of(args), args.async);
    case OpName::kReduce:
      return make(one(in), args.root, op_of(args), args.async);
    case OpName::kAllGather:
    case OpName::kAllGatherV:
      return make(out, one(in), args.async);
    case OpName::kAllGatherSingle:
    case OpName::kAllToAllSingle:
      return make(one(out), one(in), args.async);
    case OpName::kReduceScatter:
    case OpName::kReduceScatterV:
      return make(one(out), in, op_of(args), args.async);
    case OpName::kReduceScatterSingle:
      return make(one(out), one(in), op_of(args), args.async);
    case OpName::kAllToAllVSingle:
      return make(one(out), one(in), args.output_splits, args.input_splits, args.async);
    case OpName::kAllToAll:
      return make(out, in, args.async);
    case OpName::kBarrier:
      return make(args.async);
    case OpName::kScatter:
      return make(one(out), in, args.root, args.async);
    case OpName::kGather:
      return make(out, one(in), args.root, args.async);
    case OpName::kGatherSingle:
      return make(one(out), one(in), args.root, args.async);
    case OpName::kSplit:
      return make(args.ranks, args.label);
    case OpName::kNewWindow:
      return make(one(in));
    case OpName::kFinalize:
      return make();
  }
  throw std::logic_error("an operation without a name");
}

namespace {

py::object post_args(const OpArgs& args, const OpResult& result) {
  const py::object make = classes().post[static_cast<size_t>(args.name)];
  switch (args.name) {
    case OpName::kSplit:
      return make(result.comm ? py::cast(result.comm) : py::none());
    case OpName::kNewWindow:
      return make(result.product ? py::reinterpret_steal<py::object>(result.product())
                                 : py::none());
    case OpName::kFinalize:
      return make();
    default:
      return make(result.work ? py::cast(TorchWork{result.work}) : py::none());
  }
}

// Taken off by `remove`, from any thread and also from within a hook.
struct RemovableHandle {
  std::weak_ptr<Hooks> hooks;
  void (*take_off)(Hooks& hooks, uint64_t id);
  uint64_t id;

  void remove() {
    if (const auto alive = hooks.lock()) take_off(*alive, id);
  }
};

RemovableHandle register_pre(const TorchComm& self, const py::function& hook) {
  auto call = [held = hold(hook)](uint64_t op_id, const OpArgs& args) {
    py::gil_scoped_acquire gil;
    const auto name = classes().names[static_cast<size_t>(args.name)];
    py::handle(held.get())(name, op_id, pre_args(args));
  };
  return {self.hooks(), [](Hooks& hooks, uint64_t id) { hooks.pre.remove(id); },
          self.hooks()->pre.add(std::move(call))};
}

RemovableHandle register_post(const TorchComm& self, const py::function& hook) {
  auto call = [held = hold(hook)](uint64_t op_id, const OpArgs& args, const OpResult& result) {
    py::gil_scoped_acquire gil;
    py::handle(held.get())(op_id, post_args(args, result));
  };
  return {self.hooks(), [](Hooks& hooks, uint64_t id) { hooks.post.remove(id); },
          self.hooks()->post.add(std::move(call))};
}

RemovableHandle register_abort(TorchComm& self, const py::function& hook) {
  auto call = [held = hold(hook)] {
    py::gil_scoped_acquire gil;
    py::handle(held.get())();
  };
  return {self.hooks(), [](Hooks& hooks, uint64_t id) { hooks.abort.remove(id); },
          self.add_abort_hook(std::move(call))};
}

}  // namespace

std::shared_ptr<PyObject> hold(const py::handle& object) {
  return {object.inc_ref().ptr(), [](PyObject* last) {
            // With the interpreter gone there is nobody to give it back to.
            if (Py_IsInitialized() == 0) return;
            py::gil_scoped_acquire gil;
            Py_DECREF(last);
          }};
}

void bind_hooks(py::module_& module, CommClass& comm) {
  py::class_<RemovableHandle>(module, "RemovableHandle")
      .def("remove", &RemovableHandle::remove)
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](RemovableHandle& self, const py::args&) { self.remove(); });
  comm.def("register_pre_hook", register_pre, py::arg("hook"))
      .def("register_post_hook", register_post, py::arg("hook"))
      .def("register_abort_hook", register_abort, py::arg("hook"));
  const auto args = py::module_::import("torchcomms._hook_args");
  for (const auto& name : args.attr("__all__")) {
    module.attr(name) = args.attr(name);
  }
}

}  // namespace ferrocomm
