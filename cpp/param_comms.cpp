// The record of a call for torch's profiler, in torch's own form. Must not know what the profiler
// makes of it.

#include "param_comms.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <tuple>

#include "comm.hpp"

namespace ferrocomm {
namespace {

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

struct CommsRecord::Parts {
  std::shared_ptr<torch::ParamCommsDebugInfo> info;
  c10::DebugInfoGuard guard;
  std::vector<c10::IValue> arguments;
  at::RecordFunction record{at::RecordScope::FUNCTION};

  explicit Parts(std::shared_ptr<torch::ParamCommsDebugInfo> facts)
      : info(std::move(facts)), guard(c10::DebugInfoKind::PARAM_COMMS_INFO, info) {}
};

CommsRecord::CommsRecord(const TorchComm& comm, const RecordedCall& call) {
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
  const std::tuple<int64_t, bool> place(sequence, message);
#if TORCH_VERSION_MINOR >= 12
  parts_ = std::make_unique<Parts>(std::make_shared<torch::ParamCommsDebugInfo>(
      group, rank, std::string(call.operation), elements(call.inputs), elements(call.outputs),
      dtype, in_sizes, out_sizes, kUnknown, kUnknown, comm.size(), call.async));
  torch::maybeSetSequenceInfo(parts_->info, place);
#else
  parts_ = std::make_unique<Parts>(std::make_shared<torch::ParamCommsDebugInfo>(
      group, rank, std::string(call.operation), elements(call.inputs), elements(call.outputs),
      dtype, in_sizes, out_sizes, kUnknown, kUnknown, comm.size()));
#endif
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

CommsRecord::~CommsRecord() = default;

}  // namespace ferrocomm
