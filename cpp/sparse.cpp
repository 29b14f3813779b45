// Sums of sparse tensors: every rank gets every rank's entries and adds them up in rank order. Made
// of TorchComm's own operations; must not know the C ABI.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>

#include "comm.hpp"

namespace ferrocomm {
namespace {

void check_sparse(const Site& site, const TorchComm& comm, const at::Tensor& tensor,
                  const c10d::ReduceOp& op) {
  if (comm.backend() == "nccl") {
    throw_status(FC_ERR_UNSUPPORTED, "not supported: NCCL has no sparse operations" +
                                         to_string(site) + "; use a gloo group for them");
  }
  if (tensor.layout() != at::kSparse) {
    throw_invalid(site, {"tensor is not sparse", c10::str(tensor.layout()), "torch.sparse_coo",
                         "convert it with to_sparse_coo()"});
  }
  if (tensor.device().type() != comm.device().type()) {
    throw_invalid(site, {"tensor is on the wrong device", tensor.device().str(),
                         comm.device().str(), "move it there"});
  }
  if (op != c10d::ReduceOp::SUM) {
    throw_status(FC_ERR_UNSUPPORTED, "not supported: sparse tensors can only be summed" +
                                         to_string(site) + "; convert them with to_dense()");
  }
}

// How many entries each rank has. Ranks with other shapes than this one's are refused: by everyone,
// as everyone sees all of them.
std::vector<int64_t> exchange_counts(TorchComm& comm, const Site& site, const at::Tensor& entries,
                                     const CallOptions& call) {
  std::vector<int64_t> own{entries._nnz(), entries.sparse_dim(), entries.dense_dim()};
  own.insert(own.end(), entries.sizes().begin(), entries.sizes().end());
  std::vector<at::Tensor> all;
  const auto mine = at::tensor(own, at::kLong);
  for (int rank = 0; rank < comm.size(); ++rank) all.push_back(at::empty_like(mine));
  comm.all_gather(all, mine, call)->wait();
  std::vector<int64_t> counts;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const auto& theirs = all[static_cast<size_t>(rank)];
    const auto* values = theirs.const_data_ptr<int64_t>();
    if (!std::equal(own.begin() + 1, own.end(), values + 1)) {
      throw_invalid(site, {"ranks have sparse tensors of different shapes",
                           "another shape on rank " + std::to_string(rank), "one shape", ""});
    }
    counts.push_back(values[0]);
  }
  return counts;
}

// All ranks' parts behind one another; part r has `counts[r]` rows of `mine`'s kind.
at::Tensor gather_rows(TorchComm& comm, const at::Tensor& mine, const std::vector<int64_t>& counts,
                       const CallOptions& call) {
  std::vector<at::Tensor> parts;
  for (const int64_t count : counts) {
    auto sizes = mine.sizes().vec();
    sizes[0] = count;
    parts.push_back(at::empty(sizes, mine.options()));
  }
  comm.all_gather(parts, mine, call)->wait();
  return at::cat(parts);
}

}  // namespace

WorkPtr TorchComm::all_reduce_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op,
                                     const CallOptions& call) {
  Operation operation(*this, c10d::OpType::_ALLREDUCE_SPARSE, "all_reduce_sparse", call);
  check_sparse(operation.site(), *this, tensor, op);
  operation.begin({tensor});
  operation.add_output(tensor);
  const at::NoGradGuard no_grad;
  CallOptions step;
  step.timeout = call.timeout;
  step.async = false;
  const auto entries = tensor.coalesce();
  const auto counts = exchange_counts(*this, operation.site(), entries, step);
  // Rows of indices are entries here, not dimensions.
  const auto indices = gather_rows(*this, entries.indices().t().contiguous(), counts, step);
  const auto values = gather_rows(*this, entries.values().contiguous(), counts, step);
  const auto sum = at::sparse_coo_tensor(indices.t(), values, tensor.sizes());
  at::Tensor(tensor).copy_(sum.coalesce());
  return operation.finish();
}

}  // namespace ferrocomm
