#include "profiling.hpp"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <tuple>

#include "comm.hpp"

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

int64_t elements(at::ArrayRef<at::Tensor> tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor.numel();
  return sum;
}

// The splits that the caller named, else the size of each tensor.
std::vector<int64_t> sizes(at::ArrayRef<at::Tensor> tensors, at::ArrayRef<int64_t> splits) {
  if (!splits.empty()) return splits.vec();
  std::vector<int64_t> sizes;
  sizes.reserve(tensors.size());
  for (const auto& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

std::tuple<std::string, std::string> names(const TorchComm& comm, const c10d::Backend* backend) {
  if (backend == nullptr) return {comm.name(), ""};
  const std::string& uid = backend->getGroupUid();
  return {uid.empty() ? comm.name() : uid, backend->getGroupDesc()};
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

struct ProfiledRecord::Parts {
  std::shared_ptr<torch::ParamCommsDebugInfo> info;
  c10::DebugInfoGuard guard;
  std::vector<c10::IValue> arguments;
  at::RecordFunction record{at::RecordScope::FUNCTION};

  explicit Parts(std::shared_ptr<torch::ParamCommsDebugInfo> facts)
      : info(std::move(facts)), guard(c10::DebugInfoKind::PARAM_COMMS_INFO, info) {}
};

ProfiledRecord::ProfiledRecord(const TorchComm& comm, const ProfiledCall& call) {
  // Where the ranks of the group are in the world is not known here, which stock backends say so.
  constexpr int kUnknown = -1;
  const auto in_sizes = sizes(call.inputs, call.input_splits);
  const auto out_sizes = sizes(call.outputs, call.output_splits);
  const auto group = names(comm, call.backend);
  const int rank = call.rank < 0 ? comm.rank() : call.rank;
  const bool message =
      std::string_view(call.operation) == "send" || std::string_view(call.operation) == "recv";
  const auto sequence = static_cast<int64_t>(comm.sequence()) + 1;
  const auto& typed = call.inputs.empty() ? call.outputs : call.inputs;
  const auto dtype = typed.empty() ? at::kByte : typed.front().scalar_type();
  parts_ = std::make_unique<Parts>(std::make_shared<torch::ParamCommsDebugInfo>(
      group, rank, std::string(call.operation), elements(call.inputs), elements(call.outputs),
      dtype, in_sizes, out_sizes, kUnknown, kUnknown, comm.size(), call.async));
  const std::tuple<int64_t, bool> place(sequence, message);
  torch::maybeSetSequenceInfo(parts_->info, place);
  if (!parts_->record.isActive()) return;
  if (!parts_->record.needsInputs()) {
    parts_->record.before(at::kParamCommsCallName);
    return;
  }
  parts_->arguments = {call.inputs.vec(),
                       place,
                       group,
                       static_cast<int64_t>(rank),
                       std::string(call.operation),
                       in_sizes,
                       out_sizes,
                       static_cast<int64_t>(kUnknown),
                       static_cast<int64_t>(kUnknown),
                       static_cast<int64_t>(comm.size()),
                       call.async};
  parts_->record.before(at::kParamCommsCallName, &parts_->arguments);
  parts_->record.setOutputs(std::vector<c10::IValue>(1, c10::IValue(call.outputs.vec())));
}

ProfiledRecord::~ProfiledRecord() = default;

}  // namespace ferrocomm
