// From tensors to the pointers, counts and dtypes of the C ABI, and the checks on the way. Must not
// know communicators or operations: whose they are is a `Site`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "errors.hpp"
#include "ferrocomm.h"

namespace ferrocomm {

/// Memory of one tensor: contiguous, in logical order of the elements.
struct Buffer {
  void* data = nullptr;
  /// in elements of `dtype`
  size_t count = 0;
  fc_dtype dtype = FC_DTYPE_BYTE;
  /// bytes of one element of `dtype`
  size_t item_bytes = 1;
  /// elements of `dtype` that make one element of the tensor; above 1 for a dtype moved as bytes
  size_t width = 1;

  /// Where element `index` lies.
  void* at(size_t index) const { return static_cast<char*>(data) + index * item_bytes; }
};

/// What an operation holds while it runs: the tensors it touches, and the contiguous stand-ins
/// whose content goes back to tensors with other strides.
struct Holdings {
  std::vector<at::Tensor> tensors;
  struct CopyBack {
    at::Tensor to;
    at::Tensor from;
  };
  std::vector<CopyBack> copy_backs;

  /// Writes the stand-ins back. Once, after the operation succeeded.
  void copy_back() const;
};

/// Checks one call's tensors and turns them into buffers; raises ValueError before anything moves.
class Stage {
 public:
  /// `holdings` outlives the stage.
  Stage(const Site& site, at::Device device, Holdings& holdings)
      : site_(site), device_(device), holdings_(holdings) {}

  /// Memory that is only read.
  Buffer input(const char* argument, const at::Tensor& tensor);
  /// Memory whose old content does not matter.
  Buffer output(const char* argument, const at::Tensor& tensor);
  /// Memory that is read, then written.
  Buffer in_out(const char* argument, const at::Tensor& tensor);

  /// From here on `inputs` keeps what is read.
  void keep_inputs() { keeps_inputs_ = true; }
  const std::vector<at::Tensor>& inputs() const { return inputs_; }

  /// The tensors that follow may have another dtype than the ones before.
  void next_dtype() { dtype_.reset(); }

  void require_count(const char* argument, size_t got, size_t expected);
  /// The root of a rooted collective is one of the communicator's ranks.
  void require_root(int root, int size);
  void require_list(const char* argument, size_t got, size_t expected);

  const Site& site() const { return site_; }

 private:
  void check(const char* argument, const at::Tensor& tensor);
  void check_written(const char* argument, const at::Tensor& tensor);
  at::Tensor stand_in(const at::Tensor& tensor, bool with_content);
  Buffer written(const char* argument, const at::Tensor& tensor, bool with_content);

  const Site& site_;
  at::Device device_;
  Holdings& holdings_;
  std::optional<at::ScalarType> dtype_;
  bool keeps_inputs_ = false;
  std::vector<at::Tensor> inputs_;
};

/// How many elements of the tensor each rank's part has, from split sizes along the first
/// dimension; `splits` empty means equal parts. Raises ValueError unless they add up to the tensor.
std::vector<size_t> split_counts(const Site& site, const char* argument, const at::Tensor& tensor,
                                 const std::vector<int64_t>& splits, size_t ranks);

}  // namespace ferrocomm
