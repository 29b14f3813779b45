// Registering, and what is done to the windows of others: checks, then one call of the C ABI each.
// Must not know how that memory is reached.

#include "window.hpp"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "mem_allocator.hpp"

namespace ferrocomm {
namespace {

WindowHandle own_window(fc_window* window) {
  return {window, [](fc_window* last) { without_gil([last] { fc_window_destroy(last); }); }};
}

// The options of a collective on a window, which has no work.
fc_op_options options_of(const TorchComm& comm, std::chrono::milliseconds timeout) {
  fc_op_options options;
  fc_op_options_init(&options);
  options.timeout_ns = to_ns(timeout);
  if (has_streams(comm.device())) {
    options.stream = driver_handle(current_stream(comm.device()));
  }
  return options;
}

int as_rank(int64_t rank) {
  // One that is no rank at all stays none.
  return rank < 0 || rank > std::numeric_limits<int>::max() ? -1 : static_cast<int>(rank);
}

[[noreturn]] void throw_not_registered(const Site& site) {
  throw_invalid(site, {"the window has no tensor", "", "a registered tensor",
                       "call tensor_register on all ranks first"});
}

}  // namespace

Window::~Window() {
  if (registered_ && registered_->owned.defined()) comm_->keep(registered_->owned);
}

std::shared_ptr<Window::Registered> Window::registered(const char* operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!registered_) throw_not_registered(comm_->site(operation));
  return registered_;
}

void Window::register_tensor(const at::Tensor& tensor, bool owning,
                             std::chrono::milliseconds timeout, const HintMap& hints) {
  const Site site = comm_->site("tensor_register");
  // The call's own wish, else that of the communicator.
  const HintMap asked = hints.count(kShareMemory) > 0 ? hints : comm_->hints();
  const bool shares = wants_shared_memory(site, asked);
  Holdings holdings;
  Stage stage(site, comm_->device(), holdings);
  if (tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_contiguous()) {
    throw_invalid(site, {"the tensor is not contiguous", "", "", "pass tensor.contiguous()"});
  }
  if (tensor.defined() && (tensor.is_conj() || tensor.is_neg())) {
    throw_invalid(site,
                  {"the tensor is a lazy view", "", "", "pass tensor.resolve_conj() or clone it"});
  }
  Buffer buffer = stage.output("tensor", tensor);
  if (shares && has_streams(comm_->device())) {
    throw_status(FC_ERR_UNSUPPORTED,
                 "not supported: tensors of this device cannot be moved to memory that is shared; "
                 "take one of get_mem_allocator" +
                     to_string(site));
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (registered_ || registering_) {
      throw_invalid(site, {"the window has a tensor already", "", "",
                           "call tensor_deregister on all ranks first"});
    }
    registering_ = true;
  }
  const auto over = c10::make_scope_exit([this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    registering_ = false;
  });
  auto fresh = std::make_shared<Registered>();
  if (shares) {
    fresh->before = share_memory(tensor, *mem_allocator(comm_->backend()));
    buffer.data = tensor.mutable_data_ptr();
  }
  fresh->watched.emplace(tensor.getIntrusivePtr());
  if (owning) fresh->owned = tensor;
  fresh->data = buffer.data;
  fresh->sizes = tensor.sizes().vec();
  fresh->options = tensor.options();
  fresh->item_bytes = static_cast<size_t>(tensor.element_size());
  fc_op_options options = options_of(*comm_, timeout);
  std::vector<fc_hint> others;  // for the engine, which names those that it does not know
  for (const auto& [key, value] : hints) {
    if (key != kShareMemory) others.push_back({key.c_str(), value.c_str()});
  }
  options.hints = others.data();
  options.hint_count = others.size();
  fc_window* window = nullptr;
  const fc_status status = without_gil([&] {
    return fc_window_create(comm_->handle(), buffer.data, buffer.count * buffer.item_bytes,
                            &options, &window);
  });
  if (status == FC_OK) {
    fresh->handle = own_window(window);
    const std::lock_guard<std::mutex> lock(mutex_);
    registered_ = std::move(fresh);
  }
  check(status);
}

void Window::deregister_tensor(std::chrono::milliseconds timeout) {
  const auto own = registered("tensor_deregister");
  const fc_op_options options = options_of(*comm_, timeout);
  const fc_status status =
      without_gil([&] { return fc_window_deregister(own->handle.get(), &options); });
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (registered_ == own) registered_.reset();
  }
  // The others may not know that it is over.
  if (status != FC_OK && own->owned.defined()) comm_->keep(own->owned);
  check(status);
}

size_t Window::offset_of(const Site& site, const Buffer& buffer, int64_t offset) const {
  if (offset < 0) {
    throw_invalid(site, {"the offset is negative", std::to_string(offset), "0 or more", ""});
  }
  const auto elements = static_cast<size_t>(offset);
  if (elements > std::numeric_limits<size_t>::max() / buffer.width) {
    throw_invalid(site, {"the offset lies beyond any window", std::to_string(offset), "", ""});
  }
  return elements * buffer.width;
}

void Window::require_dtype(const Operation& operation, const Registered& own,
                           const at::Tensor& tensor) {
  const auto window = c10::typeMetaToScalarType(own.options.dtype());
  const auto dtype = tensor.scalar_type();
  if (dtype == window || window == at::kByte) return;
  throw_invalid(operation.site(),
                {"the tensor differs in dtype from the window", c10::toString(dtype),
                 c10::toString(window), "register a uint8 tensor to move any dtype"});
}

WorkPtr Window::put(const at::Tensor& tensor, int dst, int64_t offset, bool with_signal,
                    const CallOptions& call) {
  const char* name = with_signal ? "put_signal" : "put";
  const auto own = registered(name);
  Operation operation(*comm_, c10d::OpType::UNKNOWN, name, call);
  const Buffer buffer = operation.stage().input("tensor", tensor);
  require_dtype(operation, *own, tensor);
  const size_t at = offset_of(operation.site(), buffer, offset);
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    const auto put = with_signal ? fc_window_put_signal : fc_window_put;
    return put(own->handle.get(), buffer.data, buffer.count, buffer.dtype, dst, at, options, work);
  });
  return operation.finish();
}

WorkPtr Window::get(const at::Tensor& tensor, int src, int64_t offset, const CallOptions& call) {
  const auto own = registered("get");
  Operation operation(*comm_, c10d::OpType::UNKNOWN, "get", call);
  const Buffer buffer = operation.stage().output("tensor", tensor);
  require_dtype(operation, *own, tensor);
  operation.add_output(tensor);
  const size_t at = offset_of(operation.site(), buffer, offset);
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_window_get(own->handle.get(), buffer.data, buffer.count, buffer.dtype, src, at,
                         options, work);
  });
  return operation.finish();
}

WorkPtr Window::signal(int dst, const CallOptions& call) {
  const auto own = registered("signal");
  Operation operation(*comm_, c10d::OpType::UNKNOWN, "signal", call);
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_window_signal(own->handle.get(), dst, options, work);
  });
  return operation.finish();
}

WorkPtr Window::wait_signal(int src, const CallOptions& call) {
  const auto own = registered("wait_signal");
  Operation operation(*comm_, c10d::OpType::UNKNOWN, "wait_signal", call);
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_window_wait_signal(own->handle.get(), src, options, work);
  });
  return operation.finish();
}

at::Tensor Window::map_remote_tensor(int rank) {
  const auto own = registered("map_remote_tensor");
  if (rank == comm_->rank()) return tensor();
  void* data = nullptr;
  check(fc_window_map(own->handle.get(), rank, &data));
  const size_t bytes = fc_window_bytes(own->handle.get(), rank);
  const size_t elements = bytes / own->item_bytes;
  std::vector<int64_t> sizes = own->sizes;
  if (bytes != fc_window_bytes(own->handle.get(), comm_->rank())) {
    sizes = {static_cast<int64_t>(elements)};
  }
  // The mapping lives as long as the handle, and so as long as the tensor.
  return at::from_blob(data, sizes, [handle = own->handle](void*) {}, own->options);
}

bool Window::is_unified(int rank) {
  const auto own = registered("get_attr");
  fc_window_access access = FC_WINDOW_SEPARATE;
  check(fc_window_access_of(own->handle.get(), rank, &access));
  return access == FC_WINDOW_UNIFIED;
}

size_t Window::bytes(int rank) {
  return fc_window_bytes(registered("get_size")->handle.get(), rank);
}

at::Tensor Window::tensor() {
  const auto own = registered("get_tensor");
  if (own->owned.defined()) return own->owned;
  c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> alive;
  if (own->watched) alive = own->watched->lock();
  if (!alive) {
    throw_invalid(comm_->site("get_tensor"),
                  {"the window's tensor is gone", "", "",
                   "keep it until tensor_deregister, or register it with owning=True"});
  }
  return at::Tensor(std::move(alive));
}

at::ScalarType Window::dtype() {
  return c10::typeMetaToScalarType(registered("dtype")->options.dtype());
}

std::vector<int64_t> Window::shape() { return registered("shape")->sizes; }

int64_t Window::numel() {
  int64_t elements = 1;
  for (const int64_t size : registered("get_size")->sizes) elements *= size;
  return elements;
}

#ifdef C10D_BACKEND_HAS_WINDOW

namespace {

template <typename Opts>
CallOptions call_of(const Opts& opts, bool async_op) {
  CallOptions call;
  if (opts.timeout != c10d::kUnsetTimeout) call.timeout = opts.timeout;
  call.async = async_op;
  return call;
}

constexpr std::chrono::milliseconds kOfCommunicator{0};

}  // namespace

void C10dWindow::tensor_register(const at::Tensor& tensor, bool owning) {
  window_->register_tensor(tensor, owning, kOfCommunicator);
}

void C10dWindow::tensor_deregister() { window_->deregister_tensor(kOfCommunicator); }

c10::intrusive_ptr<c10d::Work> C10dWindow::put(const at::Tensor& tensor, int64_t dst,
                                               int64_t offset, bool async_op,
                                               const c10d::PutOptions& opts) {
  return window_->put(tensor, as_rank(dst), offset, false, call_of(opts, async_op));
}

at::Tensor C10dWindow::map_remote_tensor(int64_t rank) {
  return window_->map_remote_tensor(as_rank(rank));
}

c10::intrusive_ptr<c10d::Work> C10dWindow::signal(int64_t peer, bool async_op,
                                                  const c10d::SignalOptions& opts) {
  return window_->signal(as_rank(peer), call_of(opts, async_op));
}

c10::intrusive_ptr<c10d::Work> C10dWindow::wait_signal(int64_t peer, bool async_op,
                                                       const c10d::WaitSignalOptions& opts) {
  return window_->wait_signal(as_rank(peer), call_of(opts, async_op));
}

c10d::WindowAttr C10dWindow::get_attr(int64_t peer) {
  c10d::WindowAttr attr;
  attr.access_type = window_->is_unified(as_rank(peer)) ? c10d::WindowAccessType::UNIFIED
                                                        : c10d::WindowAccessType::SEPARATE;
  return attr;
}

#endif

}  // namespace ferrocomm
