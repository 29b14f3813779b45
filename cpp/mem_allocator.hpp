// Tensors in memory that the ranks of a machine can read where it lies. Must not know communicators
// or Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <memory>
#include <string>

namespace ferrocomm {

/// torch's allocator over `fc_mem_alloc`. Lives as long as the process, because storages point to
/// it.
class MemAllocator final : public c10::Allocator {
 public:
  explicit MemAllocator(std::string backend) : backend_(std::move(backend)) {}

  /// Raises DistBackendError when memory is short.
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, size_t bytes) const override;

  /// A tensor whose storage lies there and is freed with it.
  at::Tensor empty(at::IntArrayRef size, at::ScalarType dtype);

  const std::string& backend() const { return backend_; }

 private:
  const std::string backend_;
};

/// Moves the storage of a tensor on the host to memory of `allocator`, unless it lies there. All
/// its views move along; what else points to the memory, such as an array of numpy's, stays behind
/// with what is returned.
at::DataPtr share_memory(const at::Tensor& tensor, MemAllocator& allocator);

/// The allocator of `backend`, made on first use.
std::shared_ptr<MemAllocator> mem_allocator(const std::string& backend);

/// What `torch.cuda.MemPool` takes NCCL's memory from; torch's own kind of allocator, made by
/// Python.
std::shared_ptr<c10::Allocator> pool_allocator();
/// A tensor in memory of a pool over `pool_allocator`; the pool is kept.
at::Tensor empty_in_pool(int64_t size, at::ScalarType dtype, at::Device device);

}  // namespace ferrocomm
