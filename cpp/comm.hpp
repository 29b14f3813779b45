// The communicator as torch sees it: operations on tensors, each returning a work.
//
// Both faces stand on it: the Python class of the same name and the c10d backend. It checks what
// only tensors know (device, dtype, layout, counts); ranks, roots and states are the engine's. Must
// not know how data moves.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>
#include <vector>

#include "hooks.hpp"
#include "operation.hpp"
#include "reduce_op.hpp"
#include "timeout_extensions.hpp"

namespace ferrocomm {

using Tensors = std::vector<at::Tensor>;
using Splits = std::vector<int64_t>;

/// How a communicator is made; the same on every rank but for `rank`.
struct CommSpec {
  /// as the user named it
  std::string backend;
  at::Device device = at::kCPU;
  std::string name;
  int rank = 0;
  int size = 1;
  /// of joining and of every operation; zero: the engine's default
  std::chrono::milliseconds timeout{0};
  HintMap hints;
};

class TorchComm : public std::enable_shared_from_this<TorchComm> {
 public:
  /// Collective: returns when every rank has joined.
  static std::shared_ptr<TorchComm> create(const CommSpec& spec,
                                           const c10::intrusive_ptr<c10d::Store>& store);
  /// Whether the members of a communicator are settled when it is made.
  enum class Members { kFixed, kChanging };
  TorchComm(CommHandle handle, CommSpec spec, Members members = Members::kFixed);
  /// Served by `foreign` alone.
  TorchComm(std::shared_ptr<ForeignBackend> foreign, CommSpec spec);
  TorchComm(const TorchComm&) = delete;
  TorchComm& operator=(const TorchComm&) = delete;

  int rank() const { return is_reconfigurable() ? fc_comm_rank(handle()) : rank_; }
  int size() const { return is_reconfigurable() ? fc_comm_size(handle()) : size_; }
  bool is_reconfigurable() const { return members_ == Members::kChanging; }
  const std::string& name() const { return name_; }
  const std::string& backend() const { return backend_; }
  at::Device device() const { return device_; }
  fc_comm* handle() const { return handle_.get(); }
  const CommHandle& shared_handle() const { return handle_; }
  /// Valid as long as the handle, or as this where there is none.
  Site site(const char* operation) const {
    const char* name = fc_comm_name(handle());
    return {name == nullptr ? std::string_view(name_) : std::string_view(name), rank(), operation};
  }
  const std::shared_ptr<Hooks>& hooks() const { return hooks_; }
  /// The backend that serves in the engine's place; null where there is none.
  const std::shared_ptr<ForeignBackend>& foreign() const { return foreign_; }
  /// Raises NotImplementedError where it is not the engine that serves.
  void require_engine(const char* operation) const;
  /// Registers a hook that runs before the communicator is given up.
  uint64_t add_abort_hook(Hooks::Abort hook);

  /// "ready", "failed", "aborted", "finalized", or "unconfigured" without members
  std::string state() const;
  /// text of the failure, empty when there is none
  std::string error() const;
  /// JSON of fc_comm_info
  std::string info() const;
  uint64_t sequence() const;
  std::chrono::milliseconds timeout() const;
  void set_timeout(std::chrono::milliseconds timeout);
  HintMap hints() const;
  void set_hints(HintMap hints);
  /// Prepares a tensor's memory for operations and keeps it until `tensor_deregister`.
  void tensor_register(const at::Tensor& tensor);
  void tensor_deregister(const at::Tensor& tensor);
  /// From now on every work knows how long it took.
  void time_operations() {
    if (!timed_.exchange(true)) hooks_->watchers.come();
  }
  bool times_operations() const { return timed_.load(std::memory_order_relaxed); }
  TimeoutExtensions& extensions() const { return extensions_; }
  /// Waits until what was started asynchronously is over, whatever came of it, and completion hooks
  /// have been told.
  void wait_pending();
  /// Whether some ranks can go on without the others: the communicator was made over a store.
  bool can_shrink() const;
  /// Another communicator, of all ranks but the `excluded` ones, which do not call this and may be
  /// gone. This one may have failed. `abort_first`: it is given up before, with what is pending.
  std::shared_ptr<TorchComm> shrink(const std::vector<int64_t>& excluded, bool abort_first,
                                    const std::string& name, std::chrono::milliseconds timeout);
  /// Waits for what is pending. May be repeated, and may follow an abort.
  void finalize();
  void abort();
  /// Collective over this communicator; null for a rank outside `ranks`. An empty name is made up.
  /// `hints` come on top of those of this one.
  std::shared_ptr<TorchComm> split(const std::vector<int>& ranks, const std::string& name,
                                   std::chrono::milliseconds timeout, const HintMap& hints = {});

  /// Prepares memory on the communicator's device. `owner` keeps it there, and is held until the
  /// memory is deregistered or the communicator ends. Memory that is registered already stays as it
  /// is.
  void register_memory(uintptr_t address, size_t bytes, std::shared_ptr<void> owner);
  /// Deregisters all memory for which `belongs` holds of its owner; gives how many there were.
  size_t deregister_memory(const std::function<bool(void* owner)>& belongs);
  /// Gives up what device memory the communicator can take again, and takes it; collective.
  void suspend();
  void resume();
  /// bytes under the names of torch's nccl backend: suspend, suspended, persist, total
  std::unordered_map<std::string, uint64_t> memory_stats() const;
  /// The `ncclComm_t` as a number; borrowed.
  uintptr_t native() const;

  // Collectives. Shapes: one tensor per rank in a list; `_single` takes all ranks' parts in one
  // tensor, in rank order. Lists that only the root needs may be empty elsewhere.
  WorkPtr broadcast(const at::Tensor& tensor, int root, const CallOptions& call);
  WorkPtr all_reduce(const Tensors& tensors, const c10d::ReduceOp& op, const CallOptions& call);
  /// Of COO tensors; sums only. Over when the call returns: how much each rank has must be known
  /// before anything can be sent.
  WorkPtr all_reduce_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op,
                            const CallOptions& call);
  WorkPtr reduce(const at::Tensor& tensor, int root, const c10d::ReduceOp& op,
                 const CallOptions& call);
  WorkPtr all_gather(const Tensors& outputs, const at::Tensor& input, const CallOptions& call);
  WorkPtr all_gather_single(const Tensors& outputs, const Tensors& inputs, const CallOptions& call);
  WorkPtr reduce_scatter(const at::Tensor& output, const Tensors& inputs, const c10d::ReduceOp& op,
                         const CallOptions& call);
  WorkPtr reduce_scatter_single(const Tensors& outputs, const Tensors& inputs,
                                const c10d::ReduceOp& op, const CallOptions& call);
  WorkPtr all_to_all(const Tensors& outputs, const Tensors& inputs, const CallOptions& call);
  /// Empty splits mean equal parts.
  WorkPtr all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                            const Splits& output_splits, const Splits& input_splits,
                            const CallOptions& call);
  WorkPtr gather(const Tensors& outputs, const at::Tensor& input, int root,
                 const CallOptions& call);
  WorkPtr gather_single(const at::Tensor& output, const at::Tensor& input, int root,
                        const CallOptions& call);
  WorkPtr scatter(const at::Tensor& output, const Tensors& inputs, int root,
                  const CallOptions& call);
  WorkPtr barrier(const CallOptions& call);

  /// Keeps a tensor that other ranks may still write to for as long as the communicator.
  void keep(const at::Tensor& tensor);

  WorkPtr send(const at::Tensor& tensor, int peer, uint32_t tag, const CallOptions& call);
  /// `peer` may be FC_ANY_SOURCE.
  WorkPtr recv(const at::Tensor& tensor, int peer, uint32_t tag, const CallOptions& call);

 private:
  /// Lets go of what registered memory belongs to, once the engine knows none of it any more.
  void forget_memory();

  // What keeps registered memory: the tensor that was registered, or else the memory's owner.
  struct Registered {
    at::Tensor tensor;
    std::shared_ptr<void> owner;
  };
  // First, so that it goes last: memory stays as long as it is registered. By address.
  std::unordered_map<uintptr_t, Registered> registered_;
  std::mutex memory_mutex_;  // of what is registered; nobody wants the GIL under it
  void let_go();
  c10::intrusive_ptr<c10d::Store> store() const;
  std::shared_ptr<TorchComm> split_engine(const std::vector<int>& ranks, const std::string& name,
                                          std::chrono::milliseconds timeout, HintMap hints);

  const CommHandle handle_;
  const std::shared_ptr<ForeignBackend> foreign_;
  const std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
  std::once_flag watches_failures_;
  const std::string backend_;
  const at::Device device_;
  const std::string name_;
  const Members members_;
  // When it was made, which is for ever where the members are fixed.
  const int rank_;
  const int size_;
  std::atomic<uint64_t> splits_{0};
  std::atomic<uint64_t> shrinks_{0};
  std::mutex kept_mutex_;
  Tensors kept_;

  mutable std::mutex mutex_;  // of the members below; nothing is called under it
  // Where its ranks met, or those of what it was split from; until it is finalized.
  c10::intrusive_ptr<c10d::Store> store_;
  HintMap hints_;
  std::atomic<bool> timed_{false};
  mutable TimeoutExtensions extensions_{hooks_->watchers};
};

template <typename F>
Hooked::Hooked(const TorchComm& comm, F&& describe) {
  if (comm.hooks()->watchers.any()) [[unlikely]]
    begin(comm, list(describe()));
}

template <typename F>
Hooked::Hooked(const TorchComm& comm, const CallOptions& call, F&& describe) {
  if (!comm.hooks()->watchers.any()) [[likely]]
    return;
  if (call.inner && !comm.foreign()) return;
  begin(comm, list(describe()));
  if (comm.foreign()) serve(comm, call);
}

/// Sends and receives that are issued as one.
class Batch {
 public:
  explicit Batch(std::shared_ptr<TorchComm> comm);

  /// The returned work is the whole batch's; it can be waited for once the batch is issued. Null
  /// where a foreign backend serves.
  WorkPtr send(const at::Tensor& tensor, int peer, uint32_t tag);
  WorkPtr recv(const at::Tensor& tensor, int peer, uint32_t tag);
  /// Issues what was added; the batch is empty afterwards.
  WorkPtr issue(const CallOptions& call);
  /// Where operations that are issued meanwhile can join.
  const std::shared_ptr<OperationState>& group() const { return operation_->state(); }

 private:
  void renew();
  WorkPtr add(OpArgs part, WorkPtr work);

  const std::shared_ptr<TorchComm> comm_;
  BatchHandle handle_;
  std::unique_ptr<Operation> operation_;
  // what was added, in order
  std::vector<OpArgs> parts_;
};

/// A barrier whose rank 0 names the ranks that do not come within `timeout`: the first one, or all
/// of them with `name_all`. A time-out of zero has passed already.
/// `round` counts these barriers on the communicator.
void monitored_barrier(TorchComm& comm, std::chrono::milliseconds timeout, bool name_all,
                       uint32_t round);

/// The communicators of this process that somebody still holds.
std::vector<CommHandle> living_comms();

/// Ends every communicator of this process without waiting for peers: the interpreter goes away.
void abort_all_comms() noexcept;

}  // namespace ferrocomm
