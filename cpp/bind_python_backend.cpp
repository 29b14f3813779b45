// Communicators that a backend written in Python serves: TorchComm's operations become calls of its
// methods, through torchcomms._python_backend. Must not know what a backend does.

#include <ATen/core/ivalue.h>
#include <pybind11/chrono.h>
#include <torch/csrc/Exceptions.h>

#include "bindings.hpp"
#include "run_later.hpp"

namespace ferrocomm {
namespace {

using Held = std::shared_ptr<PyObject>;
using Milliseconds = std::chrono::milliseconds;

py::object helper(const char* name) {
  return py::module_::import("torchcomms._python_backend").attr(name);
}

py::handle object(const Held& held) { return {held.get()}; }

// What the methods of a backend returned for one operation, or for several that count as one.
class PythonWork final : public BaseWork {
 public:
  PythonWork(int rank, std::vector<Held> works, std::vector<at::Tensor> outputs)
      : BaseWork(rank, c10d::OpType::UNKNOWN),
        works_(std::move(works)),
        outputs_(std::move(outputs)) {}

  fc_status status() override {
    if (!isCompleted()) return FC_IN_PROGRESS;
    return exception() ? FC_ERR_TRANSPORT : FC_OK;
  }
  void wait_blocking() override { wait(kNoTimeout); }

  bool wait(Milliseconds timeout = kNoTimeout) override {
    py::gil_scoped_acquire gil;
    try {
      for (const auto& work : works_) {
        if (timeout.count() > 0) {
          object(work).attr("wait")(timeout);
        } else {
          object(work).attr("wait")();
        }
      }
    } catch (py::error_already_set&) {
      fail(std::current_exception());
      throw;
    }
    return true;
  }

  bool isCompleted() override {
    if (exception()) return true;
    py::gil_scoped_acquire gil;
    for (const auto& work : works_) {
      if (!py::cast<bool>(object(work).attr("is_completed")())) return false;
    }
    return true;
  }
  bool isSuccess() const override { return !exception(); }
  std::exception_ptr exception() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return outputs_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return ends(c10::ListType::create(c10::TensorType::get()),
                [](const PythonWork& self) { return c10::IValue(self.outputs_); });
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return ends(c10::IntType::get(), [](const PythonWork& self) {
      const auto verdict =
          self.exception() ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
      return c10::IValue(static_cast<int64_t>(verdict));
    });
  }

 private:
  // Completed with `value` on a thread that waits for the work: a Python object tells nobody by
  // itself.
  template <typename F>
  c10::intrusive_ptr<c10::ivalue::Future> ends(const c10::TypePtr& type, F value) {
    auto future = c10::make_intrusive<c10::ivalue::Future>(type);
    run_later([self = c10::intrusive_ptr<PythonWork>::unsafe_reclaim_from_nonowning(this), future,
               value] {
      try {
        self->wait(kNoTimeout);
        future->markCompleted(value(*self));
      } catch (...) {
        future->setError(std::current_exception());
      }
    });
    return future;
  }

  void fail(std::exception_ptr failure) {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = std::move(failure);
  }

  const std::vector<Held> works_;
  const std::vector<at::Tensor> outputs_;
  mutable std::mutex mutex_;
  std::exception_ptr failure_;
};

class PythonBackend final : public ForeignBackend {
 public:
  PythonBackend(const py::object& backend, CommSpec spec)
      : backend_(hold(backend)), spec_(std::move(spec)), timeout_(spec_.timeout.count()) {}

  WorkPtr issue(const std::vector<OpArgs>& operations, const CallOptions& call) override {
    require_ready();
    const Milliseconds limit = call.timeout.count() > 0 ? call.timeout : timeout();
    std::vector<Held> works;
    std::vector<at::Tensor> outputs;
    py::gil_scoped_acquire gil;
    const py::object issue_one = helper("issue");
    for (const auto& args : operations) {
      const auto hints = call.hints ? py::cast(*call.hints) : py::object(py::dict());
      const py::object work = issue_one(object(backend_), pre_args(args), limit, hints);
      if (!work.is_none()) works.push_back(hold(work));
      const auto& written = args.outputs.empty() ? args.inputs : args.outputs;
      outputs.insert(outputs.end(), written.begin(), written.end());
    }
    return c10::make_intrusive<PythonWork>(spec_.rank, std::move(works), std::move(outputs));
  }

  std::shared_ptr<TorchComm> split(const std::vector<int>& ranks, const std::string& name,
                                   Milliseconds own, const HintMap& hints) override {
    require_ready();
    const Milliseconds limit = own.count() > 0 ? own : timeout();
    py::gil_scoped_acquire gil;
    const py::object part = helper("split")(object(backend_), ranks, name, limit, hints);
    if (part.is_none()) return nullptr;
    CommSpec spec = spec_;
    spec.name = name;
    spec.timeout = limit;
    spec.hints = hints;
    return make(part, std::move(spec));
  }

  std::string state() override {
    switch (state_.load()) {
      case State::kReady:
        return "ready";
      case State::kAborted:
        return "aborted";
      case State::kFinalized:
        break;
    }
    return "finalized";
  }
  Milliseconds timeout() override { return Milliseconds(timeout_.load()); }
  void set_timeout(Milliseconds timeout) override { timeout_ = timeout.count(); }

  void finalize() override {
    if (state_.exchange(State::kFinalized) == State::kFinalized) return;
    py::gil_scoped_acquire gil;
    object(backend_).attr("finalize")();
  }
  void abort() override {
    State ready = State::kReady;
    if (!state_.compare_exchange_strong(ready, State::kAborted)) return;
    py::gil_scoped_acquire gil;
    object(backend_).attr("abort")();
  }
  std::string version() override {
    return py::cast<std::string>(helper("version")(object(backend_), spec_.backend));
  }
  PyObject* implementation() override { return object(backend_).inc_ref().ptr(); }

  /// Asks the backend for its rank and size.
  static std::shared_ptr<TorchComm> make(const py::object& backend, CommSpec spec) {
    const auto position = py::cast<std::pair<int, int>>(helper("position")(backend));
    spec.rank = position.first;
    spec.size = position.second;
    auto foreign = std::make_shared<PythonBackend>(backend, spec);
    return std::make_shared<TorchComm>(std::move(foreign), std::move(spec));
  }

 private:
  enum class State { kReady, kAborted, kFinalized };

  void require_ready() {
    if (state_.load() == State::kReady) return;
    throw_status(FC_ERR_STATE, "wrong state: the communicator is " + state() +
                                   to_string({spec_.name, spec_.rank, "call"}) +
                                   "; make a new one");
  }

  const Held backend_;
  const CommSpec spec_;
  std::atomic<int64_t> timeout_;
  std::atomic<State> state_{State::kReady};
};

}  // namespace

void bind_python_backend(py::module_& module) {
  module.def(
      "_foreign_comm",
      [](const py::object& implementation, const std::string& backend, at::Device device,
         const std::string& name, const TimeSpan& timeout, const HintMap& hints) {
        CommSpec spec;
        spec.backend = backend;
        spec.device = device;
        spec.name = name;
        spec.timeout = timeout.length;
        spec.hints = hints;
        return PythonBackend::make(implementation, std::move(spec));
      },
      py::arg("implementation"), py::arg("backend"), py::arg("device"), py::arg("name"),
      py::arg("timeout"), py::arg("hints"));
}

}  // namespace ferrocomm
