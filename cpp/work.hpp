// A running operation of the engine as a c10d::Work.
//
// `OperationState` owns what the operation needs until it is complete, whoever drops what; several
// works may look at one state (the members of a coalesced group). Nothing here runs on an engine
// thread but `on_complete` and `let_go`, which only hand over: dropping a tensor or completing a
// future may take the GIL.
//
// On a device with streams a wait makes the current stream wait, not the host. From then on the
// stream keeps the tensors' memory, so they are let go there and then. Must not know what the
// operation does.
#pragma once

#include <torch/headeronly/version.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "handles.hpp"
#include "streams.hpp"
#include "tensors.hpp"

namespace ferrocomm {

/// A work that is over and did not fail.
struct Completion {
  uint64_t key = 0;
  uint64_t sequence = 0;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  std::chrono::steady_clock::time_point began;
  /// when the end was noticed
  std::chrono::steady_clock::time_point ended;
};
class Completions;

class OperationState : public std::enable_shared_from_this<OperationState> {
 public:
  OperationState(CommHandle comm, at::Device device, Site site, std::chrono::milliseconds timeout);

  // ---- while it is built, by one thread

  Holdings& holdings() { return holdings_; }
  void add_output(const at::Tensor& tensor) { outputs_.push_back(tensor); }
  void add_work(WorkHandle work);
  /// Who is told when it has ended well.
  void report_to(std::shared_ptr<Completions> hooks, c10d::OpType type);
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  /// Takes the time from here to the end.
  void keep_time();
  /// Called when the operation has ended, or on streams when it was issued; may be empty.
  void at_end(std::function<void()> call) { at_end_ = std::move(call); }
  /// Runs once, on the thread that sees the operation's success first; before anybody else sees it.
  void when_succeeded(std::function<void()> run) { succeeded_ = std::move(run); }
  /// From here on any thread may look. `whole`: everything was issued; else what was issued goes on
  /// and the operation fails. A state without works is complete. `on_stream`: it was put on the
  /// current stream of its device.
  void publish(bool whole, bool on_stream);

  // ---- afterwards, any thread

  /// Makes the current stream wait, or without streams, or with a `timeout`, the host.
  void synchronize(std::chrono::milliseconds timeout);
  /// Waits on the host for the operation and raises its failure. When `timeout` is positive and
  /// passes first, the operation fails with a time-out; an interrupt ends the wait alone.
  void wait(std::chrono::milliseconds timeout);
  /// Looks, without blocking.
  bool is_complete();
  /// Null unless the operation is known to have failed.
  std::exception_ptr failure() const;
  bool has_device_streams() const { return has_streams(device_); }
  /// Whether tensors are held until the operation is complete.
  bool holds() const { return !joined_.load(std::memory_order_acquire) && !settled(); }
  /// FC_IN_PROGRESS, FC_OK, or the status of the failure.
  fc_status status();
  /// Whether the engine works at a part of it, or has; false before it is issued.
  bool has_begun() const;
  /// Ends pending point-to-point operations.
  void cancel();
  /// Makes the engine's completion reach `settle`, so that nobody has to wait.
  void watch();
  c10::intrusive_ptr<c10::ivalue::Future> future();
  /// Completed with a `WorkResult` when the operation has ended on the device.
  c10::intrusive_ptr<c10::ivalue::Future> result_future();

  const std::vector<at::Tensor>& outputs() const { return outputs_; }
  int source() const { return source_.load(); }
  uint64_t sequence() const { return sequence_; }
  uint64_t key() const { return key_; }
  std::chrono::milliseconds timeout() const;
  /// Milliseconds from the call to the end; raises when that is not known.
  float duration() const;

 private:
  enum class Phase { kBuilding, kPending, kSettling, kSettled };

  static void on_complete(void* watch, fc_status status, const char* message);
  void keep_for_graph();
  void join_current_stream();
  void complete_on_stream(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  bool settled() const { return phase_.load(std::memory_order_acquire) == Phase::kSettled; }
  void require_published() const;
  void wait_for_parts(std::chrono::milliseconds timeout);
  void take_time();
  void report();
  void settle();
  void complete_future();

  const CommHandle comm_;  // works outlive the last reference of a user to the communicator
  const at::Device device_;
  const Site site_;
  std::chrono::milliseconds timeout_;
  const uint64_t key_;
  uint64_t sequence_ = 0;
  bool whole_ = false;
  std::shared_ptr<Completions> reports_;
  c10d::OpType type_ = c10d::OpType::UNKNOWN;
  bool timed_ = false;
  std::chrono::steady_clock::time_point began_;
  std::atomic<int64_t> took_ns_{-1};
  bool captured_ = false;
  // The stream that the operation itself is on, where it is the caller's.
  std::optional<c10::Stream> on_stream_;

  Holdings holdings_;
  std::vector<at::Tensor> outputs_;
  std::vector<WorkHandle> parts_;
  std::function<void()> at_end_;
  std::function<void()> succeeded_;

  std::atomic<Phase> phase_{Phase::kBuilding};
  // Written by the one that settles, read once the phase says so.
  std::exception_ptr error_;
  fc_status status_ = FC_IN_PROGRESS;

  // A stream waits for the operation: what it wrote has been copied back, and its tensors are let
  // go.
  std::atomic<bool> joined_{false};
  std::mutex joining_;

  std::atomic<int> source_{-1};
  std::atomic<bool> watched_{false};

  std::mutex mutex_;  // of the members below; nothing is called under it
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::intrusive_ptr<c10::ivalue::Future> result_future_;
  bool future_completed_ = false;
};

/// What both faces hand out.
class BaseWork : public c10d::Work {
 public:
  using c10d::Work::Work;
  /// FC_IN_PROGRESS, FC_OK, or the status of the failure.
  virtual fc_status status() = 0;
  /// False while it waits for what was issued before it; true where nobody can tell.
  virtual bool has_begun() { return true; }
  /// Blocks the host, whatever the device.
  virtual void wait_blocking() = 0;
};

/// An operation of the engine.
class CommWork final : public BaseWork {
 public:
  CommWork(int rank, c10d::OpType type, std::shared_ptr<OperationState> state)
      : BaseWork(rank, type), state_(std::move(state)) {}
  /// A work that nobody waited for goes on, with its tensors.
  ~CommWork() override;

  bool isCompleted() override { return state_->is_complete(); }
  bool isSuccess() const override { return state_->status() == FC_OK; }
  std::exception_ptr exception() const override { return state_->failure(); }
  int sourceRank() const override { return state_->source(); }
  std::vector<at::Tensor> result() override { return state_->outputs(); }
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void wait_blocking() override { state_->wait(kNoTimeout); }
  void abort() override { state_->cancel(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return state_->future(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override { return state_->duration(); }
  uint64_t getSequencenumber() const override { return state_->sequence(); }
#if TORCH_VERSION_MINOR >= 14
  std::chrono::milliseconds getTimeout() const override { return state_->timeout(); }
#endif
#if TORCH_VERSION_MINOR >= 15
  uint64_t getCompletionKey() const override { return state_->key(); }
#endif

  fc_status status() override { return state_->status(); }
  bool has_begun() override { return state_->has_begun(); }

 private:
  std::shared_ptr<OperationState> state_;
};

using WorkPtr = c10::intrusive_ptr<BaseWork>;

}  // namespace ferrocomm
