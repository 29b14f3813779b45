// Between an operation and those who watch it: hooks, the profiler, a backend in Python. Must not
// know which operation it is.

#include "operation.hpp"

#include "comm.hpp"
#include "profiling.hpp"

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
      stage_(site_, comm.device(), state_->holdings()) {
  if (!call.group) {
    if (comm.hooks()->watchers.any()) [[unlikely]]
      show();
    state_->set_timeout(call_.timeout);
  }
  // What joins a group is a part of the group's event.
  profiled_ = !call.group && profiled();
  if (profiled_) stage_.keep_inputs();
}

void Operation::show() {
  const auto& hooks = comm_.hooks();
  if (hooks->completions.any()) state_->report_to({hooks, &hooks->completions}, type_);
  comm_.extensions().apply(comm_, state_, call_.timeout);
  if (comm_.times_operations()) state_->keep_time();
}

void Operation::begin_profiled() {
  const bool receives = type_ == c10d::OpType::RECV || type_ == c10d::OpType::RECVANYSOURCE;
  begin(receives ? state_->outputs() : stage_.inputs());
}

void Operation::begin(const std::vector<at::Tensor>& shown) {
  if (!std::exchange(profiled_, false)) return;
  state_->at_end(begin_event(profiled_title(comm_.backend(), type_, site_.operation), shown));
}

Operation::~Operation() {
  if (finished_ || call_.group) return;
  state_->publish(false, false);
  state_->watch();
}

void Operation::add_outputs(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) add_output(tensor);
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
