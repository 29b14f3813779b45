// torch's allocator over the engine's, and moving a storage into its memory. Must not know
// communicators.

#include "mem_allocator.hpp"

#include <ATen/EmptyTensor.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "errors.hpp"

namespace ferrocomm {
namespace {

// Not `check`, which may raise what Python's signals left: torch allocates without the GIL too.
void require(fc_status status) {
  if (status != FC_OK) std::rethrow_exception(to_exception(status, fc_last_error()));
}

// What one storage holds; knows its allocator, as a deleter gets nothing else.
struct Block {
  const MemAllocator& from;
  void* memory;
};

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  // Refused only in a forked child, for memory of its parent: that stays as it is.
  fc_mem_free(block->from.backend().c_str(), block->memory);
}

}  // namespace

c10::DataPtr MemAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, nullptr, at::kCPU};
  auto block = std::make_unique<Block>(Block{*this, nullptr});
  require(fc_mem_alloc(backend_.c_str(), bytes, &block->memory));
  void* const memory = block->memory;
  return {memory, block.release(), free_block, at::kCPU};
}

void MemAllocator::copy_data(void* to, const void* from, size_t bytes) const {
  default_copy_data(to, from, bytes);
}

at::Tensor MemAllocator::empty(at::IntArrayRef size, at::ScalarType dtype) {
  return at::detail::empty_generic(size, this, c10::DispatchKeySet(c10::DispatchKey::CPU), dtype,
                                   std::nullopt);
}

at::DataPtr share_memory(const at::Tensor& tensor, MemAllocator& allocator) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  // Of a copy on write, what is written to is the copy.
  const void* from = storage.mutable_data();
  if (storage.data_ptr().get_deleter() == free_block || storage.nbytes() == 0) return {};
  at::DataPtr to = allocator.allocate(storage.nbytes());
  std::memcpy(to.get(), from, storage.nbytes());
  storage.set_allocator(&allocator);
  return storage.set_data_ptr(std::move(to));
}

std::shared_ptr<MemAllocator> mem_allocator(const std::string& backend) {
  static std::mutex mutex;
  // Never destroyed: tensors may outlive everything else.
  static auto& allocators = *new std::map<std::string, std::shared_ptr<MemAllocator>>();
  std::lock_guard<std::mutex> lock(mutex);
  auto& allocator = allocators[backend];
  if (!allocator) allocator = std::make_shared<MemAllocator>(backend);
  return allocator;
}

}  // namespace ferrocomm
