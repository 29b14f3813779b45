#include "reduce_op.hpp"

namespace ferrocomm {
namespace {

double premul_factor(const c10d::ReduceOp& op, const Site& site) {
  const auto* supplement = dynamic_cast<PremulSupplement*>(op.supplement_.get());
  if (supplement == nullptr) {
    throw_invalid(
        site, {"PREMUL_SUM carries no factor", "", "", "make it with ReduceOp.PREMUL_SUM(factor)"});
  }
  if (!supplement->tensor_factor.defined()) return supplement->double_factor;
  return supplement->tensor_factor.item<double>();
}

}  // namespace

Reduction to_reduction(const c10d::ReduceOp& op, const Site& site) {
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
      return {FC_REDUCE_PREMUL_SUM, premul_factor(op, site)};
    default:
      throw_invalid(site, {"the reduce op is unknown", std::to_string(op.op_), "", ""});
  }
}

}  // namespace ferrocomm
