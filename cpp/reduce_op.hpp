// torch's reduce ops in the engine's terms. Must not know tensors' layouts or which dtypes an op
// takes.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "errors.hpp"
#include "ferrocomm.h"

namespace ferrocomm {

/// How elements are combined.
struct Reduction {
  fc_reduce_op op = FC_REDUCE_SUM;
  /// of PREMUL_SUM alone
  double factor = 1.0;
  /// the factor of PREMUL_SUM, where it lives on the communicator's device
  at::Tensor device_factor = {};
};

// Named after NCCL until torch 2.13, and an alias since.
using PremulSupplement = c10d::NCCLPreMulSumSupplement;

/// Raises ValueError for an op that has no meaning here. A factor on `device`, which is no CPU, is
/// left there; one elsewhere is read.
Reduction to_reduction(const c10d::ReduceOp& op, at::Device device, const Site& site);

}  // namespace ferrocomm
