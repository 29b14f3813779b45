// One call of an operation, from checked tensors to a work.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>

#include "python_runtime.hpp"
#include "streams.hpp"
#include "work.hpp"

namespace ferrocomm {

class TorchComm;

using HintMap = std::unordered_map<std::string, std::string>;

/// How an operation is called.
struct CallOptions {
  /// zero: the communicator's
  std::chrono::milliseconds timeout{0};
  /// false: the call returns when the operation is done, and runs on the caller's thread
  bool async = true;
  /// the coalesced group that the operation joins, or null
  std::shared_ptr<OperationState> group = nullptr;
  /// wishes of this call, or null
  std::shared_ptr<const HintMap> hints = nullptr;
  /// called as `_v`; only hooks can tell
  bool uneven = false;
  /// part of another operation: hooks are not told
  bool inner = false;
};

/// Stage every tensor first, then `issue` once or more, then `finish`.
class Operation {
 public:
  Operation(const TorchComm& comm, c10d::OpType type, const char* name, const CallOptions& call);
  /// Unless it finished, the operation fails; what was issued goes on, with its tensors.
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  Stage& stage() { return stage_; }
  const Site& site() const { return site_; }
  void add_output(const at::Tensor& tensor) { state_->add_output(tensor); }
  void add_outputs(const std::vector<at::Tensor>& tensors);

  /// Makes the C call `start(const fc_op_options*, fc_work**)`.
  template <typename F>
  void issue(F&& start) {
    issue_reduction(1.0, std::forward<F>(start));
  }
  template <typename F>
  void issue_reduction(double factor, F&& start) {
    fc_op_options options;
    fc_op_options_init(&options);
    options.timeout_ns = std::chrono::nanoseconds(call_.timeout).count();
    options.premul_factor = factor;
    if (profiled_) begin_profiled();
    fc_work* work = nullptr;
    // On streams nothing is over when the call returns, so there is always a work.
    const bool wanted = call_.async || has_streams(device_);
    fc_work** slot = wanted ? &work : nullptr;
    if (has_streams(device_)) {
      options.stream = driver_handle(current_stream(device_));
      options.on_stream = call_.async ? 0 : 1;
    }
    check(without_gil([&] { return start(&options, slot); }));
    if (work != nullptr) state_->add_work(WorkHandle(work));
  }

  /// For an operation that issues nothing of its own: what a profiler is to see of it.
  void begin(const std::vector<at::Tensor>& shown);

  WorkPtr finish();

  /// A work that looks at the operation before it is finished.
  WorkPtr member(c10d::OpType type) const;
  const std::shared_ptr<OperationState>& state() const { return state_; }
  /// Replaces how it is called; for a batch, which learns it last.
  void set_call(const CallOptions& call) { call_ = call; }

 private:
  void begin_profiled();

  const TorchComm& comm_;
  const int rank_;
  const at::Device device_;
  const c10d::OpType type_;
  const Site site_;
  CallOptions call_;
  std::shared_ptr<OperationState> state_;
  Stage stage_;
  bool profiled_ = false;
  bool finished_ = false;
};

}  // namespace ferrocomm
