// An operation's event for torch's profiler, from its call to its end. Must not know what the
// operation does.

#include "profiling.hpp"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>

namespace ferrocomm {
namespace {

// What gloo's and NCCL's backends call these differs in torch.
const char* name_of(c10d::OpType type, bool nccl, const char* operation) {
  switch (type) {
    case c10d::OpType::BROADCAST:
      return "broadcast";
    case c10d::OpType::ALLREDUCE:
      return "all_reduce";
    case c10d::OpType::ALLREDUCE_COALESCED:
      return nccl ? "allreduce_coalesced" : "all_reduce";
    case c10d::OpType::REDUCE:
      return "reduce";
    case c10d::OpType::ALLGATHER:
    case c10d::OpType::ALLGATHER_COALESCED:
      return "all_gather";
    case c10d::OpType::_ALLGATHER_BASE:
      return nccl ? "_all_gather_base" : "all_gather";
    case c10d::OpType::GATHER:
      return "gather";
    case c10d::OpType::SCATTER:
      return "scatter";
    case c10d::OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      return nccl ? "_reduce_scatter_base" : "reduce_scatter";
    case c10d::OpType::ALLTOALL_BASE:
    case c10d::OpType::ALLTOALL:
      return "all_to_all";
    case c10d::OpType::RECVANYSOURCE:
      return "recvAnySource";
    case c10d::OpType::_ALLREDUCE_SPARSE:
      return "sparse_all_reduce";
    default:
      return operation;
  }
}

}  // namespace

bool profiled() noexcept {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

std::string profiled_title(const std::string& backend, c10d::OpType type, const char* operation) {
  return backend + ":" + name_of(type, backend == "nccl", operation);
}

std::function<void()> begin_event(std::string title, const std::vector<at::Tensor>& inputs) {
  auto event = std::make_shared<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (!event->isActive()) return nullptr;
  // It may end on another thread, and others may begin before it does.
  event->_setAsync();
  const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
  event->before(std::move(title), c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
  return at::wrapPropagateTLSState([event] { event->end(); });
}

}  // namespace ferrocomm
