// The c10d face: torch.distributed's calls, answered by a TorchComm. Must not know Python, nor
// check what TorchComm checks.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <unordered_map>
#include <vector>

#include "comm.hpp"
#include "options.hpp"

namespace ferrocomm {

// Not `final`, and the overrides keep torch's old names (`_allgather_base`): newer torch forwards
// its new names to them, older torch knows no others.
class BackendWrapper : public c10d::Backend {
 public:
  using TensorLists = std::vector<Tensors>;
  using BaseWork = c10::intrusive_ptr<c10d::Work>;

  /// `name` is what torch hears: where it is empty, the communicator's backend.
  explicit BackendWrapper(std::shared_ptr<TorchComm> comm, std::string name = {});
  const std::shared_ptr<TorchComm>& comm() const { return comm_; }

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  bool supportsCoalescing() const override { return !comm_->foreign(); }
  uint64_t getSequenceNumberForGroup() override { return comm_->sequence(); }
  void enableCollectivesTiming() override { comm_->time_operations(); }
#if TORCH_VERSION_MINOR >= 14
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout) override {
    comm_->extensions().add(timeout);
  }
#endif
  c10d::ErrorType getError() override;
  void abort() override { comm_->abort(); }
#if TORCH_VERSION_MINOR >= 14
#if TORCH_VERSION_MINOR >= 15
  bool supportsAbortHooks() const override { return true; }
#endif
  void registerAbortHook(int64_t hook_id, c10d::AbortHook hook) override;
  void unregisterAbortHook(int64_t hook_id) override;
#endif
#if TORCH_VERSION_MINOR >= 15
  // One in Python does not say when its works are over.
  bool supportsCompletionHooks() const override { return !comm_->foreign(); }
  void registerCompletionHook(int64_t hook_id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(int64_t hook_id) override;
#endif
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override { comm_->wait_pending(); }
  void shutdown() override { comm_->finalize(); }
#if TORCH_VERSION_MINOR >= 12
  void suspend() override { comm_->suspend(); }
  void resume() override { comm_->resume(); }
  std::unordered_map<std::string, uint64_t> getMemoryStats() override {
    return comm_->memory_stats();
  }
#endif
  /// Null on a rank outside `ranks`; the store only tells one split from another.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  bool supportsShrinking() const override { return comm_->can_shrink(); }
  /// Called by the ranks that stay. `flags` 1: what is pending is given up first.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& ranks_to_exclude, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  [[noreturn]] c10::intrusive_ptr<c10d::Backend> merge(
      const c10::intrusive_ptr<c10d::Store>& store,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank,
      const int& size) override;
#if TORCH_VERSION_MINOR >= 15
  bool isInitialized() override { return comm_->state() != "unconfigured"; }
  [[noreturn]] void startTimeEstimate() override;
  [[noreturn]] float endTimeEstimate() override;
#endif

  /// Memory that the engine reads where it lies.
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return comm_->is_reconfigurable(); }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  /// Rank and size of the group change once the work is seen to have succeeded.
  BaseWork reconfigure(const c10d::ReconfigureOptions& opts) override;
#endif

  BaseWork broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  BaseWork allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  BaseWork allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  BaseWork allreduce_coalesced(Tensors& tensors,
                               const c10d::AllreduceCoalescedOptions& opts) override;
  BaseWork reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  BaseWork allgather(TensorLists& outputs, Tensors& inputs,
                     const c10d::AllgatherOptions& opts) override;
  BaseWork _allgather_base(at::Tensor& output, at::Tensor& input,
                           const c10d::AllgatherOptions& opts) override;
  BaseWork allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                               const c10d::AllgatherOptions& opts) override;
  BaseWork allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& opts) override;
  BaseWork gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
#if TORCH_VERSION_MINOR >= 14
  BaseWork gather_into_tensor(at::Tensor& output, at::Tensor& input,
                              const c10d::GatherOptions& opts) override;
#endif
  BaseWork scatter(Tensors& outputs, TensorLists& inputs,
                   const c10d::ScatterOptions& opts) override;
  BaseWork reduce_scatter(Tensors& outputs, TensorLists& inputs,
                          const c10d::ReduceScatterOptions& opts) override;
  BaseWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& opts) override;
  BaseWork reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                           const c10d::ReduceScatterOptions& opts) override;
  BaseWork alltoall_base(at::Tensor& output, at::Tensor& input, Splits& output_splits,
                         Splits& input_splits, const c10d::AllToAllOptions& opts) override;
  BaseWork alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  BaseWork send(Tensors& tensors, int peer, int tag) override;
  BaseWork recv(Tensors& tensors, int peer, int tag) override;
  BaseWork recvAnysource(Tensors& tensors, int tag) override;
  BaseWork barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool name_all) override;
#ifdef C10D_BACKEND_HAS_WINDOW
  bool supportsWindow() const override { return true; }
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override;
#endif
  void startCoalescing() override;
  BaseWork endCoalescing() override;

 private:
  template <typename Opts>
  CallOptions call_of(const Opts& opts);
  /// Of a call that has no options of torch's.
  /// The time-out that a caller of torch gave; zero: the communicator's. Raises for a negative one.
  std::chrono::milliseconds own_limit(const char* operation,
                                      std::chrono::milliseconds timeout) const;
  CallOptions own_call() const;
  std::shared_ptr<Batch> coalescing();
  const at::Tensor& only(const char* operation, const char* argument, const Tensors& tensors);
  const Tensors& only_list(const char* operation, const char* argument, const TensorLists& lists);
  [[noreturn]] void unsupported(const char* method) const;
  bool stood_aside_for(const c10::intrusive_ptr<c10d::Store>& store);
  uint32_t checked_tag(const char* operation, int tag);

  // These two members stay first, in this order. With backend type GLOO, DDP's logger casts the
  // backend to ProcessGroupGloo without a check and reads `options_->threads` behind a shared_ptr;
  // with this layout it finds a member of ours there.
  std::shared_ptr<TorchComm> comm_;
  c10::intrusive_ptr<BackendOptions> options_;

  const std::string name_;

  // From torch's numbers of hooks to the communicator's.
  using HookIds = std::unordered_map<int64_t, uint64_t>;
  // Registers with `add` and takes the place of a hook of the same number.
  template <typename Add, typename List>
  void keep_hook(HookIds& ids, List& list, int64_t hook_id, Add&& add);
  template <typename List>
  void drop_hook(HookIds& ids, List& list, int64_t hook_id);
  std::mutex hooks_mutex_;  // of the two maps; nothing is called under it
  HookIds abort_hooks_;
  HookIds completion_hooks_;

  std::atomic<uint32_t> monitored_barriers_{0};
  std::mutex aside_mutex_;
  std::optional<c10::weak_intrusive_ptr<c10d::Store>> aside_for_;
  std::mutex coalescing_mutex_;
  // Per thread: one thread's group must not catch another thread's operations.
  std::unordered_map<std::thread::id, std::shared_ptr<Batch>> coalescing_;
  std::atomic<int> coalescing_count_{0};
};

}  // namespace ferrocomm
