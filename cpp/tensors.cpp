// Checks of layouts and sizes, and copies of what is not contiguous. Must not know communicators.

#include "tensors.hpp"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace ferrocomm {
namespace {

// Copies of ours are no operations of the user: autograd does not record them, inference tensors
// accept them on any thread, and no Python dispatch mode sees them.
struct Unrecorded {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_python{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

fc_dtype to_dtype(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return FC_DTYPE_UINT8;
    case at::kChar:
      return FC_DTYPE_INT8;
    case at::kUInt16:
      return FC_DTYPE_UINT16;
    case at::kShort:
      return FC_DTYPE_INT16;
    case at::kUInt32:
      return FC_DTYPE_UINT32;
    case at::kInt:
      return FC_DTYPE_INT32;
    case at::kUInt64:
      return FC_DTYPE_UINT64;
    case at::kLong:
      return FC_DTYPE_INT64;
    case at::kHalf:
      return FC_DTYPE_FLOAT16;
    case at::kBFloat16:
      return FC_DTYPE_BFLOAT16;
    case at::kFloat:
      return FC_DTYPE_FLOAT32;
    case at::kDouble:
      return FC_DTYPE_FLOAT64;
    case at::kBool:
      return FC_DTYPE_BOOL;
    case at::kComplexHalf:
      return FC_DTYPE_COMPLEX32;
    case at::kComplexFloat:
      return FC_DTYPE_COMPLEX64;
    case at::kComplexDouble:
      return FC_DTYPE_COMPLEX128;
    case at::kFloat8_e4m3fn:
      return FC_DTYPE_FLOAT8_E4M3FN;
    case at::kFloat8_e5m2:
      return FC_DTYPE_FLOAT8_E5M2;
    case at::kFloat8_e4m3fnuz:
      return FC_DTYPE_FLOAT8_E4M3FNUZ;
    case at::kFloat8_e5m2fnuz:
      return FC_DTYPE_FLOAT8_E5M2FNUZ;
    case at::kFloat8_e8m0fnu:
      return FC_DTYPE_FLOAT8_E8M0FNU;
    default:
      return FC_DTYPE_BYTE;  // moves as bytes; the engine refuses to reduce it
  }
}

// In memory exactly as its elements read, one after the other.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

Buffer buffer_of(const at::Tensor& tensor, void* data) {
  Buffer buffer;
  buffer.data = data;
  buffer.dtype = to_dtype(tensor.scalar_type());
  const auto bytes = static_cast<size_t>(tensor.element_size());
  const auto elements = static_cast<size_t>(tensor.numel());
  buffer.item_bytes = buffer.dtype == FC_DTYPE_BYTE ? 1 : bytes;
  buffer.width = bytes / buffer.item_bytes;
  buffer.count = elements * buffer.width;
  return buffer;
}

bool same_device(at::Device tensor, at::Device communicator) {
  if (tensor.type() != communicator.type()) return false;
  return tensor.is_cpu() || !communicator.has_index() || tensor.index() == communicator.index();
}

}  // namespace

void Holdings::copy_back() const {
  if (copy_backs.empty()) return;
  Unrecorded guard;
  for (const auto& [to, from] : copy_backs) to.copy_(from);
}

void Stage::check(const char* argument, const at::Tensor& tensor) {
  const std::string name = argument;
  if (!tensor.defined()) throw_invalid(site_, {name + " is not a tensor", "", "", ""});
  if (!same_device(tensor.device(), device_)) {
    throw_invalid(site_, {name + " is on the wrong device", tensor.device().str(), device_.str(),
                          "move it there, or use a communicator of that device"});
  }
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    throw_invalid(site_, {name + " is not a dense tensor", "a sparse or nested layout", "strided",
                          "convert it with to_dense()"});
  }
  if (dtype_ && *dtype_ != tensor.scalar_type()) {
    throw_invalid(site_, {name + " differs in dtype from another tensor of the call",
                          c10::toString(tensor.scalar_type()), c10::toString(*dtype_), ""});
  }
  dtype_ = tensor.scalar_type();
}

void Stage::check_written(const char* argument, const at::Tensor& tensor) {
  check(argument, tensor);
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    throw_invalid(site_, {std::string(argument) + " has elements that share memory",
                          "an expanded tensor", "", "pass tensor.contiguous()"});
  }
}

at::Tensor Stage::stand_in(const at::Tensor& tensor, bool with_content) {
  Unrecorded guard;
  auto copy = at::empty(tensor.sizes(), tensor.options().memory_format(std::nullopt));
  if (with_content) copy.copy_(tensor);
  return copy;
}

Buffer Stage::input(const char* argument, const at::Tensor& tensor) {
  check(argument, tensor);
  if (keeps_inputs_) inputs_.push_back(tensor);
  holdings_.tensors.push_back(is_plain(tensor) ? tensor : stand_in(tensor, true));
  const auto& held = holdings_.tensors.back();
  return buffer_of(held, const_cast<void*>(held.const_data_ptr()));
}

Buffer Stage::output(const char* argument, const at::Tensor& tensor) {
  return written(argument, tensor, false);
}

Buffer Stage::in_out(const char* argument, const at::Tensor& tensor) {
  const Buffer buffer = written(argument, tensor, true);
  if (keeps_inputs_) inputs_.push_back(tensor);
  return buffer;
}

Buffer Stage::written(const char* argument, const at::Tensor& tensor, bool with_content) {
  check_written(argument, tensor);
  if (is_plain(tensor)) {
    holdings_.tensors.push_back(tensor);
  } else {
    holdings_.tensors.push_back(stand_in(tensor, with_content));
    holdings_.copy_backs.push_back({tensor, holdings_.tensors.back()});
  }
  const auto& held = holdings_.tensors.back();
  return buffer_of(held, held.mutable_data_ptr());
}

void Stage::require_count(const char* argument, size_t got, size_t expected) {
  if (got == expected) return;
  throw_invalid(site_, {std::string(argument) + " has the wrong number of elements",
                        std::to_string(got), std::to_string(expected), ""});
}

void Stage::require_root(int root, int size) {
  if (root >= 0 && root < size) return;
  throw_invalid(site_, {"the root is not a rank of the communicator",
                        "root " + std::to_string(root), "0 to " + std::to_string(size - 1), ""});
}

void Stage::require_list(const char* argument, size_t got, size_t expected) {
  if (got == expected) return;
  throw_invalid(site_, {std::string(argument) + " has the wrong length",
                        std::to_string(got) + (got == 1 ? " tensor" : " tensors"),
                        std::to_string(expected), ""});
}

std::vector<size_t> split_counts(const Site& site, const char* argument, const at::Tensor& tensor,
                                 const std::vector<int64_t>& splits, size_t ranks) {
  const std::string name = argument;
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const auto elements = static_cast<size_t>(tensor.numel());
  if (splits.empty()) {
    if (rows % static_cast<int64_t>(ranks) != 0) {
      throw_invalid(
          site, {name + " cannot be split evenly along its first dimension", std::to_string(rows),
                 "a multiple of " + std::to_string(ranks), "pass split sizes"});
    }
    return std::vector<size_t>(ranks, elements / ranks);
  }
  if (splits.size() != ranks) {
    throw_invalid(site, {name + " has the wrong number of split sizes",
                         std::to_string(splits.size()), std::to_string(ranks), ""});
  }
  const size_t row_elements = rows == 0 ? 0 : elements / static_cast<size_t>(rows);
  int64_t sum = 0;
  std::vector<size_t> counts;
  counts.reserve(ranks);
  for (const int64_t split : splits) {
    if (split < 0 || split > rows - sum) {
      throw_invalid(site, {name + " has split sizes that do not fit its first dimension",
                           std::to_string(split) + " after " + std::to_string(sum),
                           "sizes that add up to " + std::to_string(rows), ""});
    }
    sum += split;
    counts.push_back(static_cast<size_t>(split) * row_elements);
  }
  if (sum != rows) {
    throw_invalid(site, {name + " has split sizes that do not add up to its first dimension",
                         std::to_string(sum), std::to_string(rows), ""});
  }
  return counts;
}

}  // namespace ferrocomm
