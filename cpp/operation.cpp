#include "operation.hpp"

#include "comm.hpp"

namespace ferrocomm {
Operation::Operation(const TorchComm& comm, c10d::OpType type, const char* name,
                     const CallOptions& call)
    : rank_(comm.rank()),
      device_(comm.device()),
      type_(type),
      site_(comm.site(name)),
      call_(call),
      state_(call.group ? call.group
                        : std::make_shared<OperationState>(comm.shared_handle(), comm.device(),
                                                           site_, call.timeout)),
      stage_(site_, comm.device(), state_->holdings()) {
  const auto& hooks = comm.hooks();
  if (!call.group && hooks->completions.any()) [[unlikely]]
    state_->report_to({hooks, &hooks->completions});
}

Operation::~Operation() {
  if (finished_ || call_.group) return;
  state_->publish(false, false);
  state_->watch();
}

void Operation::add_outputs(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) add_output(tensor);
}

WorkPtr Operation::member(c10d::OpType type) const {
  return c10::make_intrusive<CommWork>(rank_, type, state_);
}

WorkPtr Operation::finish() {
  finished_ = true;
  if (!call_.group) state_->publish(true, !call_.async);
  return member(type_);
}

}  // namespace ferrocomm
