// Sends, receives, their batches, and the monitored barrier that is made of them. Must not know
// Python or c10d's backends, nor how messages are matched.

#include <ATen/ops/zeros.h>

#include "comm.hpp"

namespace ferrocomm {
namespace {

// torch's tags are not negative, so the upper half of the tags is free for what is made of sends.
constexpr uint32_t kOwnTags = 0x80000000;

}  // namespace

WorkPtr TorchComm::send(const at::Tensor& tensor, int peer, uint32_t tag, const CallOptions& call) {
  Hooked hooked(*this, call, [&] { return OpArgs{OpName::kSend, call.async, {tensor}, {}, peer}; });
  if (hooked.elsewhere()) return hooked.elsewhere();
  Operation operation(*this, c10d::OpType::SEND, "send", call);
  operation.profile(tensor, tensor, peer);
  const Buffer buffer = operation.stage().input("tensor", tensor);
  operation.add_output(tensor);
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_comm_send(handle(), buffer.data, buffer.count, buffer.dtype, peer, tag, options,
                        work);
  });
  return hooked.done(operation.finish());
}

WorkPtr TorchComm::recv(const at::Tensor& tensor, int peer, uint32_t tag, const CallOptions& call) {
  Hooked hooked(*this, call, [&] { return OpArgs{OpName::kRecv, call.async, {}, {tensor}, peer}; });
  if (hooked.elsewhere()) return hooked.elsewhere();
  const auto type = peer == FC_ANY_SOURCE ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV;
  Operation operation(*this, type, "recv", call);
  operation.profile(tensor, tensor, peer);
  const Buffer buffer = operation.stage().output("tensor", tensor);
  operation.add_output(tensor);
  operation.issue([&](const fc_op_options* options, fc_work** work) {
    return fc_comm_recv(handle(), buffer.data, buffer.count, buffer.dtype, peer, tag, options,
                        work);
  });
  return hooked.done(operation.finish());
}

// ---- batches

Batch::Batch(std::shared_ptr<TorchComm> comm) : comm_(std::move(comm)) { renew(); }

void Batch::renew() {
  parts_.clear();
  if (comm_->foreign()) return;
  operation_ = std::make_unique<Operation>(*comm_, c10d::OpType::COALESCED, "batch", CallOptions{});
  fc_batch* batch = nullptr;
  check(fc_batch_create(comm_->handle(), &batch));
  handle_.reset(batch);
}

WorkPtr Batch::send(const at::Tensor& tensor, int peer, uint32_t tag) {
  OpArgs part{OpName::kSend, true, {tensor}, {}, peer};
  if (comm_->foreign()) return add(std::move(part), nullptr);
  operation_->stage().next_dtype();
  const Buffer buffer = operation_->stage().input("tensor", tensor);
  check(fc_batch_send(handle_.get(), buffer.data, buffer.count, buffer.dtype, peer, tag));
  operation_->add_output(tensor);
  return add(std::move(part), operation_->member(c10d::OpType::SEND));
}

WorkPtr Batch::recv(const at::Tensor& tensor, int peer, uint32_t tag) {
  OpArgs part{OpName::kRecv, true, {}, {tensor}, peer};
  if (comm_->foreign()) return add(std::move(part), nullptr);
  operation_->stage().next_dtype();
  const Buffer buffer = operation_->stage().output("tensor", tensor);
  check(fc_batch_recv(handle_.get(), buffer.data, buffer.count, buffer.dtype, peer, tag));
  operation_->add_output(tensor);
  return add(std::move(part), operation_->member(c10d::OpType::RECV));
}

WorkPtr Batch::add(OpArgs part, WorkPtr work) {
  parts_.push_back(std::move(part));
  return work;
}

WorkPtr Batch::issue(const CallOptions& call) {
  for (auto& part : parts_) part.async = call.async;
  Hooked hooked(*comm_, call, [&] { return parts_; });
  if (hooked.elsewhere()) {
    renew();
    return hooked.elsewhere();
  }
  operation_->set_call(call);
  const auto& tensors = operation_->state()->outputs();
  operation_->profile(tensors, tensors);
  const auto operation = std::move(operation_);
  const auto batch = std::move(handle_);
  const bool empty = parts_.empty();
  renew();
  if (!empty) {
    operation->issue([&](const fc_op_options* options, fc_work** work) {
      return fc_batch_issue(batch.get(), options, work);
    });
  }
  return hooked.done(operation->finish());
}

// ---- monitored barrier

namespace {

using Milliseconds = std::chrono::milliseconds;

// How long ranks other than 0 wait beyond rank 0's limit, so that its verdict still reaches them.
constexpr Milliseconds kVerdictGrace{2000};

CallOptions inner(Milliseconds timeout) {
  CallOptions call;
  call.timeout = timeout;
  call.inner = true;
  return call;
}

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::string reached(const TorchComm& comm) {
  return "Rank " + std::to_string(comm.rank()) +
         " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
         "from rank 0: ";
}

// Rank 0 says who is late. What the others say is torch's wording, which its tests look for.
[[noreturn]] void throw_late(const TorchComm& comm, const std::vector<int>& late,
                             Milliseconds timeout, const std::string& cause) {
  std::string text = "[Rank " + std::to_string(comm.rank()) +
                     "]: " + (comm.rank() == 0 ? "" : reached(comm)) +
                     (late.size() == 1 ? "Rank " : "Ranks ") + join(late) +
                     " failed to pass monitoredBarrier in " + std::to_string(timeout.count()) +
                     " ms [communicator " + comm.name() + "]";
  if (!cause.empty()) text += "; " + cause;
  throw_status(FC_ERR_TIMEOUT, text);
}

// Rank 0: who came, and tell everyone. The verdict has one byte per rank, 1 for a late one; it is
// sent to late ranks too, so that they learn at once that they are.
void oversee(TorchComm& comm, Milliseconds timeout, bool name_all, uint32_t tag) {
  const CallOptions call = inner(timeout);
  auto verdict = at::zeros({comm.size()}, at::kByte);
  std::vector<at::Tensor> tokens;
  std::vector<WorkPtr> arrivals;
  for (int rank = 1; rank < comm.size(); ++rank) {
    tokens.push_back(at::zeros({1}, at::kByte));
    arrivals.push_back(comm.recv(tokens.back(), rank, tag, call));
  }
  std::vector<int> late;
  std::string cause;
  for (int rank = 1; rank < comm.size(); ++rank) {
    auto& arrival = arrivals[static_cast<size_t>(rank - 1)];
    if (!late.empty() && !name_all) {
      if (!arrival->isCompleted()) arrival->abort();
      continue;
    }
    try {
      arrival->wait();
    } catch (const c10::DistError& error) {
      late.push_back(rank);
      if (cause.empty()) cause = error.what_without_backtrace();
      verdict[rank].fill_(1);
    }
  }
  std::vector<WorkPtr> answers;
  for (int rank = 1; rank < comm.size(); ++rank) {
    answers.push_back(comm.send(verdict, rank, tag, inner(kVerdictGrace)));
  }
  if (!late.empty()) throw_late(comm, late, timeout, cause);
  for (auto& answer : answers) answer->wait();
}

void report(TorchComm& comm, Milliseconds timeout, uint32_t tag) {
  auto verdict = at::zeros({comm.size()}, at::kByte);
  try {
    comm.send(at::zeros({1}, at::kByte), 0, tag, inner(timeout))->wait();
    comm.recv(verdict, 0, tag, inner(timeout + kVerdictGrace))->wait();
  } catch (const c10::DistError& error) {
    throw_status(FC_ERR_TIMEOUT, "[Rank " + std::to_string(comm.rank()) + "]: " + reached(comm) +
                                     "no answer [communicator " + comm.name() + "]; " +
                                     error.what_without_backtrace());
  }
  std::vector<int> late;
  const auto* flags = verdict.const_data_ptr<uint8_t>();
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (flags[rank] != 0) late.push_back(rank);
  }
  if (!late.empty()) throw_late(comm, late, timeout, "");
}

}  // namespace

void monitored_barrier(TorchComm& comm, Milliseconds timeout, bool name_all, uint32_t round) {
  Hooked hooked(comm, [] { return OpArgs{OpName::kBarrier}; });
  // A tag of its own per round: a token that came too late is not taken for the next round's.
  const uint32_t tag = kOwnTags | round;
  timeout = within_limits(timeout);
  if (timeout.count() == 0) {
    throw_status(FC_ERR_TIMEOUT, "time-out: Rank " + std::to_string(comm.rank()) +
                                     " timed out in monitoredBarrier after 0 ms [communicator " +
                                     comm.name() + "]; pass a longer time-out");
  }
  if (comm.rank() == 0) {
    oversee(comm, timeout, name_all, tag);
  } else {
    report(comm, timeout, tag);
  }
  hooked.done(OpResult{});
}

}  // namespace ferrocomm
