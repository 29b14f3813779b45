// A running operation of the engine as a c10d::Work.
//
// `OperationState` owns what the operation needs until it is complete, whoever drops what; several
// works may look at one state (the members of a coalesced group). Nothing here runs on an engine
// thread but `on_complete`, which only hands over: dropping a tensor or completing a future may
// take the GIL.
#pragma once

#include <torch/headeronly/version.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "handles.hpp"
#include "tensors.hpp"

namespace ferrocomm {

class OperationState : public std::enable_shared_from_this<OperationState> {
 public:
  OperationState(CommHandle comm, Site site, std::chrono::milliseconds timeout);

  // ---- while it is built, by one thread

  Holdings& holdings() { return holdings_; }
  void add_output(const at::Tensor& tensor) { outputs_.push_back(tensor); }
  void add_work(WorkHandle work);
  /// From here on any thread may look. `whole`: everything was issued; else what was issued goes on
  /// and the operation fails. A state without works is complete.
  void publish(bool whole);

  // ---- afterwards, any thread

  /// Waits for the operation and raises its failure. When `timeout` is positive and passes first,
  /// the operation fails with a time-out; an interrupt ends the wait alone.
  void wait(std::chrono::milliseconds timeout);
  /// Looks, without blocking.
  bool is_complete();
  /// Null unless the operation is known to have failed.
  std::exception_ptr failure() const;
  /// FC_IN_PROGRESS, FC_OK, or the status of the failure.
  fc_status status();
  /// Ends pending point-to-point operations.
  void cancel();
  /// Makes the engine's completion reach `settle`, so that nobody has to wait.
  void watch();
  c10::intrusive_ptr<c10::ivalue::Future> future();

  const std::vector<at::Tensor>& outputs() const { return outputs_; }
  int source() const { return source_.load(); }
  uint64_t sequence() const { return sequence_; }
  uint64_t key() const { return key_; }
  std::chrono::milliseconds timeout() const;

 private:
  enum class Phase { kBuilding, kPending, kSettling, kSettled };

  static void on_complete(void* watch, fc_status status, const char* message);
  bool settled() const { return phase_.load(std::memory_order_acquire) == Phase::kSettled; }
  void require_published() const;
  void wait_for_parts(std::chrono::milliseconds timeout);
  void settle();
  void complete_future();

  const CommHandle comm_;  // works outlive the last reference of a user to the communicator
  const Site site_;
  const std::chrono::milliseconds timeout_;
  const uint64_t key_;
  uint64_t sequence_ = 0;
  bool whole_ = false;

  Holdings holdings_;
  std::vector<at::Tensor> outputs_;
  std::vector<WorkHandle> parts_;

  std::atomic<Phase> phase_{Phase::kBuilding};
  // Written by the one that settles, read once the phase says so.
  std::exception_ptr error_;
  fc_status status_ = FC_IN_PROGRESS;

  std::atomic<int> source_{-1};
  std::atomic<bool> watched_{false};

  std::mutex mutex_;  // of the members below; nothing is called under it
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool future_completed_ = false;
};

class CommWork final : public c10d::Work {
 public:
  CommWork(int rank, c10d::OpType type, std::shared_ptr<OperationState> state)
      : c10d::Work(rank, type), state_(std::move(state)) {}
  /// A work that nobody waited for goes on, with its tensors.
  ~CommWork() override;

  bool isCompleted() override { return state_->is_complete(); }
  bool isSuccess() const override { return state_->status() == FC_OK; }
  std::exception_ptr exception() const override { return state_->failure(); }
  int sourceRank() const override { return state_->source(); }
  std::vector<at::Tensor> result() override { return state_->outputs(); }
  void synchronize() override { state_->is_complete(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override { state_->cancel(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return state_->future(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  uint64_t getSequencenumber() const override { return state_->sequence(); }
#if TORCH_VERSION_MINOR >= 14
  std::chrono::milliseconds getTimeout() const override { return state_->timeout(); }
#endif
#if TORCH_VERSION_MINOR >= 15
  uint64_t getCompletionKey() const override { return state_->key(); }
#endif

  fc_status status() { return state_->status(); }

 private:
  std::shared_ptr<OperationState> state_;
};

using WorkPtr = c10::intrusive_ptr<CommWork>;

}  // namespace ferrocomm
