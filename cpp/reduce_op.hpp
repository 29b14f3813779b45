// torch's reduce ops in the engine's terms.
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
};

// Named after NCCL until torch 2.13, and an alias since.
using PremulSupplement = c10d::NCCLPreMulSumSupplement;

/// Raises ValueError for an op that has no meaning here.
Reduction to_reduction(const c10d::ReduceOp& op, const Site& site);

}  // namespace ferrocomm
