// One call of an operation, from checked tensors to a work. Must not know what the
// operation does, only how it is called.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "hints.hpp"
#include "param_comms.hpp"
#include "python_runtime.hpp"
#include "reduce_op.hpp"
#include "streams.hpp"
#include "time_limit.hpp"
#include "work.hpp"

namespace ferrocomm {

class TorchComm;

/// How an operation is called.
struct CallOptions {
  /// zero: the communicator's
  std::chrono::milliseconds timeout{0};
  /// false: the call returns when the operation is done, and runs on the caller's thread
  bool async = true;
  /// the coalesced group that the operation joins, or null
  std::shared_ptr<OperationState> group = nullptr;
  /// whom torch's profiler is told was called; null: the communicator itself
  const c10d::Backend* backend = nullptr;
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

  /// Records the call and its arguments for torch's profiler, where there is one. `rank`: root or
  /// peer.
  void profile(at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs, int rank = -1,
               at::ArrayRef<int64_t> input_splits = {}, at::ArrayRef<int64_t> output_splits = {}) {
    if (!is_recorded()) [[likely]]
      return;
    record_ = std::make_unique<CommsRecord>(
        comm_, RecordedCall{site_.operation, inputs, outputs, rank, input_splits, output_splits,
                            call_.async, call_.backend});
  }

  /// Makes the C call `start(const fc_op_options*, fc_work**)`.
  template <typename F>
  void issue(F&& start) {
    issue_with(1.0, nullptr, std::forward<F>(start));
  }
  /// As `issue`, for a reduction of elements as those of `like`.
  template <typename F>
  void issue_reduction(const Reduction& reduction, const at::Tensor& like, F&& start) {
    issue_with(reduction.factor, device_factor(reduction, like), std::forward<F>(start));
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
  /// To whoever watches the communicator.
  void show();
  void begin_profiled();
  /// Where the factor lies on the device, as one element of `like`'s dtype that the operation
  /// holds; null where the reduction has none there.
  const void* device_factor(const Reduction& reduction, const at::Tensor& like);

  template <typename F>
  void issue_with(double factor, const void* device_factor, F&& start) {
    fc_op_options options;
    fc_op_options_init(&options);
    options.timeout_ns = to_ns(call_.timeout);
    options.premul_factor = factor;
    options.premul_device_factor = device_factor;
    std::vector<fc_hint> hints;
    if (call_.hints) [[unlikely]] {
      for (const auto& [key, value] : *call_.hints) hints.push_back({key.c_str(), value.c_str()});
      options.hints = hints.data();
      options.hint_count = hints.size();
    }
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

  const TorchComm& comm_;
  const int rank_;
  const at::Device device_;
  const c10d::OpType type_;
  const Site site_;
  CallOptions call_;
  std::shared_ptr<OperationState> state_;
  Stage stage_;
  std::unique_ptr<CommsRecord> record_;
  bool profiled_ = false;
  bool finished_ = false;
};

}  // namespace ferrocomm
