// Windows as torch sees them: a tensor of every rank that the others write to and read from.
//
// Both faces stand on it: the Python class and c10d's. It checks what only tensors know; ranks,
// bounds and states are the engine's. Must not know how the memory of others is reached.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm.hpp"

#ifdef C10D_BACKEND_HAS_WINDOW
#include <torch/csrc/distributed/c10d/Window.hpp>
#endif

namespace ferrocomm {

using WindowHandle = std::shared_ptr<fc_window>;

class Window : public std::enable_shared_from_this<Window> {
 public:
  explicit Window(std::shared_ptr<TorchComm> comm) : comm_(std::move(comm)) {}
  /// Without `deregister` the others may write to the memory until the communicator has ended: it
  /// is kept until then.
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  const std::shared_ptr<TorchComm>& comm() const { return comm_; }

  /// Collective. The tensor is contiguous; `owning` keeps its memory until `deregister`.
  /// The hint `share_memory` moves a tensor on the host to memory that the ranks of a machine
  /// share.
  void register_tensor(const at::Tensor& tensor, bool owning, std::chrono::milliseconds timeout,
                       const HintMap& hints = {});
  /// Collective; returns when nobody uses the memory any more.
  void deregister_tensor(std::chrono::milliseconds timeout);

  // Offsets are elements of the tensor's own dtype, from the beginning of the other's window.
  WorkPtr put(const at::Tensor& tensor, int dst, int64_t offset, bool with_signal,
              const CallOptions& call);
  WorkPtr get(const at::Tensor& tensor, int src, int64_t offset, const CallOptions& call);
  WorkPtr signal(int dst, const CallOptions& call);
  WorkPtr wait_signal(int src, const CallOptions& call);

  /// The memory of that rank's window itself: of the own shape where it is as long, else flat.
  at::Tensor map_remote_tensor(int rank);
  bool is_unified(int rank);
  /// Bytes of that rank's window.
  size_t bytes(int rank);

  /// The registered tensor, which may be gone when it is not owned.
  at::Tensor tensor();
  at::ScalarType dtype();
  std::vector<int64_t> shape();
  at::Device device() const { return comm_->device(); }
  /// Elements.
  int64_t numel();

 private:
  // What is registered.
  struct Registered {
    WindowHandle handle;
    at::Tensor owned;
    std::optional<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>> watched;
    void* data = nullptr;
    // where the tensor lay before it was moved: somebody else may still use that
    at::DataPtr before;
    std::vector<int64_t> sizes;
    at::TensorOptions options;
    size_t item_bytes = 1;
  };

  std::shared_ptr<Registered> registered(const char* operation);
  size_t offset_of(const Site& site, const Buffer& buffer, int64_t offset) const;
  void require_dtype(const Operation& operation, const Registered& own, const at::Tensor& tensor);

  const std::shared_ptr<TorchComm> comm_;
  std::mutex mutex_;  // of the pointer alone; nothing is called under it
  std::shared_ptr<Registered> registered_;
  bool registering_ = false;
};

#ifdef C10D_BACKEND_HAS_WINDOW
/// torch's own interface of a window.
class C10dWindow final : public c10d::Window {
 public:
  explicit C10dWindow(std::shared_ptr<ferrocomm::Window> window) : window_(std::move(window)) {}

  void tensor_register(const at::Tensor& tensor, bool owning) override;
  void tensor_deregister() override;
  c10::intrusive_ptr<c10d::Work> put(const at::Tensor& tensor, int64_t dst, int64_t offset,
                                     bool async_op, const c10d::PutOptions& opts) override;
  at::Tensor map_remote_tensor(int64_t rank) override;
  c10::intrusive_ptr<c10d::Work> signal(int64_t peer, bool async_op,
                                        const c10d::SignalOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> wait_signal(int64_t peer, bool async_op,
                                             const c10d::WaitSignalOptions& opts) override;
  c10d::WindowAttr get_attr(int64_t peer) override;

 private:
  const std::shared_ptr<ferrocomm::Window> window_;
};
#endif

/// A window on `comm`, of `tensor` where there is one: then it is collective. Runs the hooks, which
/// see it as Python does. `timeout` zero: the communicator's.
std::shared_ptr<Window> new_window(const std::shared_ptr<TorchComm>& comm,
                                   const std::optional<at::Tensor>& tensor,
                                   std::chrono::milliseconds timeout, const HintMap& hints = {});

}  // namespace ferrocomm
