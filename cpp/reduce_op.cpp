// One table: op of torch, op of the engine, factor. Must not know how elements are combined.

#include "reduce_op.hpp"

namespace ferrocomm {
namespace {

Reduction premul_sum(const c10d::ReduceOp& op, at::Device device, const Site& site) {
  const auto* supplement = dynamic_cast<PremulSupplement*>(op.supplement_.get());
  if (supplement == nullptr) {
    throw_invalid(
        site, {"PREMUL_SUM carries no factor", "", "", "make it with ReduceOp.PREMUL_SUM(factor)"});
  }
  const at::Tensor& factor = supplement->tensor_factor;
  if (!factor.defined()) return {FC_REDUCE_PREMUL_SUM, supplement->double_factor};
  if (factor.numel() != 1) {
    throw_invalid(site, {"the factor of PREMUL_SUM is not one number",
                         std::to_string(factor.numel()) + " elements", "1", ""});
  }
  if (!device.is_cpu() && factor.device() == device) return {FC_REDUCE_PREMUL_SUM, 1.0, factor};
  return {FC_REDUCE_PREMUL_SUM, factor.item<double>()};
}

}  // namespace

Reduction to_reduction(const c10d::ReduceOp& op, at::Device device, const Site& site) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {FC_REDUCE_SUM};
    case c10d::ReduceOp::AVG:
      return {FC_REDUCE_AVG};
    case c10d::ReduceOp::PRODUCT:
      return {FC_REDUCE_PRODUCT};
    case c10d::ReduceOp::MIN:
      return {FC_REDUCE_MIN};
    case c10d::ReduceOp::MAX:
      return {FC_REDUCE_MAX};
    case c10d::ReduceOp::BAND:
      return {FC_REDUCE_BAND};
    case c10d::ReduceOp::BOR:
      return {FC_REDUCE_BOR};
    case c10d::ReduceOp::BXOR:
      return {FC_REDUCE_BXOR};
    case c10d::ReduceOp::PREMUL_SUM:
      return premul_sum(op, device, site);
    default:
      throw_invalid(site, {"the reduce op is unknown", std::to_string(op.op_), "", ""});
  }
}

}  // namespace ferrocomm
