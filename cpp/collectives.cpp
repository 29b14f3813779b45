// Collectives of TorchComm: check the tensors, then one call of the C ABI each. Must not know
// Python or c10d's backends, nor how data moves.

#include <ATen/MemoryOverlap.h>

#include "comm.hpp"

namespace ferrocomm {
namespace {

// What other ranks are to get is still to be read when the root's own part is written; stock
// backends take lists in which the output stands, too.
Tensors apart_from(const at::Tensor& output, const Tensors& inputs, size_t own) {
  Tensors apart = inputs;
  for (size_t rank = 0; rank < apart.size(); ++rank) {
    const bool overlaps = apart[rank].defined() && output.defined() &&
                          at::get_overlap_status(output, apart[rank]) != at::MemOverlapStatus::No;
    if (rank != own && overlaps) apart[rank] = apart[rank].clone();
  }
  return apart;
}

std::vector<Buffer> stage_inputs(Stage& stage, const char* argument, const Tensors& tensors) {
  std::vector<Buffer> buffers;
  buffers.reserve(tensors.size());
  for (const auto& tensor : tensors) buffers.push_back(stage.input(argument, tensor));
  return buffers;
}

std::vector<Buffer> stage_outputs(Stage& stage, const char* argument, const Tensors& tensors) {
  std::vector<Buffer> buffers;
  buffers.reserve(tensors.size());
  for (const auto& tensor : tensors) buffers.push_back(stage.output(argument, tensor));
  return buffers;
}

// Pointers and counts of one part per rank, as the `_v` functions take them.
struct Parts {
  std::vector<void*> data;
  std::vector<const void*> const_data;
  std::vector<size_t> counts;

  void add(void* pointer, size_t count) {
    data.push_back(pointer);
    const_data.push_back(pointer);
    counts.push_back(count);
  }
};

Parts parts_of(const std::vector<Buffer>& buffers) {
  Parts parts;
  for (const auto& buffer : buffers) parts.add(buffer.data, buffer.count);
  return parts;
}

// `counts` in elements of the tensor behind `buffer`.
Parts parts_within(const Buffer& buffer, const std::vector<size_t>& counts) {
  Parts parts;
  size_t start = 0;
  for (const size_t count : counts) {
    parts.add(buffer.at(start), count * buffer.width);
    start += count * buffer.width;
  }
  return parts;
}

// What hooks see of several operations of one tensor each.
std::vector<OpArgs> pairwise(const OpArgs& like, const Tensors& outputs, const Tensors& inputs) {
  std::vector<OpArgs> all;
  for (size_t i = 0; i < outputs.size() && i < inputs.size(); ++i) {
    all.push_back(like);
    all.back().inputs = {inputs[i]};
    all.back().outputs = {outputs[i]};
  }
  return all;
}

void require_same_length(Stage& stage, const Tensors& outputs, const Tensors& inputs) {
  stage.require_list("input list", inputs.size(), outputs.size());
}

}  // namespace

WorkPtr TorchComm::broadcast(const at::Tensor& tensor, int root, const CallOptions& call) {
  Hooked hooked(*this, call,
                [&] { return OpArgs{OpName::kBroadcast, call.async, {tensor}, {}, root}; });
  if (hooked.elsewhere()) return hooked.elsewhere();
  Operation operation(*this, c10d::OpType::BROADCAST, "broadcast", call);
  operation.profile(tensor, tensor, root);
  const Buffer buffer = operation.stage().in_out("tensor", tensor);
  operation.add_output(tensor);
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_comm_broadcast(handle(), buffer.data, buffer.count, buffer.dtype, root, options,
                             work);
  });
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::all_reduce(const Tensors& tensors, const c10d::ReduceOp& op,
                              const CallOptions& call) {
  Hooked hooked(*this, call, [&] {
    std::vector<OpArgs> all;
    for (const auto& tensor : tensors) {
      all.push_back({OpName::kAllReduce, call.async, {tensor}, {}, -1, op});
    }
    return all;
  });
  if (hooked.elsewhere()) return hooked.elsewhere();
  const auto type =
      tensors.size() == 1 ? c10d::OpType::ALLREDUCE : c10d::OpType::ALLREDUCE_COALESCED;
  Operation operation(*this, type, "all_reduce", call);
  operation.profile(tensors, tensors);
  const Reduction reduction = to_reduction(op, device_, operation.site());
  std::vector<Buffer> buffers;
  for (const auto& tensor : tensors) {
    operation.stage().next_dtype();
    buffers.push_back(operation.stage().in_out("tensor", tensor));
  }
  operation.add_outputs(tensors);
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    operation.issue_reduction(
        reduction, tensors[i], [&](const fc_op_options* options, fc_work** work) {
          return fc_comm_all_reduce(handle(), buffer.data, buffer.data, buffer.count, buffer.dtype,
                                    reduction.op, options, work);
        });
  }
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::reduce(const at::Tensor& tensor, int root, const c10d::ReduceOp& op,
                          const CallOptions& call) {
  Hooked hooked(*this, call,
                [&] { return OpArgs{OpName::kReduce, call.async, {tensor}, {}, root, op}; });
  if (hooked.elsewhere()) return hooked.elsewhere();
  Operation operation(*this, c10d::OpType::REDUCE, "reduce", call);
  operation.profile(tensor, tensor, root);
  const Reduction reduction = to_reduction(op, device_, operation.site());
  const bool at_root = rank_ == root;
  auto& stage = operation.stage();
  const Buffer buffer = at_root ? stage.in_out("tensor", tensor) : stage.input("tensor", tensor);
  operation.add_output(tensor);
  operation.issue_reduction(reduction, tensor, [&](const fc_op_options* options, fc_work** work) {
    return fc_comm_reduce(handle(), buffer.data, at_root ? buffer.data : nullptr, buffer.count,
                          buffer.dtype, reduction.op, root, options, work);
  });
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::all_gather(const Tensors& outputs, const at::Tensor& input,
                              const CallOptions& call) {
  Hooked hooked(*this, call, [&] {
    const auto name = call.uneven ? OpName::kAllGatherV : OpName::kAllGather;
    return OpArgs{name, call.async, {input}, outputs};
  });
  if (hooked.elsewhere()) return hooked.elsewhere();
  Operation operation(*this, c10d::OpType::ALLGATHER, "all_gather", call);
  operation.profile(input, outputs);
  auto& stage = operation.stage();
  stage.require_list("output list", outputs.size(), static_cast<size_t>(size_));
  const Buffer own = stage.input("input", input);
  const Parts parts = parts_of(stage_outputs(stage, "output", outputs));
  stage.require_count("the output of this rank", parts.counts[static_cast<size_t>(rank_)],
                      own.count);
  operation.add_outputs(outputs);
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_comm_all_gather_v(handle(), own.data, parts.data.data(), parts.counts.data(),
                                own.dtype, options, work);
  });
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::all_gather_single(const Tensors& outputs, const Tensors& inputs,
                                     const CallOptions& call) {
  Hooked hooked(*this, call,
                [&] { return pairwise({OpName::kAllGatherSingle, call.async}, outputs, inputs); });
  if (hooked.elsewhere()) return hooked.elsewhere();
  const auto type = outputs.size() == 1 ? c10d::OpType::_ALLGATHER_BASE : c10d::OpType::COALESCED;
  Operation operation(*this, type, "all_gather_single", call);
  operation.profile(inputs, outputs);
  auto& stage = operation.stage();
  require_same_length(stage, outputs, inputs);
  std::vector<std::pair<Buffer, Buffer>> buffers;
  for (size_t i = 0; i < outputs.size(); ++i) {
    stage.next_dtype();
    const Buffer input = stage.input("input", inputs[i]);
    const Buffer output = stage.output("output", outputs[i]);
    stage.require_count("output", output.count, input.count * static_cast<size_t>(size_));
    buffers.emplace_back(input, output);
  }
  operation.add_outputs(outputs);
  for (const auto& [input, output] : buffers) {
    operation.issue(
        [&, &input = input, &output = output](const fc_op_options* options, fc_work** work) {
          return fc_comm_all_gather(handle(), input.data, output.data, input.count, input.dtype,
                                    options, work);
        });
  }
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::reduce_scatter(const at::Tensor& output, const Tensors& inputs,
                                  const c10d::ReduceOp& op, const CallOptions& call) {
  Hooked hooked(*this, call, [&] {
    const auto name = call.uneven ? OpName::kReduceScatterV : OpName::kReduceScatter;
    return OpArgs{name, call.async, inputs, {output}, -1, op};
  });
  if (hooked.elsewhere()) return hooked.elsewhere();
  Operation operation(*this, c10d::OpType::REDUCE_SCATTER, "reduce_scatter", call);
  operation.profile(inputs, output);
  const Reduction reduction = to_reduction(op, device_, operation.site());
  auto& stage = operation.stage();
  stage.require_list("input list", inputs.size(), static_cast<size_t>(size_));
  const Buffer own = stage.output("output", output);
  const Parts parts = parts_of(stage_inputs(stage, "input", inputs));
  stage.require_count("output", own.count, parts.counts[static_cast<size_t>(rank_)]);
  operation.add_output(output);
  operation.issue_reduction(reduction, output, [&](const fc_op_options* options, fc_work** work) {
    return fc_comm_reduce_scatter_v(handle(), parts.const_data.data(), parts.counts.data(),
                                    own.data, own.dtype, reduction.op, options, work);
  });
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::reduce_scatter_single(const Tensors& outputs, const Tensors& inputs,
                                         const c10d::ReduceOp& op, const CallOptions& call) {
  Hooked hooked(*this, call, [&] {
    return pairwise({OpName::kReduceScatterSingle, call.async, {}, {}, -1, op}, outputs, inputs);
  });
  if (hooked.elsewhere()) return hooked.elsewhere();
  const auto type =
      outputs.size() == 1 ? c10d::OpType::_REDUCE_SCATTER_BASE : c10d::OpType::COALESCED;
  Operation operation(*this, type, "reduce_scatter_single", call);
  operation.profile(inputs, outputs);
  const Reduction reduction = to_reduction(op, device_, operation.site());
  auto& stage = operation.stage();
  require_same_length(stage, outputs, inputs);
  std::vector<std::pair<Buffer, Buffer>> buffers;
  for (size_t i = 0; i < outputs.size(); ++i) {
    stage.next_dtype();
    const Buffer input = stage.input("input", inputs[i]);
    const Buffer output = stage.output("output", outputs[i]);
    stage.require_count("input", input.count, output.count * static_cast<size_t>(size_));
    buffers.emplace_back(input, output);
  }
  operation.add_outputs(outputs);
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto& [input, output] = buffers[i];
    operation.issue_reduction(
        reduction, outputs[i],
        [&, &input = input, &output = output](const fc_op_options* options, fc_work** work) {
          return fc_comm_reduce_scatter(handle(), input.data, output.data, output.count,
                                        output.dtype, reduction.op, options, work);
        });
  }
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::all_to_all(const Tensors& outputs, const Tensors& inputs,
                              const CallOptions& call) {
  Hooked hooked(*this, call,
                [&] { return OpArgs{OpName::kAllToAll, call.async, inputs, outputs}; });
  if (hooked.elsewhere()) return hooked.elsewhere();
  Operation operation(*this, c10d::OpType::ALLTOALL, "all_to_all", call);
  operation.profile(inputs, outputs);
  auto& stage = operation.stage();
  stage.require_list("output list", outputs.size(), static_cast<size_t>(size_));
  stage.require_list("input list", inputs.size(), static_cast<size_t>(size_));
  const auto received = stage_outputs(stage, "output", outputs);
  const Parts out = parts_of(received);
  const Parts in = parts_of(stage_inputs(stage, "input", inputs));
  operation.add_outputs(outputs);
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_comm_all_to_all_v(handle(), in.const_data.data(), in.counts.data(), out.data.data(),
                                out.counts.data(), received.front().dtype, options, work);
  });
  return hooked.done(operation.finish());
}

// On the host always the call with counts: a rank that names equal split sizes must meet one that
// names none.
WorkPtr TorchComm::all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                                     const Splits& output_splits, const Splits& input_splits,
                                     const CallOptions& call) {
  Hooked hooked(*this, call, [&] {
    const bool even = output_splits.empty() && input_splits.empty();
    OpArgs args{even ? OpName::kAllToAllSingle : OpName::kAllToAllVSingle, call.async};
    args.inputs = {input};
    args.outputs = {output};
    args.output_splits = output_splits;
    args.input_splits = input_splits;
    return args;
  });
  if (hooked.elsewhere()) return hooked.elsewhere();
  Operation operation(*this, c10d::OpType::ALLTOALL_BASE, "all_to_all_single", call);
  operation.profile(input, output, -1, input_splits, output_splits);
  auto& stage = operation.stage();
  const Buffer to = stage.output("output", output);
  const Buffer from = stage.input("input", input);
  const auto ranks = static_cast<size_t>(size_);
  const Parts out =
      parts_within(to, split_counts(operation.site(), "output", output, output_splits, ranks));
  const Parts in =
      parts_within(from, split_counts(operation.site(), "input", input, input_splits, ranks));
  const auto own = static_cast<size_t>(rank_);
  stage.require_count("the part of the output that comes from this rank itself", out.counts[own],
                      in.counts[own]);
  operation.add_output(output);
  // On a device, ranks that name no split sizes meet in the call that its library has for equal
  // parts.
  if (!device_.is_cpu() && output_splits.empty() && input_splits.empty()) {
    operation.issue([&](const fc_op_options* options, fc_work** work) {
      return fc_comm_all_to_all(handle(), from.data, to.data, in.counts[own], to.dtype, options,
                                work);
    });
    return hooked.done(operation.finish());
  }
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_comm_all_to_all_v(handle(), in.const_data.data(), in.counts.data(), out.data.data(),
                                out.counts.data(), to.dtype, options, work);
  });
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::gather(const Tensors& outputs, const at::Tensor& input, int root,
                          const CallOptions& call) {
  Hooked hooked(*this, call,
                [&] { return OpArgs{OpName::kGather, call.async, {input}, outputs, root}; });
  if (hooked.elsewhere()) return hooked.elsewhere();
  Operation operation(*this, c10d::OpType::GATHER, "gather", call);
  operation.profile(input, outputs, root);
  auto& stage = operation.stage();
  stage.require_root(root, size_);
  const bool at_root = rank_ == root;
  stage.require_list("output list", outputs.size(), at_root ? static_cast<size_t>(size_) : 0);
  const Buffer own = stage.input("input", input);
  const Parts parts = parts_of(stage_outputs(stage, "output", outputs));
  for (const size_t count : parts.counts) stage.require_count("output", count, own.count);
  operation.add_outputs(outputs);
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_comm_gather(handle(), own.data, own.count, at_root ? parts.data.data() : nullptr,
                          own.dtype, root, options, work);
  });
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::gather_single(const at::Tensor& output, const at::Tensor& input, int root,
                                 const CallOptions& call) {
  Hooked hooked(*this, call,
                [&] { return OpArgs{OpName::kGatherSingle, call.async, {input}, {output}, root}; });
  if (hooked.elsewhere()) return hooked.elsewhere();
  Operation operation(*this, c10d::OpType::GATHER, "gather_single", call);
  operation.profile(input, output, root);
  auto& stage = operation.stage();
  const Buffer own = stage.input("input", input);
  Parts parts;
  stage.require_root(root, size_);
  const bool at_root = rank_ == root;
  if (at_root) {
    const auto ranks = static_cast<size_t>(size_);
    const Buffer all = stage.output("output", output);
    stage.require_count("output", all.count, own.count * ranks);
    for (size_t r = 0; r < ranks; ++r) parts.add(all.at(r * own.count), own.count);
    operation.add_output(output);
  }
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_comm_gather(handle(), own.data, own.count, at_root ? parts.data.data() : nullptr,
                          own.dtype, root, options, work);
  });
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::scatter(const at::Tensor& output, const Tensors& inputs, int root,
                           const CallOptions& call) {
  Hooked hooked(*this, call,
                [&] { return OpArgs{OpName::kScatter, call.async, inputs, {output}, root}; });
  if (hooked.elsewhere()) return hooked.elsewhere();
  Operation operation(*this, c10d::OpType::SCATTER, "scatter", call);
  operation.profile(inputs, output, root);
  auto& stage = operation.stage();
  stage.require_root(root, size_);
  const bool at_root = rank_ == root;
  stage.require_list("input list", inputs.size(), at_root ? static_cast<size_t>(size_) : 0);
  const Buffer own = stage.output("output", output);
  const Tensors apart = apart_from(output, inputs, static_cast<size_t>(rank_));
  const Parts parts = parts_of(stage_inputs(stage, "input", apart));
  for (const size_t count : parts.counts) stage.require_count("input", count, own.count);
  operation.add_output(output);
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_comm_scatter(handle(), at_root ? parts.const_data.data() : nullptr, own.data,
                           own.count, own.dtype, root, options, work);
  });
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::barrier(const CallOptions& call) {
  Hooked hooked(*this, call, [&] { return OpArgs{OpName::kBarrier, call.async}; });
  if (hooked.elsewhere()) return hooked.elsewhere();
  Operation operation(*this, c10d::OpType::BARRIER, "barrier", call);
  operation.profile({}, {});
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_comm_barrier(handle(), options, work);
  });
  return hooked.done(operation.finish());
}

}  // namespace ferrocomm
