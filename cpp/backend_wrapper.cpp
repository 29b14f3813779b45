// c10d's arguments into TorchComm's, and back. Must not know how an operation is issued.

#include "backend_wrapper.hpp"

#include <algorithm>

#include "mem_allocator.hpp"
#include "reconfigure.hpp"
#include "window.hpp"

namespace ferrocomm {

BackendWrapper::BackendWrapper(std::shared_ptr<TorchComm> comm, std::string name)
    : c10d::Backend(comm->rank(), comm->size()),
      comm_(std::move(comm)),
      options_(c10::make_intrusive<BackendOptions>(comm_->backend(), comm_->timeout())),
      name_(name.empty() ? comm_->backend() : std::move(name)) {
  options_->group_name = comm_->name();
}

void BackendWrapper::setTimeout(std::chrono::milliseconds timeout) {
  comm_->set_timeout(timeout);
  options_->timeout = within_limits(timeout);
}

c10d::ErrorType BackendWrapper::getError() {
  return comm_->state() == "failed" ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

c10::intrusive_ptr<c10d::Backend> BackendWrapper::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const bool aside = std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end();
  if (aside && stood_aside_for(store)) return nullptr;
  const std::string name = opts ? opts->group_name : std::string();
  const auto timeout = opts ? opts->timeout : comm_->timeout();
  auto part = comm_->split(ranks, name == comm_->name() ? std::string() : name, timeout);
  if (!part) return nullptr;
  return c10::make_intrusive<BackendWrapper>(std::move(part), name_);
}

// torch asks a rank that stays outside once for each device type that this backend serves, and a
// member once. A split is counted alike on all ranks; the calls of one have their store in common.
bool BackendWrapper::stood_aside_for(const c10::intrusive_ptr<c10d::Store>& store) {
  std::lock_guard<std::mutex> lock(aside_mutex_);
  // A weak reference keeps the place taken, so no later store can be there.
  const bool again = store && aside_for_ && aside_for_->_unsafe_get_target() == store.get();
  aside_for_.reset();
  if (store) aside_for_.emplace(store);
  return again;
}

c10::intrusive_ptr<c10d::Backend> BackendWrapper::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  constexpr int kAbortFirst = 1;
  const std::string name = opts ? opts->group_name : std::string();
  return c10::make_intrusive<BackendWrapper>(
      comm_->shrink(ranks_to_exclude, (flags & kAbortFirst) != 0,
                    name == comm_->name() ? std::string() : name,
                    opts ? opts->timeout : comm_->timeout()),
      name_);
}

void BackendWrapper::unsupported(const char* method) const {
  throw_status(FC_ERR_UNSUPPORTED, "not supported: backend " + comm_->backend() + " has no " +
                                       method + to_string(comm_->site(method)));
}

c10::intrusive_ptr<c10d::Backend> BackendWrapper::merge(
    const c10::intrusive_ptr<c10d::Store>&, const c10::intrusive_ptr<c10d::Backend::Options>&,
    const int&, const int&) {
  unsupported("merge");
}

#if TORCH_VERSION_MINOR >= 15
void BackendWrapper::startTimeEstimate() { unsupported("startTimeEstimate"); }
float BackendWrapper::endTimeEstimate() { unsupported("endTimeEstimate"); }
#endif

// ---- memory

bool BackendWrapper::supportsTensorAlloc(c10::DeviceIndex device) {
  if (comm_->foreign()) return false;
  return comm_->device().is_cpu() ? device <= 0 : device == comm_->device().index();
}

std::shared_ptr<c10::Allocator> BackendWrapper::getMemAllocator() {
  if (comm_->foreign()) unsupported("getMemAllocator");
  return comm_->device().is_cpu() ? mem_allocator(comm_->backend()) : pool_allocator();
}

at::Tensor BackendWrapper::allocateTensor(long size, at::TensorOptions options) {
  if (comm_->foreign()) unsupported("allocateTensor");
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  if (comm_->device().is_cpu()) return mem_allocator(comm_->backend())->empty({size}, dtype);
  return empty_in_pool(size, dtype, comm_->device());
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
c10d::ReconfigureHandle BackendWrapper::get_reconfigure_handle() const {
  return init_handle(*comm_);
}

BackendWrapper::BaseWork BackendWrapper::reconfigure(const c10d::ReconfigureOptions& opts) {
  // The work may outlive this object.
  c10::weak_intrusive_ptr<BackendWrapper> weak(
      c10::intrusive_ptr<BackendWrapper>::reclaim_copy(this));
  const auto configured = [weak] {
    const auto self = weak.lock();
    if (!self) return;
    self->rank_ = self->comm_->rank();
    self->size_ = self->comm_->size();
  };
  return ferrocomm::reconfigure(*comm_, {opts.uuid, opts.handles, opts.timeout, opts.hints},
                                configured);
}
#endif

#ifdef C10D_BACKEND_HAS_WINDOW
c10::intrusive_ptr<c10d::Window> BackendWrapper::new_window(
    const std::optional<at::Tensor>& tensor) {
  return c10::make_intrusive<C10dWindow>(
      ferrocomm::new_window(comm_, tensor, std::chrono::milliseconds(0)));
}
#endif

// ---- hooks

template <typename Add, typename List>
void BackendWrapper::keep_hook(HookIds& ids, List& list, int64_t hook_id, Add&& add) {
  drop_hook(ids, list, hook_id);
  const uint64_t own = add();
  std::lock_guard<std::mutex> lock(hooks_mutex_);
  ids[hook_id] = own;
}

template <typename List>
void BackendWrapper::drop_hook(HookIds& ids, List& list, int64_t hook_id) {
  uint64_t own = 0;
  {
    std::lock_guard<std::mutex> lock(hooks_mutex_);
    const auto found = ids.find(hook_id);
    if (found == ids.end()) return;
    own = found->second;
    ids.erase(found);
  }
  list.remove(own);
}

void BackendWrapper::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  if (comm_->foreign()) unsupported("register_on_completion_hook");
  TORCH_CHECK(!hasHooks(), "backend ", getBackendName(), " has an onCompletion hook already");
  onCompletionHook_ = std::move(hook);
  comm_->hooks()->completions.add([call = onCompletionHook_](const Completion& over) {
    call(std::make_shared<c10d::WorkInfo>(over.type, over.sequence, over.began, over.ended,
                                          over.ended - over.began));
  });
}

#if TORCH_VERSION_MINOR >= 14
void BackendWrapper::registerAbortHook(int64_t hook_id, c10d::AbortHook hook) {
  keep_hook(abort_hooks_, comm_->hooks()->abort, hook_id,
            [&] { return comm_->add_abort_hook(std::move(hook)); });
}

void BackendWrapper::unregisterAbortHook(int64_t hook_id) {
  drop_hook(abort_hooks_, comm_->hooks()->abort, hook_id);
}
#endif

#if TORCH_VERSION_MINOR >= 15
void BackendWrapper::registerCompletionHook(int64_t hook_id, c10d::CompletionHook hook) {
  if (comm_->foreign()) unsupported("register_completion_hook");
  keep_hook(completion_hooks_, comm_->hooks()->completions, hook_id, [&] {
    return comm_->hooks()->completions.add([hook = std::move(hook)](const Completion& over) {
      hook({over.key, std::nullopt});  // operations are not timed
    });
  });
}

void BackendWrapper::unregisterCompletionHook(int64_t hook_id) {
  drop_hook(completion_hooks_, comm_->hooks()->completions, hook_id);
}
#endif

// ---- from torch's arguments to ours

template <typename Opts>
CallOptions BackendWrapper::call_of(const Opts& opts) {
  CallOptions call = own_call();
  call.timeout = own_limit("call", opts.timeout);
  call.async = opts.asyncOp;
  if (auto batch = coalescing()) {
    call.async = true;
    call.group = batch->group();
  }
  return call;
}

std::chrono::milliseconds BackendWrapper::own_limit(const char* operation,
                                                    std::chrono::milliseconds timeout) const {
  if (timeout == c10d::kUnsetTimeout) return kNoTimeout;
  if (timeout.count() < 0) throw_not_positive(comm_->site(operation), timeout);
  return timeout;
}

CallOptions BackendWrapper::own_call() const {
  CallOptions call;
  call.backend = this;
  return call;
}

const at::Tensor& BackendWrapper::only(const char* operation, const char* argument,
                                       const Tensors& tensors) {
  if (tensors.size() == 1) return tensors.front();
  throw_invalid(comm_->site(operation), {std::string(argument) + " has the wrong length",
                                         std::to_string(tensors.size()) + " tensors", "1", ""});
}

const Tensors& BackendWrapper::only_list(const char* operation, const char* argument,
                                         const TensorLists& lists) {
  static const Tensors none;
  if (lists.empty()) return none;  // what a rank that is not the root passes, in one of two forms
  if (lists.size() == 1) return lists.front();
  throw_invalid(comm_->site(operation), {std::string(argument) + " has the wrong length",
                                         std::to_string(lists.size()) + " lists", "1", ""});
}

uint32_t BackendWrapper::checked_tag(const char* operation, int tag) {
  if (tag >= 0) return static_cast<uint32_t>(tag);
  throw_invalid(comm_->site(operation),
                {"the tag is negative", std::to_string(tag), "0 or more", ""});
}

// ---- collectives

BackendWrapper::BaseWork BackendWrapper::broadcast(Tensors& tensors,
                                                   const c10d::BroadcastOptions& opts) {
  return comm_->broadcast(only("broadcast", "tensor list", tensors),
                          static_cast<int>(opts.rootRank), call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::allreduce(Tensors& tensors,
                                                   const c10d::AllreduceOptions& opts) {
  // torch calls this one for sparse tensors as well.
  if (only("all_reduce", "tensor list", tensors).is_sparse()) {
    return allreduce_sparse(tensors, opts);
  }
  return comm_->all_reduce(tensors, opts.reduceOp, call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::allreduce_sparse(Tensors& tensors,
                                                          const c10d::AllreduceOptions& opts) {
  return comm_->all_reduce_sparse(only("all_reduce", "tensor list", tensors), opts.reduceOp,
                                  call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return comm_->all_reduce(tensors, opts.reduceOp, call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return comm_->reduce(only("reduce", "tensor list", tensors), static_cast<int>(opts.rootRank),
                       opts.reduceOp, call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::allgather(TensorLists& outputs, Tensors& inputs,
                                                   const c10d::AllgatherOptions& opts) {
  return comm_->all_gather(only_list("all_gather", "output list", outputs),
                           only("all_gather", "input list", inputs), call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                         const c10d::AllgatherOptions& opts) {
  return comm_->all_gather_single({output}, {input}, call_of(opts));
}

// `outputs[r][i]` receives rank r's `inputs[i]`.
BackendWrapper::BaseWork BackendWrapper::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                             const c10d::AllgatherOptions& opts) {
  const auto site = comm_->site("all_gather_coalesced");
  for (const auto& list : outputs) {
    if (list.size() != inputs.size()) {
      throw_invalid(site, {"an output list has the wrong length", std::to_string(list.size()),
                           std::to_string(inputs.size()), ""});
    }
  }
  Operation operation(*comm_, c10d::OpType::ALLGATHER_COALESCED, site.operation, call_of(opts));
  operation.begin(inputs);
  CallOptions call = call_of(opts);
  call.async = true;
  call.group = operation.state();
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors row;
    for (const auto& list : outputs) row.push_back(list[i]);
    comm_->all_gather(row, inputs[i], call);
  }
  return operation.finish();
}

BackendWrapper::BaseWork BackendWrapper::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return comm_->all_gather_single(outputs, inputs, call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::gather(TensorLists& outputs, Tensors& inputs,
                                                const c10d::GatherOptions& opts) {
  return comm_->gather(only_list("gather", "output list", outputs),
                       only("gather", "input list", inputs), static_cast<int>(opts.rootRank),
                       call_of(opts));
}

#if TORCH_VERSION_MINOR >= 14
BackendWrapper::BaseWork BackendWrapper::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                            const c10d::GatherOptions& opts) {
  return comm_->gather_single(output, input, static_cast<int>(opts.rootRank), call_of(opts));
}
#endif

BackendWrapper::BaseWork BackendWrapper::scatter(Tensors& outputs, TensorLists& inputs,
                                                 const c10d::ScatterOptions& opts) {
  return comm_->scatter(only("scatter", "output list", outputs),
                        only_list("scatter", "input list", inputs), static_cast<int>(opts.rootRank),
                        call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                        const c10d::ReduceScatterOptions& opts) {
  return comm_->reduce_scatter(only("reduce_scatter", "output list", outputs),
                               only_list("reduce_scatter", "input list", inputs), opts.reduceOp,
                               call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  return comm_->reduce_scatter_single({output}, {input}, opts.reduceOp, call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  return comm_->reduce_scatter_single(outputs, inputs, opts.reduceOp, call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                       Splits& output_splits, Splits& input_splits,
                                                       const c10d::AllToAllOptions& opts) {
  return comm_->all_to_all_single(output, input, output_splits, input_splits, call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::alltoall(Tensors& outputs, Tensors& inputs,
                                                  const c10d::AllToAllOptions& opts) {
  return comm_->all_to_all(outputs, inputs, call_of(opts));
}

BackendWrapper::BaseWork BackendWrapper::barrier(const c10d::BarrierOptions& opts) {
  return comm_->barrier(call_of(opts));
}

void BackendWrapper::monitoredBarrier(const c10d::BarrierOptions& opts, bool name_all) {
  if (!comm_->device().is_cpu()) {
    throw_status(FC_ERR_UNSUPPORTED, "not supported: monitored_barrier is for CPU groups" +
                                         to_string(comm_->site("monitored_barrier")) +
                                         "; use a gloo group for it");
  }
  const bool unset = opts.timeout == c10d::kUnsetTimeout;
  const auto limit = unset ? comm_->timeout() : own_limit("monitored_barrier", opts.timeout);
  monitored_barrier(*comm_, limit, name_all, monitored_barriers_++);
}

// ---- point to point; always asynchronous, as torch waits for what it gets

BackendWrapper::BaseWork BackendWrapper::send(Tensors& tensors, int peer, int tag) {
  const auto& tensor = only("send", "tensor list", tensors);
  const uint32_t checked = checked_tag("send", tag);
  if (auto batch = coalescing()) return batch->send(tensor, peer, checked);
  return comm_->send(tensor, peer, checked, own_call());
}

BackendWrapper::BaseWork BackendWrapper::recv(Tensors& tensors, int peer, int tag) {
  const auto& tensor = only("recv", "tensor list", tensors);
  const uint32_t checked = checked_tag("recv", tag);
  // The engine would read -1 as "any source", which torch has a call of its own for.
  if (peer < 0) {
    throw_invalid(comm_->site("recv"), {"the source is no rank", std::to_string(peer),
                                        "0 to " + std::to_string(getSize() - 1), ""});
  }
  if (auto batch = coalescing()) return batch->recv(tensor, peer, checked);
  return comm_->recv(tensor, peer, checked, own_call());
}

BackendWrapper::BaseWork BackendWrapper::recvAnysource(Tensors& tensors, int tag) {
  const auto& tensor = only("recv", "tensor list", tensors);
  const uint32_t checked = checked_tag("recv", tag);
  if (auto batch = coalescing()) return batch->recv(tensor, FC_ANY_SOURCE, checked);
  return comm_->recv(tensor, FC_ANY_SOURCE, checked, own_call());
}

// ---- coalescing: sends and receives become one batch, collectives join its work

std::shared_ptr<Batch> BackendWrapper::coalescing() {
  if (coalescing_count_.load(std::memory_order_relaxed) == 0) return nullptr;
  std::lock_guard<std::mutex> lock(coalescing_mutex_);
  const auto found = coalescing_.find(std::this_thread::get_id());
  return found == coalescing_.end() ? nullptr : found->second;
}

void BackendWrapper::startCoalescing() {
  if (comm_->foreign()) {
    throw_status(FC_ERR_UNSUPPORTED, "not supported: coalescing on a backend written in Python" +
                                         to_string(comm_->site("start_coalescing")));
  }
  auto batch = std::make_shared<Batch>(comm_);
  std::lock_guard<std::mutex> lock(coalescing_mutex_);
  // A group that an exception kept from its end is given up; `batch` takes it out of the lock.
  std::swap(coalescing_[std::this_thread::get_id()], batch);
  coalescing_count_ = static_cast<int>(coalescing_.size());
}

BackendWrapper::BaseWork BackendWrapper::endCoalescing() {
  auto batch = coalescing();
  if (!batch) {
    throw_status(FC_ERR_STATE, "wrong state: no coalescing was started on this thread" +
                                   to_string(comm_->site("end_coalescing")));
  }
  {
    std::lock_guard<std::mutex> lock(coalescing_mutex_);
    coalescing_.erase(std::this_thread::get_id());
    coalescing_count_ = static_cast<int>(coalescing_.size());
  }
  return batch->issue(own_call());
}

}  // namespace ferrocomm
