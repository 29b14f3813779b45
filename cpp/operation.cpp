#include "operation.hpp"

#include "comm.hpp"

namespace ferrocomm {
Operation::Operation(const TorchComm& comm, c10d::OpType type, const char* name,
                     const CallOptions& call)
    : comm_(comm),
      rank_(comm.rank()),
      device_(comm.device()),
      type_(type),
      site_(comm.site(name)),
      call_(call),
      state_(call.group ? call.group
                        : std::make_shared<OperationState>(comm.shared_handle(), comm.device(),
                                                           site_, call.timeout)),
      stage_(site_, comm.device(), state_->holdings()) {}

Operation::~Operation() {
  if (finished_ || call_.group) return;
  state_->publish(false, false);
  state_->watch();
}

void Operation::add_outputs(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) add_output(tensor);
}

// torch's own spans are called after the operation alone: "gloo:all_gather" for each of its forms.
void Operation::start_profile(const ProfiledCall& call) {
  record_ = std::make_unique<ProfiledRecord>(comm_, call);
  std::string title = comm_.backend() + ":" + call.operation;
  constexpr std::string_view kForm = "_single";
  if (title.ends_with(kForm)) title.resize(title.size() - kForm.size());
  state_->add_span(start_span(title, call.inputs.empty() ? call.outputs : call.inputs));
}

// A factor of another dtype is converted on the device, behind what is on the current stream.
const void* Operation::device_factor(const Reduction& reduction, const at::Tensor& like) {
  if (!reduction.device_factor.defined()) return nullptr;
  const auto dtype = c10::toRealValueType(like.scalar_type());
  const at::Tensor factor = reduction.device_factor.to(dtype);
  state_->holdings().tensors.push_back(factor);
  return factor.const_data_ptr();
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
